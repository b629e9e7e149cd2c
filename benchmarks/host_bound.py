"""What writing events while a program runs costs a program that is bound by its host: the length of its steps.

    python -m benchmarks.host_bound [--seconds 5] [--rounds 3]

CPU target, one rank, no device. A step is 1 ms of Python between 13 calls of C that release the interpreter's lock, as
launches of kernels do. Before each, a launch of 400 blocks with 61 spans each is recorded: 24 million events a second,
more than any thread decodes. Ways take turns: nothing is written before the end (the arena drops what it has no room
for), `--drain` writes as fast as it can, and `--inductor` rests between its blocks (`drain_share`). Compare ratios:
other programs on the same cores make all of them slower.
"""

from __future__ import annotations

import ctypes
import statistics
import tempfile
import time
from pathlib import Path

import kprof
from benchmarks import harness
from benchmarks.finishing import record_full
from kprof.trace import Trace

WAYS = {
    "plain": kprof.Retention(),
    "drain": kprof.Retention(drain=True),
    "a share of 0.05": kprof.Retention(drain=True, drain_share=0.05),
}
LAUNCHES = 13
ARENA_BYTES = 256 << 20
_BYTES = ctypes.create_string_buffer(60_000)


def work(size: int) -> None:
    """A step of so much work."""
    for _ in range(LAUNCHES):
        sum(i * i for i in range(size))
        ctypes.memset(_BYTES, 0, len(_BYTES))


def size_of_step() -> int:
    """How much work takes a millisecond where nobody is in the way."""
    times_s = []
    for _ in range(200):
        begin_s = time.thread_time()
        work(400)
        times_s.append(time.thread_time() - begin_s)
    return max(1, int(400 * 1e-3 / min(times_s)))


def run(retention: kprof.Retention, seconds: float, size: int) -> dict[str, float]:
    """Lengths of steps in ms, and what was recorded."""
    times_ms = []
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "run.kprof"
        with kprof.session(output, arena_bytes=ARENA_BYTES, retention=retention) as recorder:
            end_s = time.perf_counter() + seconds
            while (begin_s := time.perf_counter()) < end_s:
                record_full(recorder, 400, time.monotonic_ns())
                begin_s = time.perf_counter()
                work(size)
                times_ms.append(1e3 * (time.perf_counter() - begin_s))
                recorder.step()
        counts = Trace.open(output).ranks[0].counts
    return {
        "steps": len(times_ms),
        "mean_ms": round(statistics.mean(times_ms), 3),
        "median_ms": round(statistics.median(times_ms), 3),
        "p90_ms": round(statistics.quantiles(times_ms, n=10)[-1], 3),
        "recorded": counts.recorded,
        "left_out_calls": counts.left_out_calls,
    }


def main() -> None:
    parser = harness.options(__doc__)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    size = size_of_step()
    runs: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    for _ in range(arguments.rounds):
        for way, retention in WAYS.items():
            runs[way].append(run(retention, arguments.seconds, size))
            print(way, runs[way][-1], flush=True)
    means = {way: statistics.median(each["mean_ms"] for each in runs[way]) for way in runs}
    harness.show_and_write(
        harness.context("python -m benchmarks.host_bound")
        | {
            "percent_longer": {
                way: round(100 * (mean / means["plain"] - 1), 1) for way, mean in means.items()
            },
            "runs": runs,
        },
        arguments.output,
    )


if __name__ == "__main__":
    main()
