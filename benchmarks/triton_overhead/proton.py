"""Proton's intra-kernel mode on the same copy: what it costs, how many events its trace has, whether times agree."""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path

import torch
import triton.profiler as proton
import triton.profiler.language as pl

from benchmarks.probe_overhead.bench import spread
from benchmarks.triton_overhead.bench import (
    SCHEMES,
    Launch,
    TritonBench,
    kernel_times_us,
    proton_scheme,
    spans_in_trace,
    time_us,
)


def proton_table(
    bench: TritonBench, num_programs: int, num_events: int, repeats: int
) -> dict[str, object]:
    """The copy with Proton; `num_events` is how many spans a warp group of its should have written, rows here."""
    pl.enable_semantic("triton")
    plain, recorded = (
        bench.copy(scheme, num_programs) for scheme in (SCHEMES["none"], proton_scheme())
    )
    plain()
    floor = kernel_times_us(plain, "copy", repeats)
    with tempfile.TemporaryDirectory() as folder:
        times, around = _timed(recorded, Path(folder) / "timed", repeats)
        trace = _trace(recorded, Path(folder) / "trace")
        spans = spans_in_trace(trace, "row")
    extent_us = max(end for _, end in spans) - min(begin for begin, _ in spans) if spans else 0.0
    return {
        "kernel alone, plain, us": spread(floor),
        "kernel alone, us": spread(times),
        "slowdown_percent": round(
            100 * (statistics.median(times) / statistics.median(floor) - 1), 2
        ),
        "launch with Proton's work on the host, us": spread(around),
        "events": len(spans),
        "rows": num_events,
        "first to last event, of the kernel": round(extent_us / statistics.median(times), 3),
    }


def _timed(launch: Launch, name: Path, repeats: int) -> tuple[list[float], list[float]]:
    session = proton.start(str(name), backend="instrumentation", data="tree")
    launch()
    times = kernel_times_us(launch, "copy", repeats)
    around = [time_us(launch) for _ in range(repeats)]
    torch.cuda.synchronize()
    proton.finalize(session)
    return times, around


def _trace(launch: Launch, name: Path) -> Path:
    session = proton.start(str(name), backend="instrumentation", data="trace")
    launch()
    torch.cuda.synchronize()
    proton.finalize(session)
    return next(path for path in name.parent.glob(f"{name.name}*") if path.is_file())
