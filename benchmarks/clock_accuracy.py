"""Clocks with injected truth on the CPU target: are ranks aligned within the stated bound, and how
wide is it?

    python -m benchmarks.clock_accuracy [--cases 200] [--output FILE]

Every case runs the real calibration kernels, before and after a pause, between ranks (threads) with
planted clocks: offsets up to 10 ms either way, drifts up to 100 ppm. The aligned times of all ranks
are compared at moments in between. Cases have 2 ranks, and 3 that all play with each other (one in
four).
"""

from __future__ import annotations

import statistics
import sys
import time
from pathlib import Path
from typing import Any

from kprof.clocks.calibration import all_pairs

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "kernels"))

from planted_clocks import calibrate, random_plants

from benchmarks import harness


def run_cases(num_cases: int) -> dict[str, Any]:
    """All cases, as plain data; times in ns."""
    errors, bounds, seconds, num_aligned = [], [], [], 0
    for seed in range(num_cases):
        begin_s = time.perf_counter()
        num_ranks = 3 if seed % 4 == 3 else 2
        result = calibrate(random_plants(seed, num_ranks), turns_of=all_pairs)
        seconds.append(time.perf_counter() - begin_s)
        num_aligned += result.num_outside() == 0
        errors += result.errors_ns().values()
        bounds += [pair.bound_ns for pair in result.alignment.pairs]
    return {
        "cases": num_cases,
        "aligned_within_bound": num_aligned,
        "median_bound_ns": statistics.median(bounds),
        "bound_ns_10_90": [statistics.quantiles(bounds, n=10)[i] for i in (0, 8)],
        "median_error_ns": statistics.median(errors),
        "worst_error_ns": max(errors),
        "median_case_s": statistics.median(seconds),
    }


def main() -> None:
    parser = harness.options(__doc__)
    parser.add_argument("--cases", type=int, default=200)
    arguments = parser.parse_args()
    command = f"python -m benchmarks.clock_accuracy --cases {arguments.cases}"
    result = harness.context(command) | run_cases(arguments.cases)
    harness.show_and_write(result, arguments.output)


if __name__ == "__main__":
    main()
