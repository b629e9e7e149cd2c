"""Proton's intra-kernel mode on the same kernels: what it costs, how many events its trace has, whether times agree."""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path

import torch
import triton.profiler as proton
import triton.profiler.language as pl

from benchmarks.harness import percent_above, spread
from benchmarks.triton_overhead.bench import (
    NUM_WARPS,
    Launch,
    kernel_times_us,
    spans_in_trace,
)
from instrumented_kernels.queued_time import queued_us

# Every warp writes when a scope begins and when it ends: a word for the scope and one for the
# clock.
BYTES_PER_EVENT = 16


def enable() -> None:
    """Lets kernels use Proton's scopes. From then on, kernels are compiled with its hooks."""
    pl.enable_semantic("triton")


def proton_table(
    kernel: str, plain: Launch, recorded: Launch, scopes: dict[str, int], repeats: int
) -> dict[str, object]:
    """One kernel with Proton.

    `scopes` is how often a launch goes through each, in each of its warps.
    """
    plain()
    floor = kernel_times_us(plain, kernel, repeats)
    with tempfile.TemporaryDirectory() as folder:
        times, around = _timed(recorded, kernel, Path(folder) / "timed", repeats)
        trace = _trace(recorded, Path(folder) / "trace")
        spans = [span for scope in scopes for span in spans_in_trace(trace, scope)]
    extent_us = max(end for _, end in spans) - min(begin for begin, _ in spans) if spans else 0.0
    expected = sum(scopes.values()) * NUM_WARPS
    return {
        "kernel alone, plain, us": spread(floor),
        "kernel alone, us": spread(times),
        "slowdown_percent": percent_above(floor, times),
        "launch with Proton's work on the host, us": spread(around),
        "events": len(spans),
        "lost": expected - len(spans),
        "bytes_per_event": BYTES_PER_EVENT,
        "first to last event, of the launch": round(extent_us / statistics.median(times), 3),
    }


def _timed(
    launch: Launch, kernel: str, name: Path, repeats: int
) -> tuple[list[float], list[float]]:
    session = proton.start(str(name), backend="instrumentation", data="tree")
    launch()
    times = kernel_times_us(launch, kernel, repeats)
    around = [queued_us(launch) for _ in range(repeats)]
    torch.cuda.synchronize()
    proton.finalize(session)
    return times, around


def _trace(launch: Launch, name: Path) -> Path:
    session = proton.start(str(name), backend="instrumentation", data="trace")
    launch()
    torch.cuda.synchronize()
    proton.finalize(session)
    return next(path for path in name.parent.glob(f"{name.name}*") if path.is_file())
