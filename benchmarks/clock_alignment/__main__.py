"""Clocks of several GPUs over a minute: bounds, calibrations held out, causality with alignment and
without.

    python -m benchmarks.clock_alignment [--nproc 4] [--seconds 60] [--target auto] [--output FILE] [--samples FILE]

Records the all-to-all through `kprof record` with a calibration about every 2 s, then asks: how
wide is the bound of every pair; does a calibration that is held out of the fit lie within the bound
that the rest states; how many rounds of games in between, which no alignment has seen, contradict it
by more than its bound; how many waits ended before their send began, on one clock, on the clock that
the messages alone give (kprof align), and on each rank's own.

On two GPUs the goal is a bound of 150 ns, 10,000 rounds without a miss, and no early wait. A minute
and a half with --seconds 40.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace

from benchmarks import harness
from benchmarks.harness import show_and_write
from kprof.aligning.align import align
from kprof.analysis.summary import Summary
from kprof.analysis.waiting import late_sender
from kprof.capture.directory import Capture
from kprof.capture.manifest import Alignment, ClockSegment, RankAlignment
from kprof.clocks.alignment import Calibration, align_clocks
from kprof.clocks.offset import OffsetSample, OtherPath, Pair
from kprof.errors import KprofError
from kprof.recording.launcher.record import RecordRequest, record
from kprof.trace import Trace
from kprof.trace.views import Selection, Source

WORKLOAD = str(Path(__file__).with_name("workload.py"))


def main() -> None:
    parser = harness.options(__doc__)
    parser.add_argument("--nproc", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--target", default="auto")
    parser.add_argument("--shape", default="64,6,2048,32")
    parser.add_argument("--samples", type=Path, help="keep the calibrations' samples here")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        samples = arguments.samples or Path(folder) / "samples.json"
        capture = _record(arguments, Path(folder) / "run.kprof", samples)
        result = measure(capture, json.loads(samples.read_text()))
    size = f"--nproc {arguments.nproc} --seconds {arguments.seconds:g}"
    result["command"] = f"python -m benchmarks.clock_alignment {size}"
    show_and_write(result, arguments.output)


def _record(arguments: argparse.Namespace, run: Path, samples: Path) -> Capture:
    line = ["python", WORKLOAD, "--target", arguments.target, "--shape", arguments.shape]
    line += ["--seconds", str(arguments.seconds), "--samples", str(samples)]
    recording = record(
        RecordRequest(tuple(line), run, num_procs=arguments.nproc, arena_bytes=256 << 20)
    )
    assert recording.exit_code == 0, f"the workload exited with {recording.exit_code}"
    return recording.capture


def measure(capture: Capture, seen: dict[str, Any]) -> dict[str, Any]:
    """Everything that the docstring asks, as plain data."""
    manifest = capture.manifest
    alignment = manifest.alignment
    assert alignment is not None, manifest.alignment_note
    names = seen["fields"][2:]
    calibrations = [
        {
            (a, b): msgspec.convert(dict(zip(names, values, strict=True)), OffsetSample)
            for a, b, *values in each
        }
        for each in seen["calibrations"]
    ]
    trace = Trace.open(capture)
    unaligned = _without_alignment(capture)
    info = manifest.ranks[0]
    return {
        "date": datetime.now(timezone.utc).date().isoformat(),
        "device": f"{len(manifest.ranks)} x {info.device}",
        "clock_step_ns": info.clock.step_ns,
        "seconds": manifest.duration_s,
        "num_calibrations": len(calibrations),
        "align_if_due_us": seen["align_if_due_us"],
        "pairs": [msgspec.to_builtins(pair) for pair in alignment.pairs],
        "widest_bound_ns": max(pair.bound_ns for pair in alignment.pairs),
        "widest_rigorous_bound_ns": max(pair.rigorous_bound_ns for pair in alignment.pairs),
        "notes": list(alignment.notes),
        "held_out": held_out(calibrations),
        "held_out_rounds": {
            name: held_out_rounds(alignment, rounds) for name, rounds in seen["held_out"].items()
        },
        "from_messages": from_messages(capture, alignment, calibrations[-1][0, 1]),
        "causality": {
            "aligned": _causality(trace),
            "alignment_switched_off": _causality(unaligned),
        },
    }


def from_messages(capture: Capture, alignment: Alignment, sample: OffsetSample) -> dict[str, Any]:
    """The same recording on the clock that its messages alone give: how far off ranks 0 and 1 are there."""
    try:
        anew = align(capture.path, capture.path.with_name("anew.kprof"), force=True)
    except KprofError as error:
        return {"refused": str(error)}
    by_messages, by_calibration = (
        _predicted_ns(each, (0, 1), sample) for each in (anew.alignment, alignment)
    )
    return {
        "bound_ns": anew.alignment.bound_between_ns(0, 1),
        "differs_ns": by_messages - by_calibration,
        "causality": _causality(Trace.open(Capture.open(anew.path))),
    }


def held_out(calibrations: list[Calibration]) -> dict[str, Any]:
    """Each calibration but the first and the last is left out in turn, and predicted from the rest.

    What another path says has noise of its own, which its bound has on top.
    """
    errors, bounds = [], []
    for idx in range(1, len(calibrations) - 1):
        rest = align_clocks("held out", 0, calibrations[:idx] + calibrations[idx + 1 :])
        for pair, sample in calibrations[idx].items():
            for path in (sample, *sample.others):
                errors.append(abs(_predicted_ns(rest, pair, path) - path.offset_ns))
                noise_ns = path.noise_ns if isinstance(path, OtherPath) else 0.0
                bounds.append(rest.bound_between_ns(*pair) + noise_ns)
    within = sum(error <= bound for error, bound in zip(errors, bounds, strict=True))
    # Short runs have no calibration between two others.
    ordered = sorted(errors) or [0.0]
    return {
        "num_predictions": len(errors),
        "within_bound": within,
        "share_within": within / max(1, len(errors)),
        "median_error_ns": ordered[len(ordered) // 2],
        "worst_error_ns": ordered[-1],
        "widest_bound_ns": max(bounds, default=0.0),
    }


def held_out_rounds(alignment: Alignment, rounds: list[list[int]]) -> dict[str, Any]:
    """Of rounds of ranks 0 and 1 (the least and the most that 1 - 0 can be, and when): how many lie
    beside the offset by more than its bound."""
    bound_ns, misses, beside_ns = alignment.bound_between_ns(0, 1), 0, [0.0]
    for least, most, at_ns in rounds:
        offset_ns = _offset_ns(alignment, (0, 1), at_ns, (least + most) // 2)
        beside_ns.append(max(least - offset_ns, offset_ns - most))
        misses += beside_ns[-1] > bound_ns
    width = np.median([most - least for least, most, _ in rounds]) if rounds else 0.0
    return {
        "rounds": len(rounds),
        "misses": misses,
        "worst_beside_ns": max(beside_ns),
        "median_width_ns": float(width),
    }


def _predicted_ns(alignment: Alignment, pair: Pair, sample: OffsetSample | OtherPath) -> float:
    """What the alignment says for the offset of the pair when the second's clock showed `local_ns`."""
    return _offset_ns(alignment, pair, sample.local_ns, round(sample.offset_ns))


def _offset_ns(alignment: Alignment, pair: Pair, local_ns: int, about_ns: int) -> float:
    """The same where the offset is known to some microseconds."""
    first, second = (next(e for e in alignment.ranks if e.rank == rank) for rank in pair)
    return first.correction_ns(local_ns - about_ns) - second.correction_ns(local_ns)


def _without_alignment(capture: Capture) -> Trace:
    """The same events with every rank on its own clock, taken for aligned."""
    ranks = tuple(
        RankAlignment(info.rank, (ClockSegment(0, 0.0),), 0.0) for info in capture.manifest.ranks
    )
    manifest = replace(capture.manifest, alignment=Alignment("none", 0, ranks))
    files = tuple(capture.events_path(info.rank) for info in manifest.ranks)
    return Trace(manifest, Source(files=files, checksums=capture.checksums), Selection())


def _causality(trace: Trace) -> dict[str, int]:
    table = late_sender(Summary.of(trace))
    names = ("flows", "violations", "violations_beyond_bound")
    return {name: int(table[name].sum()) for name in names}


if __name__ == "__main__":
    main()
