"""What draining costs the calls of a steady workload, whether it loses anything, and whether memory stays flat.

    python -m benchmarks.draining --device cuda:0 --seconds 60 --plain-seconds 10 [--rounds 1] [--graph] [-o FILE]

Calls of five launches come at the pace that makes `--events-per-second`, from a loop or from a CUDA
graph. First for `--plain-seconds` into an arena that holds all of them. Then, `--rounds` times, for
`--seconds` into one of 64 MiB that is drained, and undrained again: a GPU's clocks and its host
change with time, so a drained run is compared with the undrained ones before and after it. The
length of a call is what passes on its stream from its first launch to its last: events of the
runtime on a GPU, the clock on the CPU target.

    nice python -m benchmarks.draining --seconds 1800 --events-per-second 80000    half an hour on the CPU target

Exits with 1 where a drained run has lost an event, or where the memory of the last third of it is more than 5 % and
16 MiB above that of the second third (the first third is for buffers to grow).
"""

from __future__ import annotations

import argparse
import ctypes
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import kprof
from benchmarks import harness
from benchmarks.harness import captured, resident_bytes, show_and_write
from kprof.devices import gpu
from kprof.devices.build import BuildOptions, load_library
from kprof.devices.targets import arch_of_device, describe_device, target_of_device
from kprof.recording.rank.recorder import Recorder
from kprof.trace import Trace

KERNEL = """
#include <kprof/kprof.h>
using namespace kprof::platform;
__global__ void marks(unsigned num_marks, unsigned num_pauses, kprof::Buffer prof) {
  kprof::Track track = kprof::open_track(prof, kprof::per_block);
  for (unsigned i = 0; i < num_marks; ++i) {
    for (unsigned k = 0; k < num_pauses; ++k) pause();
    kprof::profile_mark(track, 1, i);
  }
}
extern "C" int run_marks(const kprof::LaunchBuffer* buffer, unsigned blocks, unsigned num_marks, unsigned num_pauses,
                         void* stream) {
  return KPROF_LAUNCH(marks, blocks, 64, stream, 0, num_marks, num_pauses, kprof::make_buffer(*buffer));
}
"""
LAUNCHES_PER_CALL = 5
MARKS = 20
_PLAIN_ARENA_BYTES = 2 << 30
_DRAINED_ARENA_BYTES = 64 << 20
_ALLOWED_GROWTH = 1.05
_ALLOWED_BYTES = 16 << 20
# A shorter run says nothing of memory.
_LEAST_SECONDS = 60


@dataclass(frozen=True)
class Work:
    """Launches of `num_blocks` blocks, each with a track."""

    library: ctypes.CDLL
    device: str
    num_blocks: int
    events_per_second: float

    @staticmethod
    def on(device: str, num_blocks: int, events_per_second: float) -> Work:
        """On a device with a number; its kernel is built here."""
        if device != "cpu":
            gpu.make_current(device)
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder) / "kernel.hip"
            source.write_text(KERNEL)
            options = BuildOptions(target_of_device(device), arch_of_device(device))
            return Work(load_library(source, options), device, num_blocks, events_per_second)

    @property
    def num_events(self) -> int:
        """Of a call."""
        return LAUNCHES_PER_CALL * self.num_blocks * MARKS

    def call(self, recorder: Recorder) -> None:
        stream = ctypes.c_void_p(gpu.stream_reader(gpu.with_number(self.device))())
        for _ in range(LAUNCHES_PER_CALL):
            buffer = recorder.launch(
                "marks", ["mark"], num_blocks=self.num_blocks, tracks_per_block=1
            )
            # A long pause on a GPU; the CPU target takes its time anyway.
            pauses = 0 if self.device == "cpu" else 50
            error = self.library.run_marks(buffer.packed(), self.num_blocks, MARKS, pauses, stream)
            assert error == 0


def run(
    work: Work, arguments: argparse.Namespace, seconds: float, is_drained: bool
) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "run.kprof"
        session = kprof.session(
            output,
            device=work.device,
            arena_bytes=_DRAINED_ARENA_BYTES if is_drained else _PLAIN_ARENA_BYTES,
            retention=kprof.Retention(drain=is_drained),
        )
        with session as recorder:

            def eager() -> None:
                work.call(recorder)

            call = captured(eager).replay if arguments.graph else eager
            moments, memory = _pace(work, call, recorder, seconds)
            gpu.synchronize(work.device)
            lengths_us = [gpu.elapsed_us(begin, end) for begin, end in moments]
        counts = Trace.open(output).ranks[0].counts
    num_emitted = len(lengths_us) * work.num_events
    third = len(memory) // 3
    before, after = max(memory[third : 2 * third] or memory), max(memory[2 * third :])
    is_flat = after <= max(before * _ALLOWED_GROWTH, before + _ALLOWED_BYTES)
    return {
        "seconds": seconds,
        "calls": len(lengths_us),
        "emitted": num_emitted,
        "recorded": counts.recorded,
        "dropped": counts.dropped,
        "unsplit_launches": counts.unsplit_launches,
        "events_per_second": round(num_emitted / seconds),
        "median_us": round(statistics.median(lengths_us), 2),
        "p90_us": round(sorted(lengths_us)[9 * (len(lengths_us) - 1) // 10], 2),
        "most_memory_mib": {"second third": before >> 20, "last third": after >> 20},
        "is_flat": is_flat or len(memory) < _LEAST_SECONDS,
    }


def _pace(
    work: Work, call: Callable[[], None], recorder: Recorder, seconds: float
) -> tuple[list[tuple[Any, Any]], list[int]]:
    """The moments before and after each call, and the memory second by second."""
    calls_per_second = work.events_per_second / work.num_events
    moments: list[tuple[Any, Any]] = []
    memory: list[int] = []
    begin_s = time.monotonic()
    while (elapsed_s := time.monotonic() - begin_s) < seconds:
        if elapsed_s >= len(memory):
            memory.append(resident_bytes())
        if len(moments) > elapsed_s * calls_per_second:
            time.sleep(0.0002)
            continue
        begin = gpu.note_moment(work.device)
        call()
        moments.append((begin, gpu.note_moment(work.device)))
        recorder.step()
    return moments, memory


def main() -> int:
    parser = harness.options(__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--plain-seconds", type=float, default=5)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--events-per-second", type=float, default=1e6)
    parser.add_argument("--blocks", type=int, default=528)
    parser.add_argument("--graph", action="store_true")
    arguments = parser.parse_args()
    device = gpu.with_number(arguments.device)
    work = Work.on(device, arguments.blocks, arguments.events_per_second)
    plain = [run(work, arguments, arguments.plain_seconds, is_drained=False)]
    drained = []
    for _ in range(arguments.rounds):
        drained.append(run(work, arguments, arguments.seconds, is_drained=True))
        plain.append(run(work, arguments, arguments.plain_seconds, is_drained=False))
    percents = [
        100 * (2 * each["median_us"] / (before["median_us"] + after["median_us"]) - 1)
        for before, each, after in zip(plain[:-1], drained, plain[1:], strict=True)
    ]
    result = {
        **harness.context(f"python -m benchmarks.draining --device {device}"),
        "device": describe_device(device).name,
        "graph": arguments.graph,
        "plain": plain,
        "drained": drained,
        "percent_of_rounds": [round(each, 2) for each in percents],
        "median_percent": round(statistics.median(percents), 2),
    }
    show_and_write(result, arguments.output)
    is_right = all(each["recorded"] == each["emitted"] and each["is_flat"] for each in drained)
    return 0 if is_right else 1


if __name__ == "__main__":
    raise SystemExit(main())
