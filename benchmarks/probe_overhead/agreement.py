"""Is what the trace says true? Both clocks on the same spans, and the trace against GPU events around the launch."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterator

import numpy as np
import torch

from benchmarks.harness import spread
from benchmarks.probe_overhead.bench import Bench
from instrumented_kernels.queued_time import queued_us

# A step takes some ns: spans of 2 us to a millisecond, at random.
SPAN_STEPS = (1_000, 200_000)
NUM_SPANS = 300
SPAN_BOUNDS_US = (0, 10, 20, 50, 100, 200, 500, 2000)
LONG_NS = 10_000
NUM_PASSES = 12
NUM_READINGS = 4000
READINGS_PER_WINDOW = 500
NUM_RATES = 401


def clock_agreement(bench: Bench) -> dict[str, object]:
    """Durations in cycles against the real-time clock's, read beside them in the kernel."""
    bench.reset()
    low, high = SPAN_STEPS
    random = np.random.default_rng(1)
    steps = np.exp(random.uniform(np.log(low), np.log(high), NUM_SPANS))
    bench.spans("cycles", torch.from_numpy(steps))
    events, decoder = bench.decoded()
    realtime_ns = events["payload"].to_numpy() * 1e9 / bench.clock.ticks_per_second
    signed = events["duration_ns"].to_numpy() - realtime_ns
    difference = np.abs(signed)
    is_long = realtime_ns >= LONG_NS
    assert decoder.cycle_clock is not None
    step_ns, error_ns = bench.clock.step_ns, decoder.cycle_clock.error_ns
    assert decoder.tally.counts.dropped == decoder.tally.counts.unknown_region == 0
    return {
        "within the step, by length of the span in us": {
            name: round(float((part <= bench.clock.step_ns).mean()), 4)
            for name, part in _by_length(realtime_ns, difference)
        },
        "mean of the signed difference, ns": round(float(signed[is_long].mean()), 1),
        "spans of 10 us and more": int(is_long.sum()),
        "largest difference, ns": round(float(difference[is_long].max()), 1),
        "99th percentile, ns": round(float(np.quantile(difference[is_long], 0.99)), 1),
        "median difference, ns": round(float(np.median(difference[is_long])), 1),
        "within the coarser clock's step": round(float((difference[is_long] <= step_ns).mean()), 6),
        "within the step and the stated error of the cycle clock": round(
            float((difference[is_long] <= step_ns + error_ns).mean()), 6
        ),
        "step of the real-time clock, ns": step_ns,
        "cycles per second": round(decoder.cycle_clock.cycles_per_second),
        "largest distance of an anchor from the line, ns": round(error_ns, 1),
    }


def clock_steps(bench: Bench) -> dict[str, object]:
    """How far readings of the real-time clock are from even steps of the cycle counter, over too
    little time for drift.

    With even steps, all readings [r, r + step) of a window are met by one line through the cycles,
    with room to spare. Where none meets them all, the best one misses some by so much.
    """
    readings = bench.readings(NUM_READINGS).numpy()
    missed_ns = [
        _missed_ns(window, bench.clock.step_ns)
        for of_sm in readings
        for window in np.array_split(of_sm, len(of_sm) // READINGS_PER_WINDOW)
    ]
    return {
        "windows": len(missed_ns),
        "length of a window, us": round(
            float(np.diff(readings[:, ::READINGS_PER_WINDOW, 0]).mean()) / 1e3, 1
        ),
        "a reading is off by, ns, median of the windows": round(float(np.median(missed_ns)), 1),
        "a reading is off by, ns, at worst": round(max(missed_ns), 1),
    }


def _missed_ns(readings: np.ndarray, step_ns: float) -> float:
    """How far at least some reading lies outside [r, r + step) on the best line.

    0 when there is a line through all.
    """
    realtime, cycles = (readings - readings[0]).astype(np.float64).T
    rate = realtime[-1] / cycles[-1]
    # Two readings bound the rate to two steps over the window.
    rates = rate + np.linspace(-2, 2, NUM_RATES) * step_ns / cycles[-1]
    lead = realtime - rates[:, np.newaxis] * cycles
    return max(0.0, float((np.ptp(lead, axis=1) - step_ns).min()) / 2)


def _by_length(realtime_ns: np.ndarray, difference: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    for low_us, high_us in itertools.pairwise(SPAN_BOUNDS_US):
        is_inside = (realtime_ns >= low_us * 1e3) & (realtime_ns < high_us * 1e3)
        if is_inside.any():
            yield f"{low_us} to {high_us}", difference[is_inside]


def phase_agreement(bench: Bench, repeats: int) -> dict[str, object]:
    """The trace of a launch against GPU events around it, for both clocks."""
    return {clock: _phases(bench, clock, repeats) for clock in bench.libraries}


def _phases(bench: Bench, clock: str, repeats: int) -> dict[str, object]:
    """A launch lasts as long as the block that ends last: its phases, summed, can be compared with GPU events."""
    event_us, first_to_last, summed = [], [], []
    work = bench.passes(clock, NUM_PASSES)
    for _ in range(repeats + 2):
        bench.reset()
        event_us.append(queued_us(work))
        events, _ = bench.decoded()
        ends = events["start_ns"] + events["duration_ns"]
        first_to_last.append((ends.max() - events["start_ns"].min()) / 1e3)
        last_block = events["block"][ends.idxmax()]
        summed.append(events["duration_ns"][events["block"] == last_block].sum() / 1e3)
    off = [100 * (a / b - 1) for a, b in zip(first_to_last, event_us, strict=True)][2:]
    off_summed = [100 * (a / b - 1) for a, b in zip(summed, event_us, strict=True)][2:]
    return {
        "GPU events, us": spread(event_us[2:]),
        "trace, first start to last end, us": spread(first_to_last[2:]),
        "trace, phases summed, block that ends last, us": spread(summed[2:]),
        "first start to last end against GPU events, percent": round(statistics.median(off), 3),
        "phases summed against GPU events, percent": round(statistics.median(off_summed), 3),
        "worst of all launches, percent": round(max(map(abs, [*off, *off_summed])), 3),
    }
