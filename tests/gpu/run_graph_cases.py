"""Recorded launches in CUDA graphs, and the same launches in a loop; test_graphs_gpu.py starts it.

usage: run_graph_cases.py {counted,all_reduce} {eager,graph,streams,paused} NUM_REPLAYS
REPLAYS_PER_FLUSH
"""

from __future__ import annotations

import ctypes
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch

import kprof
from instrumented_kernels.all_reduce import Plan
from instrumented_kernels.workload import choose_device, joined_group
from kprof.devices.build import BuildOptions, load_library
from kprof.devices.gpu import stream_reader, with_number
from kprof.devices.groups import Group
from kprof.devices.targets import arch_of_device, target_of_device
from kprof.recording.rank.null_recorder import AnyRecorder

KERNEL = """
#include <kprof/kprof.h>
#include <kprof/short_track.h>
using namespace kprof::platform;
// Every warp of block b writes `num_marks` + b records.
__global__ void marks(unsigned num_marks, kprof::Buffer prof) {
  kprof::Track track = kprof::open_track(prof, kprof::per_warp);
  for (unsigned i = 0; i < num_marks + block_id(); ++i) kprof::profile_mark(track, 1, i);
}
__global__ void places(unsigned num_places, kprof::Buffer prof) {
  const kprof::Span begin = kprof::profile_now();
  kprof::ShortTrack track = kprof::open_short_track(prof, num_places);
  if (!kprof::is_writer(track)) return;
  for (unsigned i = 0; i < num_places; ++i) kprof::profile_at(track, i, begin, 1, 2, i);
}
// Every block writes `num_spans` spans of the same work, about 10 us each.
__global__ void spans(unsigned num_spans, kprof::Buffer prof) {
  kprof::Track track = kprof::open_track(prof, kprof::per_block);
  float x = static_cast<float>(block_id());
  for (unsigned i = 0; i < num_spans; ++i) {
    const kprof::Span span = kprof::profile_start(track);
    KPROF_UNROLL(1)
    for (unsigned step = 0; step < 4000; ++step) x = x * 1.0000001f + 0.5f;
    kprof::profile_stop(track, span, 3, x == 1.0f ? num_spans : i);
  }
}
extern "C" int run_marks(const kprof::LaunchBuffer* buffer, unsigned num_records, void* stream) {
  return KPROF_LAUNCH(marks, 16, 128, stream, 0, num_records, kprof::make_buffer(*buffer));
}
extern "C" int run_spans(const kprof::LaunchBuffer* buffer, unsigned num_records, void* stream) {
  return KPROF_LAUNCH(spans, 16, 128, stream, 0, num_records, kprof::make_buffer(*buffer));
}
extern "C" int run_places(const kprof::LaunchBuffer* buffer, unsigned num_records, void* stream) {
  return KPROF_LAUNCH(places, 16, 128, stream, 0, num_records, kprof::make_buffer(*buffer));
}
"""
# Five launches: name, records, tracks per block. 70 records of a warp take a second chunk.
LAUNCHES = (
    ("marks", 3, 4),
    ("places", 20, 1),
    ("marks", 70, 4),
    ("spans", 5, 1),
    ("marks", 0, 4),
)
SIZES = (8, 2048, 32_768, 2048, 262_144)


def counted_calls(recorder: AnyRecorder, device: str) -> Callable[[], None]:
    """Launches whose records are known in number."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "kernel.hip"
        source.write_text(KERNEL)
        library = load_library(
            source, BuildOptions(target_of_device(device), arch_of_device(device))
        )
    number, pointer = ctypes.c_uint, ctypes.c_void_p
    current_stream = stream_reader(with_number(device))
    for name, _, _ in LAUNCHES:
        getattr(library, f"run_{name}").argtypes = [ctypes.c_char_p, number, pointer]

    def calls() -> None:
        for name, num_records, tracks_per_block in LAUNCHES:
            buffer = recorder.launch(
                name, ["mark", "place", "span"], num_blocks=16, tracks_per_block=tracks_per_block
            )
            run = getattr(library, f"run_{name}")
            assert run(buffer.packed(), num_records, current_stream()) == 0

    return calls


def all_reduce_calls(recorder: AnyRecorder, plan: Plan) -> Callable[[], None]:
    """All-reduces of five sizes, each in place."""
    tensors = [torch.ones(size, dtype=torch.bfloat16, device=plan.device) for size in SIZES]
    for tensor in tensors:
        plan.prepare(tensor, is_recorded=recorder.is_recording)

    def calls() -> None:
        for tensor in tensors:
            plan(tensor, out=tensor, recorder=recorder)

    return calls


def captured(calls: Callable[[], None]) -> torch.cuda.CUDAGraph:
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        calls()
    return graph


def run(
    mode: str, calls: Callable[[], None], recorder: AnyRecorder, count: int, every: int
) -> None:
    """`count` times all calls, from a graph unless the mode is eager, with a flush after each `every`."""
    if mode == "paused":
        recorder.pause()
    graphs = [captured(calls) for _ in range({"eager": 0, "streams": 2}.get(mode, 1))]
    streams = [torch.cuda.Stream() for _ in graphs]
    if mode == "paused":
        graphs[0].replay()
        recorder.resume()
    for number in range(count):
        if mode == "eager":
            calls()
        elif mode == "streams":
            for graph, stream in zip(graphs, streams, strict=True):
                with torch.cuda.stream(stream):
                    graph.replay()
        else:
            graphs[0].replay()
        if number % every == every - 1:
            torch.cuda.synchronize()
            recorder.flush()
    if mode == "paused":
        recorder.pause()
        graphs[0].replay()
    torch.cuda.synchronize()


def main(kind: str, mode: str, count: int, every: int) -> None:
    device = choose_device("cuda")
    with joined_group() as group:
        recorder = kprof.recorder(device=device)
        recorder.align(group)
        if kind == "counted":
            run(mode, counted_calls(recorder, device), recorder, count, every)
        else:
            _run_all_reduce(group, device, recorder, (mode, count, every))
        recorder.align(group)


def _run_all_reduce(
    group: Group, device: str, recorder: AnyRecorder, how: tuple[str, int, int]
) -> None:
    plan = Plan(group, device=device)
    mode, count, every = how
    calls = all_reduce_calls(recorder, plan)
    group.barrier()
    run(mode, calls, recorder, count, every)
    plan.wait()
    plan.close()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
