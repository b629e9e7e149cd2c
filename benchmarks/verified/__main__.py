"""Is `kprof verify` right? Two ranks on cores of their own, one of which is slow in one region.

Of each run two places are verified: the slow one, with delays in that region everywhere else, and a place that is not slow.
A delay elsewhere must not show in the calls in the first case, and must in the second.

python -m benchmarks.verified --cases 50 --output benchmarks/results/verified.json      about 40 minutes, two free cores
python -m benchmarks.verified --cases 50 --at-a-time 6                                  five minutes, on 12 free cores
python -m benchmarks.verified --cases 10 --target cuda                                  both ranks on one GPU
"""

from __future__ import annotations

import contextlib
import json
import shlex
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks.harness import context, options, show_and_write
from kprof.analysis import Finding, Summary
from kprof.analysis.calls import call_lengths
from kprof.analysis.findings.experiment import experiment_of
from kprof.analysis.findings.kinds import named
from kprof.analysis.replay.load import calls_to_replay
from kprof.analysis.wording import percent
from kprof.capture.verified import Verified
from kprof.proof import Proof, verify
from kprof.recording.launcher.record import RecordRequest, record
from kprof.trace import Trace

REGIONS: Final = ("pack", "reduce")
# A promise is kept within this part of the delay.
NEAR: Final = 0.1


@dataclass(frozen=True)
class Case:
    """One verified place: whether it was planted there, and what was promised and measured, as parts of a delay."""

    seed: int
    is_planted: bool
    region: str
    rank: int
    factor: float
    promised: float
    measured: float
    low: float
    high: float
    verdict: str

    @property
    def has_right_sign(self) -> bool:
        """Less than half of a delay elsewhere shows where the place is the cause, and more elsewhere."""
        return (self.measured < 0.5) == self.is_planted

    @property
    def is_near(self) -> bool:
        """Whether it is what was promised."""
        return abs(self.measured - self.promised) <= NEAR


def place(summary: Summary, region: str, rank: int, gain_ns: float) -> Finding:
    """A finding about a place, whether it is slow or not, that would gain so much in every call."""
    replayed = calls_to_replay(summary)
    assert replayed is not None
    calls = replayed.ordinals
    gains = (gain_ns,) * len(calls)
    return Finding(
        kind=named("slow"),
        ranks=(rank,),
        region=region,
        calls=calls,
        costly_calls=calls,
        gains_ns=gains,
        id=f"{region}/rank-{rank}",
    )


def cases_of(seed: int, rounds: int, calls: int, target: str, folder: Path) -> list[Case]:
    """A planted place, and one that is not."""
    rng = np.random.default_rng([7, seed])
    region, rank = REGIONS[int(rng.integers(2))], int(rng.integers(2))
    factor = round(float(rng.uniform(1.5, 3.0)), 2)
    slow = f"{region}:{rank}:{factor}"
    workload = ("-m", "benchmarks.verified.workload", "--calls", str(calls), "--slow", slow)
    command = (sys.executable, *workload, "--target", target)
    run = folder / f"{seed}.kprof"
    record(RecordRequest(command, run, is_quiet=True))
    summary = Summary.of(Trace.open(run))
    # A call is both regions of the slower rank.
    gain_ns = float(call_lengths(summary).median()) * (factor - 1) / (factor + 1)
    other = (REGIONS[1 - REGIONS.index(region)], int(rng.integers(2)))
    found = []
    for is_planted, (name, at) in ((True, (region, rank)), (False, other)):
        finding = place(summary, name, at, gain_ns)
        tried = experiment_of(summary, finding, least_effect=-10.0)
        verified = verify(Proof(finding, tried, command, None, rounds), run)
        found.append(_case(seed, factor, verified, at, is_planted=is_planted))
        say(found[-1])
    return found


def _case(seed: int, factor: float, found: Verified, rank: int, *, is_planted: bool) -> Case:
    numbers = (found.promised_shown, found.shown, found.low, found.high)
    verdict = found.verdict.value
    return Case(seed, is_planted, found.region, rank, factor, *numbers, verdict)


def say(case: Case) -> None:
    """One line on stderr."""
    shown, promised = percent(case.measured), percent(case.promised)
    what = "planted" if case.is_planted else "not planted"
    text = f"case {case.seed}, {what}: {shown} showed, {promised} promised: {case.verdict}"
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--cases", type=int, default=50, help="runs, each with two places")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--calls", type=int, default=40)
    parser.add_argument("--target", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--at-a-time", type=int, default=1, help="each takes two cores")
    arguments = parser.parse_args()
    head = context(shlex.join(["python", "-m", "benchmarks.verified", *sys.argv[1:]]))
    cases: list[Case] = []
    with tempfile.TemporaryDirectory() as scratch, contextlib.ExitStack() as stack:
        tried = partial(
            cases_of,
            rounds=arguments.rounds,
            calls=arguments.calls,
            target=arguments.target,
            folder=Path(scratch),
        )
        # Without a pool whoever stops this stops the recordings, too.
        every: Callable[..., Iterable[list[Case]]] = map
        if arguments.at_a_time > 1:
            every = stack.enter_context(ProcessPoolExecutor(arguments.at_a_time)).map
        for both in every(tried, range(arguments.cases)):
            cases += both
            if arguments.output is not None:
                arguments.output.write_text(json.dumps(head | figures_of(cases)))
    show_and_write(head | figures_of(cases), arguments.output)


def figures_of(cases: Sequence[Case]) -> dict[str, object]:
    """What the benchmark says after these cases."""
    return {
        "bars": {"right_sign": 1.0, "near": 0.9},
        "planted": sum(case.is_planted for case in cases),
        "right_sign": float(np.mean([case.has_right_sign for case in cases])),
        "near": float(np.mean([case.is_near for case in cases])),
        "confirmed": float(np.mean([case.verdict == "confirmed" for case in cases])),
        "too_noisy": float(np.mean(["noisy" in case.verdict for case in cases])),
        "cases": list(map(asdict, cases)),
    }


if __name__ == "__main__":
    main()
