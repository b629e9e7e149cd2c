"""A run that is longer than its memory for events, some of its calls slow; test_long_runs_gpu.py starts it.

usage: run_long_run.py OUTPUT {ring,slowest} {eager,graph} DEVICE NUM_CALLS SLOW_CALL,...
"""

from __future__ import annotations

import sys
import time

import kprof
from benchmarks.draining import Work
from benchmarks.harness import captured
from kprof.devices import gpu
from kprof.recording.rank.null_recorder import NullRecorder

NUM_BLOCKS = 16
USUAL_S, SLOW_S = 0.01, 0.25
# Looks come 20 times a second. Between two of them, graphs take 400 chunks; a quarter of an arena
# has 1024.
RETENTIONS = {
    "ring": kprof.Retention(ring_bytes=32 << 20),
    "slowest": kprof.Retention(keep_slowest=4),
}
ARENA_BYTES = 16 << 20


def main(output: str, kept: str, mode: str, device: str, num_calls: str, slow: str) -> None:
    device = gpu.with_number(device)
    work = Work.on(device, NUM_BLOCKS, 1e6)
    # The first launch loads the kernel.
    work.call(NullRecorder())  # type: ignore[arg-type]
    gpu.synchronize(device)
    session = kprof.session(
        output, device=device, retention=RETENTIONS[kept], arena_bytes=ARENA_BYTES
    )
    with session as recorder:

        def eager() -> None:
            work.call(recorder)

        call = captured(eager).replay if mode == "graph" else eager
        slow_calls = {int(number) for number in slow.split(",")}
        for number in range(int(num_calls)):
            call()
            gpu.synchronize(device)
            time.sleep(SLOW_S if number in slow_calls else USUAL_S)
            recorder.step()


if __name__ == "__main__":
    main(*sys.argv[1:])
