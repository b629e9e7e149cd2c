"""A long run through a small arena that is drained meanwhile: memory stays flat and nothing is lost.

    nice python -m benchmarks.soak --seconds 1800          half an hour on the CPU target

Launches come at a steady pace. Every second the process notes its memory. Exits with 1 when an
event is lost or when the memory of the last third of the run is more than 5 % and 16 MiB above
that of the second third (the first third is for buffers to grow).
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import kprof
from benchmarks import harness
from benchmarks.harness import resident_bytes, show_and_write
from kprof.devices.build import BuildOptions, load_library
from kprof.trace import Trace

KERNEL = """
#include <kprof/kprof.h>
using namespace kprof::platform;
__global__ void marks(unsigned num_marks, kprof::Buffer prof) {
  kprof::Track track = kprof::open_track(prof, kprof::per_warp);
  for (unsigned i = 0; i < num_marks; ++i) kprof::profile_mark(track, 1, i);
}
extern "C" int run_marks(const kprof::LaunchBuffer* buffer, unsigned num_marks) {
  return KPROF_LAUNCH(marks, 4, 64, nullptr, 0, num_marks, kprof::make_buffer(*buffer));
}
"""
NUM_TRACKS = 4 * 2
_ALLOWED_GROWTH = 1.05
_ALLOWED_BYTES = 16 << 20
# A shorter run says nothing of memory.
_LEAST_SECONDS = 60


def run(output: Path, arguments: argparse.Namespace) -> tuple[int, list[int], float]:
    """How many events the kernels emitted, the memory second by second, and the longest time
    between two calls in s: a machine that does other things holds the process up."""
    source = output.with_name("kernel.hip")
    source.write_text(KERNEL)
    library = load_library(source, BuildOptions(warp_width=32))
    session = kprof.session(
        output, arena_bytes=arguments.arena_mib << 20, retention=kprof.Retention(drain=True)
    )
    memory: list[int] = []
    num_calls, longest_s, latest_s = 0, 0.0, 0.0
    with session as recorder:
        begin_s = time.monotonic()
        while (elapsed_s := time.monotonic() - begin_s) < arguments.seconds:
            if elapsed_s >= len(memory):
                memory.append(resident_bytes())
            longest_s, latest_s = max(longest_s, elapsed_s - latest_s), elapsed_s
            if num_calls > elapsed_s * arguments.calls_per_second:
                time.sleep(0.001)
                continue
            buffer = recorder.launch("marks", ["mark"], num_blocks=4, tracks_per_block=2)
            library.run_marks(buffer.packed(), arguments.marks)
            num_calls += 1
    return num_calls * NUM_TRACKS * arguments.marks, memory, longest_s


def judge(memory: Sequence[int]) -> tuple[int, int, bool]:
    """The most memory in the second and in the last third, and whether that is flat."""
    third = len(memory) // 3
    before, after = max(memory[third : 2 * third] or memory), max(memory[2 * third :])
    is_short = len(memory) < _LEAST_SECONDS
    return (
        before,
        after,
        is_short or after <= max(before * _ALLOWED_GROWTH, before + _ALLOWED_BYTES),
    )


def main() -> int:
    parser = harness.options(__doc__)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--arena-mib", type=int, default=64)
    parser.add_argument("--marks", type=int, default=100)
    parser.add_argument("--calls-per-second", type=int, default=100)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "run.kprof"
        num_emitted, memory, longest_s = run(output, arguments)
        info = Trace.open(output).ranks[0]
    before, after, is_flat = judge(memory)
    result = {
        **harness.context(f"python -m benchmarks.soak --seconds {arguments.seconds}"),
        "arena_mib": arguments.arena_mib,
        "launches": len(info.launches),
        "emitted": num_emitted,
        "recorded": info.counts.recorded,
        "dropped": info.counts.dropped,
        "events_per_second": round(num_emitted / arguments.seconds),
        "arenas_filled": round(info.counts.recorded * 16 / (arguments.arena_mib << 20), 1),
        "most_memory_mib": {"second third": before >> 20, "last third": after >> 20},
        "is_flat": is_flat,
        "longest_hold_up_s": round(longest_s, 2),
    }
    show_and_write(result, arguments.output)
    return 0 if is_flat and info.counts.recorded == num_emitted else 1


if __name__ == "__main__":
    raise SystemExit(main())
