"""Two kernels on ONE GPU play the calibration's ping-pong: they share a clock, so the true offset is 0."""

from __future__ import annotations

from typing import Any

import torch

from kprof.clocks.calibration import effort_of, load_calibration
from kprof.clocks.offset import OffsetSample, sample_from_readings
from kprof.devices.targets import target_of_device

REPEATS = 25
WARM_UPS = 2
STEP_NS = 32.0


def play(repeats: int) -> list[OffsetSample]:
    """Samples on the current GPU; flags of the two sides lie in the same memory."""
    target = target_of_device("cuda")
    library, effort = load_calibration(target), effort_of(target)
    flag_bytes = effort.num_lanes * library.kprof_flag_stride_bytes()
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]
    flags = torch.zeros(2 * flag_bytes, dtype=torch.uint8, device="cuda")
    size = (2, effort.num_lanes, effort.num_rounds, 2)
    samples = []
    for repeat in range(repeats):
        readings = torch.zeros(size, dtype=torch.int64, device="cuda")
        torch.cuda.synchronize()
        for side, stream in enumerate(streams):
            own, peer = (
                flags.data_ptr() + side * flag_bytes,
                flags.data_ptr() + (1 - side) * flag_bytes,
            )
            library.kprof_pingpong(
                *(own, peer, readings[side].data_ptr(), effort.num_lanes, effort.num_rounds),
                *(1 + repeat * effort.num_rounds, 1 - side, 2_000_000_000, stream.cuda_stream),
            )
        torch.cuda.synchronize()
        samples.append(sample_from_readings(*readings.cpu().numpy(), STEP_NS))
    return samples[WARM_UPS:]


def measure() -> dict[str, Any]:
    """What the calibration says on every GPU of this machine, as plain data."""
    samples = []
    for device in range(torch.cuda.device_count()):
        torch.cuda.set_device(device)
        samples += play(REPEATS)
    stated = [sample.step_ns + sample.spread_ns for sample in samples]
    return {
        "num_samples": len(samples),
        "worst_error_ns": max(abs(sample.offset_ns) for sample in samples),
        "smallest_step_plus_spread_ns": min(stated),
        "within_step_plus_spread": sum(
            abs(sample.offset_ns) <= bound for sample, bound in zip(samples, stated, strict=True)
        ),
        "round_trip_ns": [
            min(s.round_trip_ns for s in samples),
            max(s.round_trip_ns for s in samples),
        ],
    }
