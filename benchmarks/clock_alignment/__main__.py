"""Clocks of several GPUs over a minute: bounds, calibrations held out, causality with alignment and
without.

    python -m benchmarks.clock_alignment [--nproc 4] [--seconds 60] [--target auto] [--output FILE] [--samples FILE]

Records the all-to-all through `kprof record` with a calibration about every 2 s, then asks: how
wide is the bound of every pair; does a calibration that is held out of the fit lie within the bound
that the rest states; how many waits ended before their send began, on one clock and on each rank's
own. On GPUs also: what the same ping-pong says where the truth is known, between two kernels of one
GPU (known_truth.py).
"""

from __future__ import annotations

import argparse
import json
import tempfile
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from benchmarks import harness
from benchmarks.clock_alignment import known_truth
from benchmarks.harness import show_and_write
from kprof.analysis.summary import Summary
from kprof.analysis.waiting import late_sender
from kprof.capture.directory import Capture
from kprof.capture.manifest import Alignment, ClockSegment, RankAlignment
from kprof.clocks.alignment import Calibration, align_clocks
from kprof.clocks.offset import OffsetSample, Pair
from kprof.devices.targets import Target
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
    if any(pair["method"].startswith(Target.CUDA.value) for pair in result["pairs"]):
        result["one_gpu_known_truth"] = known_truth.measure()
    result["command"] = (
        f"python -m benchmarks.clock_alignment --nproc {arguments.nproc} --seconds "
        f"{arguments.seconds:g}"
    )
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
        {(a, b): OffsetSample(**dict(zip(names, values, strict=True))) for a, b, *values in each}
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
        "causality": {
            "aligned": _causality(trace),
            "alignment_switched_off": _causality(unaligned),
        },
    }


def held_out(calibrations: list[Calibration]) -> dict[str, Any]:
    """Each calibration but the first and the last is left out in turn, and predicted from the rest."""
    errors, bounds = [], []
    for idx in range(1, len(calibrations) - 1):
        rest = align_clocks("held out", 0, calibrations[:idx] + calibrations[idx + 1 :])
        for pair, sample in calibrations[idx].items():
            errors.append(abs(_predicted_ns(rest, pair, sample) - sample.offset_ns))
            bounds.append(rest.bound_between_ns(*pair))
    within = sum(error <= bound for error, bound in zip(errors, bounds, strict=True))
    ordered = sorted(errors)
    return {
        "num_predictions": len(errors),
        "within_bound": within,
        "share_within": within / len(errors),
        "median_error_ns": ordered[len(ordered) // 2],
        "worst_error_ns": ordered[-1],
        "widest_bound_ns": max(bounds),
    }


def _predicted_ns(alignment: Alignment, pair: Pair, sample: OffsetSample) -> float:
    """What the alignment says for the offset of the pair when the second's clock showed `local_ns`."""
    ranks = {entry.rank: entry for entry in alignment.ranks}
    first_local_ns = sample.local_ns - round(sample.offset_ns)
    return ranks[pair[0]].correction_ns(first_local_ns) - ranks[pair[1]].correction_ns(
        sample.local_ns
    )


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
