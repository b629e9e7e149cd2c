"""Does an explanation name what was planted in a real kernel, and predict what taking it out gains?

Two GPUs exchange rows (`kernel.hip`). Every recording has six plants, each for 12 launches, and the
same launches without one: a slow block, a slow rank, a late rank, a straggler that moves, a rank
that is slow in 3 of 12 launches, and a block with four times the items. All of that once with
launches that start together, and once with starts that are up to 15 us apart. For every plant and
recording:

    first     the first finding is the plant: kind, ranks, blocks, launches
    error     predicted gain against what the launches without the plant took less, as a part of the latter; without
              the late rank ranks start together: a finding takes away its plant and what it is late by chance

    python -m benchmarks.plants [--runs 5] [--json benchmarks/results/plants.json]
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.plants.schedule import (
    BALANCED,
    PLANTS,
    Section,
    has_uneven_starts_without,
    is_right,
    sections,
)
from kprof.analysis import Summary, calls
from kprof.analysis.findings import explain_trace
from kprof.recording.launcher.record import RecordRequest, record
from kprof.trace import Trace

ALLOWED_ERROR = 0.10


@dataclass(frozen=True)
class Outcome:
    """One plant in one recording; times are of a launch, in us."""

    run: int
    plant: str
    is_uneven: bool
    with_it_us: float
    without_us: float
    gain_us: float
    predicted_us: float
    is_first: bool
    said: tuple[str, ...]

    @property
    def error(self) -> float:
        """Of the predicted gain."""
        return self.predicted_us / self.gain_us - 1


def record_all(output: Path, target: str, rounds: int, threads: int) -> Trace:
    """One recording of all plants."""
    module = ("-m", "benchmarks.plants.ranks", "--target", target)
    sizes = ("--rounds", str(rounds), "--threads", str(threads))
    request = RecordRequest((sys.executable, *module, *sizes), output, num_procs=2)
    recording = record(request)
    if recording.exit_code:
        raise SystemExit(f"the recording ended with exit code {recording.exit_code}")
    return Trace.open(output)


def outcomes(run: int, trace: Trace) -> list[Outcome]:
    """Every plant of a recording against the same launches without it."""
    lengths = calls(Summary.of(trace)).set_index("ordinal")["length_ns"] / 1e3

    def mean_us(section: Section) -> float:
        return float(lengths.loc[list(section.ordinals)].mean())

    found = []
    for section in sections():
        without = statistics.mean(
            mean_us(other)
            for other in sections()
            if other.plant == BALANCED and other.is_uneven == has_uneven_starts_without(section)
        )
        part = explain_trace(trace.select(launches=section.ordinals))
        count = len(section.ordinals)
        first = part.findings[0] if part.findings else None
        found.append(
            Outcome(
                run,
                section.plant,
                section.is_uneven,
                round(mean_us(section), 2),
                round(without, 2),
                round(mean_us(section) - without, 2),
                round(first.gain_ns / 1e3 / count, 2) if first else 0.0,
                first is not None and is_right(section.plant, first, section.first),
                tuple(finding.sentence for finding in part.findings),
            )
        )
    return found


def _is_as_it_should_be(outcome: Outcome) -> bool:
    """Without a plant there is nothing to find, unless starts are uneven: those cost time."""
    if outcome.plant == BALANCED:
        return outcome.is_uneven or not outcome.said
    return outcome.is_first and abs(outcome.error) <= ALLOWED_ERROR


def table(found: list[Outcome]) -> list[dict[str, object]]:
    """A row per plant and way of starting, over all recordings."""
    rows: list[dict[str, object]] = []
    for is_uneven in (False, True):
        for plant in PLANTS:
            part = [o for o in found if (o.plant, o.is_uneven) == (plant, is_uneven)]
            rows.append(
                {
                    "plant": plant,
                    "starts": "up to 15 us apart" if is_uneven else "together",
                    "with_it_us": statistics.median(o.with_it_us for o in part),
                    "without_us": statistics.median(o.without_us for o in part),
                    "gain_us": statistics.median(o.gain_us for o in part),
                    "predicted_us": statistics.median(o.predicted_us for o in part),
                    "worst_error": round(max((o.error for o in part), key=abs), 4),
                    "first_in": f"{sum(o.is_first for o in part)} of {len(part)}",
                }
            )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--target", default="auto")
    parser.add_argument("--rounds", type=int, default=1500, help="of arithmetic for an item")
    parser.add_argument("--threads", type=int, default=128, help="of a block")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found: list[Outcome] = []
    device = ""
    for run in range(options.runs):
        with tempfile.TemporaryDirectory() as folder:
            output = Path(folder) / "plants.kprof"
            trace = record_all(output, options.target, options.rounds, options.threads)
            device = trace.ranks[0].device
            found += outcomes(run, trace)
    planted = [outcome for outcome in found if outcome.plant != BALANCED]
    for row in table(planted):
        print(row)
    for outcome in found:
        if not _is_as_it_should_be(outcome):
            print("not as it should be:", outcome)
    if options.json:
        document = {
            "command": f"python -m benchmarks.plants --runs {options.runs}",
            "machine": f"{platform.machine()}, 2 x {device}",
            "date": time.strftime("%Y-%m-%d"),
            "plants": table(planted),
            "runs": [asdict(outcome) for outcome in found],
        }
        options.json.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
