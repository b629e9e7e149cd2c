"""What recording costs a call.

One that is not recorded runs kernels without instrumentation, so off costs nothing.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Literal

import torch

from benchmarks.all_reduce.timing import Call, Effort, time_graphs_us
from changed_kernels import Change, changed
from instrumented_kernels.all_reduce import Plan
from kprof.devices.groups import Group
from kprof.recording.arenas.arena import Arena
from kprof.recording.launches.launch_buffer import NULL_BUFFER, LaunchBuffer
from kprof.recording.launches.wanted import EVERYTHING, Wanted
from kprof.recording.rank.null_recorder import NullRecorder

# Launches can reserve half of it. The largest grids of the kernels for one GPU take 80 MiB.
RESERVED_BYTES = 256 << 20
# Replays claim their chunks, so this has to hold all calls of a measurement.
CLAIMED_BYTES = 2 << 30

Chunks = Literal["reserved", "filtered", "claimed", "null"]

# Of two clocks and no record, also without kprof: recording cannot cost less.
_ONLY_CLOCKS: list[Change] = [
    ("packet_spans.h", old, new)
    for old, new in {
        "using Moment = kprof::Span;": "struct Moment {\n  uint64_t ticks;\n};",
        "Moment clock_now() { return kprof::profile_now(); }": "Moment clock_now() { return {cycle_ticks()}; }",
        "return has_work ? kprof::ask_for_short_track(call, num_records_of(call, num_phases)) : kprof::EarlyTrack{};": "return {};",
        "return kprof::open_short_track(call, num_records_of(call, num_phases), early);": "return {};",
        # Never true, but the compiler does not know and has to read both clocks.
        "kprof::close_short_track(track, num_records_of(call, num_phases) - 1, asked, made);": "if (cycle_ticks() + 1 == asked.ticks) *call.counter() = 0;",
        "#if KPROF_ENABLED\n": "#if 0\n",
    }.items()
]


class GraphRecorder(NullRecorder):
    """Gives launches in a graph what it gives eager ones ("reserved"), with `--blocks 0-7`
    ("filtered"), captured ones ("claimed"), or nothing ("null").

    Replays write over reserved chunks, which costs what it costs an eager launch.
    """

    is_recording = True

    def __init__(self, device: str, chunks: Chunks = "reserved") -> None:
        wanted = Wanted(blocks=tuple(range(8))) if chunks == "filtered" else EVERYTHING
        size_bytes = CLAIMED_BYTES if chunks == "claimed" else RESERVED_BYTES
        self._arena = Arena(size_bytes, device, wanted)
        self._chunks = chunks
        self._num_launches = 0

    def launch(
        self,
        kernel: str,
        regions: Any = None,
        *,
        num_blocks: int = 0,
        threads_per_block: int = 0,
        tracks_per_block: int = 0,
        is_replayed: bool = False,
    ) -> LaunchBuffer:
        del kernel, regions, threads_per_block, is_replayed
        self._num_launches += 1
        if self._chunks == "null":
            return NULL_BUFFER
        if self._chunks == "claimed":
            return self._arena.switched_buffer(self._num_launches)
        if self._chunks == "filtered":
            return self._arena.filtered_buffer(self._num_launches, num_blocks, tracks_per_block)
        return self._arena.launch_buffer(self._num_launches, num_blocks, tracks_per_block)


def plan_of_clocks(group: Group, device: str) -> Plan:
    """Kernels that read two clocks and write nothing; instrumented, they also watch for waits that
    last long. Collective."""
    return changed(Plan, "only_clocks", _ONLY_CLOCKS)(group, device=device)


def measure_overhead(
    group: Group,
    plan: Plan,
    sizes: list[int],
    dtype: torch.dtype,
    effort: Effort,
    clocks: Plan | None = None,
) -> list[dict[str, Any]]:
    """Microseconds per call of `auto`, by size; with and without recording in turns. With `clocks`, a plan of such
    kernels, also what each part of recording adds."""
    rows = []
    for num_bytes in sizes:
        tensor = torch.zeros(num_bytes // dtype.itemsize, dtype=dtype, device=plan.device)
        call = partial(plan, tensor, out=tensor)
        calls: dict[str, Call] = {"off_us": call}
        if clocks is not None:
            null: Any = GraphRecorder(plan.device, "null")
            filtered: Any = GraphRecorder(plan.device, "filtered")
            only_clocks = partial(clocks, tensor, out=tensor)
            calls |= {
                "clocks_us": only_clocks,
                "late_waits_us": partial(only_clocks, recorder=null),
            }
            calls |= {"null_us": partial(call, recorder=null)}
            calls |= {"filtered_us": partial(call, recorder=filtered)}
        eager: Any = GraphRecorder(plan.device)
        captured: Any = GraphRecorder(plan.device, "claimed")
        calls["recording_us"] = partial(call, recorder=eager)
        calls["recording_in_graph_us"] = partial(call, recorder=captured)
        if clocks is not None:
            calls["off_again_us"] = call
        rows.append({"bytes": num_bytes} | time_graphs_us(group, calls, effort))
    return rows
