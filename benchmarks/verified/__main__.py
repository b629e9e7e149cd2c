"""Is `kprof verify` right? Two ranks on cores of their own, or four blocks of a GPU, one of which is slow in one region.

Of each run two places are verified: the slow one, with delays in that region everywhere else, and a place that is not slow.
A delay elsewhere must not show in the calls in the first case, and must in the second.

python -m benchmarks.verified --cases 50 --output benchmarks/results/verified.json      about 40 minutes, two free cores
python -m benchmarks.verified --cases 50 --at-a-time 6                                  five minutes, on 12 free cores
python -m benchmarks.verified --cases 10 --rounds 3 --target cuda --at-a-time 20        the blocks of one GPU; 16 cores
"""

from __future__ import annotations

import argparse
import shlex
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks.harness import context, options, show_and_write, write
from kprof.analysis import Finding, Summary
from kprof.analysis.calls import call_lengths
from kprof.analysis.findings.experiment import experiment_of
from kprof.analysis.findings.kinds import named
from kprof.analysis.replay.load import calls_to_replay
from kprof.analysis.wording import percent
from kprof.proof import Proof, verify
from kprof.recording.launcher.record import RecordRequest, record
from kprof.trace import Trace

REGIONS: Final = ("pack", "reduce")
# A promise is kept within this part of the delay.
NEAR: Final = 0.1


@dataclass(frozen=True)
class Machine:
    """Where the workload runs, and in how many places: ranks on the CPU, and blocks on a GPU.

    Processes take turns with `in_turn`.
    """

    target: str
    ranks: int
    blocks: int
    in_turn: Path | None = None

    @property
    def num_places(self) -> int:
        """Blocks of all ranks."""
        return self.ranks * self.blocks

    @property
    def arguments(self) -> tuple[str, ...]:
        """Of the workload."""
        sizes = ("--ranks", str(self.ranks), "--blocks", str(self.blocks))
        turn = () if self.in_turn is None else ("--in-turn", str(self.in_turn))
        return ("--target", self.target, *sizes, *turn)


@dataclass(frozen=True)
class Case:
    """One verified place: whether it was planted there, and what was promised and measured, as parts of a delay."""

    seed: int
    is_planted: bool
    region: str
    rank: int
    block: int
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


def finding_at(summary: Summary, region: str, rank: int, block: int, gain_ns: float) -> Finding:
    """A finding about a place, whether it is slow or not, that would gain so much in every call."""
    replayed = calls_to_replay(summary)
    assert replayed is not None
    calls = replayed.ordinals
    gains = (gain_ns,) * len(calls)
    return Finding(
        kind=named("slow"),
        ranks=(rank,),
        blocks=(block,),
        region=region,
        calls=calls,
        costly_calls=calls,
        gains_ns=gains,
        id=f"{region}/rank-{rank}/block-{block}",
    )


def case_of(seed: int, machine: Machine, rounds: int, calls: int, *, is_planted: bool) -> Case:
    """The planted place of a seed, or one that is not slow."""
    rng = np.random.default_rng([7, seed])
    region, slow = REGIONS[int(rng.integers(2))], int(rng.integers(machine.num_places))
    factor = round(float(rng.uniform(1.5, 3.0)), 2)
    name, at = region, slow
    if not is_planted:
        name, at = REGIONS[1 - REGIONS.index(region)], int(rng.integers(machine.num_places))
    workload = ("-m", "benchmarks.verified.workload", "--calls", str(calls), *machine.arguments)
    command = (sys.executable, *workload, "--slow", f"{region}:{slow}:{factor}")
    rank, block = divmod(at, machine.blocks)
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run.kprof"
        record(RecordRequest(command, run, is_quiet=True))
        summary = Summary.of(Trace.open(run))
        # A call is both regions of the slower place.
        gain_ns = float(call_lengths(summary).median()) * (factor - 1) / (factor + 1)
        finding = finding_at(summary, name, rank, block, gain_ns)
        tried = experiment_of(summary, finding, least_effect=-10.0)
        found = verify(Proof(finding, tried, command, None, rounds), run)
    numbers = (found.promised_shown, found.shown, found.low, found.high)
    verdict = found.verdict.value
    return Case(seed, is_planted, found.region, rank, block, factor, *numbers, verdict)


def say(case: Case) -> None:
    """One line on stderr."""
    shown, promised = percent(case.measured), percent(case.promised)
    what = "planted" if case.is_planted else "not planted"
    text = f"case {case.seed}, {what}: {shown} showed, {promised} promised: {case.verdict}"
    print(text, file=sys.stderr, flush=True)


def cases_of(arguments: argparse.Namespace, in_turn: Path) -> Iterator[Case | str]:
    """The cases, as soon as each is known, or why there is none."""
    is_gpu = arguments.target == "cuda"
    machine = Machine("cuda", 1, 4, in_turn) if is_gpu else Machine("cpu", 2, 1)
    numbers = (machine, arguments.rounds, arguments.calls)
    both = [(seed, is_planted) for seed in range(arguments.cases) for is_planted in (True, False)]
    if arguments.at_a_time == 1:
        # Without a pool whoever stops this stops the recordings, too.
        for seed, is_planted in both:
            yield case_of(seed, *numbers, is_planted=is_planted)
        return
    with ProcessPoolExecutor(arguments.at_a_time) as pool:
        tried = [pool.submit(case_of, seed, *numbers, is_planted=each) for seed, each in both]
        for done in as_completed(tried):
            yield repr(error) if (error := done.exception()) else done.result()


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
    failed: list[str] = []
    with tempfile.NamedTemporaryFile() as turn:
        for found in cases_of(arguments, Path(turn.name)):
            if isinstance(found, str):
                print(found, file=sys.stderr, flush=True)
                failed.append(found)
                continue
            say(found)
            cases.append(found)
            cases.sort(key=lambda case: (case.seed, not case.is_planted))
            if arguments.output is not None:
                write(head | figures_of(cases, failed), arguments.output)
    if not cases:
        raise SystemExit("there is no case")
    show_and_write(head | figures_of(cases, failed), arguments.output)
    raise SystemExit(bool(failed))


def figures_of(cases: Sequence[Case], failed: Sequence[str]) -> dict[str, object]:
    """What the benchmark says after these cases."""
    return {
        "bars": {"right_sign": 1.0, "near": 0.9},
        "failed": list(failed),
        "planted": sum(case.is_planted for case in cases),
        "right_sign": float(np.mean([case.has_right_sign for case in cases])),
        "near": float(np.mean([case.is_near for case in cases])),
        "confirmed": float(np.mean([case.verdict == "confirmed" for case in cases])),
        "too_noisy": float(np.mean(["noisy" in case.verdict for case in cases])),
        "cases": list(map(asdict, cases)),
    }


if __name__ == "__main__":
    main()
