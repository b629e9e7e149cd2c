"""Is the root of a hang named right, and is a slow run left alone?

    python -m benchmarks.planted_hangs [--hangs 50] [--slow 200] [--first-seed 0] [--json FILE]

Runs the exchange of `tests/support/planted_hangs/` on the CPU target, with 2 to 8 ranks. Each of
eight mistakes is planted in `--hangs` runs: the diagnosis must name the planted mistake, with the
rank, the peer and the slot. `--slow` runs are correct, but a kernel or a host takes almost as long
for each step as a watch waits: the watch must say nothing. Exits with 1 when a run comes out
differently. No run depends on how fast the machine is.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from benchmarks import harness
from kprof.hangs.report import describe
from planted_hangs.world import PLANTED, Case, Fault, reports_of_slow_run, root_of


def wrong_roots(fault: Fault, seeds: range, folder: Path) -> list[str]:
    """A line for each run whose root was not named right."""
    wrong = []
    for seed in seeds:
        case = Case.draw(fault, seed)
        root, run = root_of(case, folder / f"{fault.name}-{seed}")
        if not case.is_named_by(root):
            wrong.append(f"{case}: {root and describe(root, run)}")
    return wrong


def wrong_alarms(seeds: range, folder: Path) -> list[str]:
    """A line for each slow run that was reported."""
    wrong = []
    for seed in seeds:
        case = Case.draw(Fault.SLOW, seed)
        found = reports_of_slow_run(case, folder / f"slow-{seed}")
        wrong += [f"{case}: {finding.hang.diagnosis}" for finding in found]
    return wrong


def main() -> int:
    parser = harness.options(__doc__)
    parser.add_argument("--hangs", type=int, default=50, help="runs of each mistake")
    parser.add_argument("--slow", type=int, default=200, help="runs that are slow and correct")
    parser.add_argument("--first-seed", type=int, default=0)
    arguments = parser.parse_args()
    first = arguments.first_seed
    seeds = range(first, first + arguments.hangs)
    begin_s, wrong = time.process_time(), list[str]()
    named_right: dict[str, int] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for fault in PLANTED:
            found = wrong_roots(fault, seeds, Path(scratch))
            name = fault.name.lower()
            named_right[name] = len(seeds) - len(found)
            wrong += found
            print(f"{name:<16} {named_right[name]} of {len(seeds)} roots named right", flush=True)
        alarms = wrong_alarms(range(first, first + arguments.slow), Path(scratch))
    print(f"slow             {arguments.slow - len(alarms)} of {arguments.slow} not called hung")
    for line in wrong + alarms:
        print(line)
    result = {
        **harness.context(f"python -m benchmarks.planted_hangs --hangs {arguments.hangs}"),
        "first_seed": first,
        "hangs_of_each": len(seeds),
        "named_right": named_right,
        "slow": arguments.slow,
        "called_hung": len(alarms),
        "cpu_s": round(time.process_time() - begin_s),
        "wrong": wrong + alarms,
    }
    if arguments.output:
        harness.write(result, arguments.output)
    return 1 if wrong or alarms else 0


if __name__ == "__main__":
    raise SystemExit(main())
