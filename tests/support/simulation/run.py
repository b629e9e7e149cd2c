"""Runs programs event by event, with a heap of tracks ordered by their next time."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from kprof.regions import parse_regions
from kprof.trace import Trace
from simulation.program import REGIONS_TEXT, Ints, Op, Program
from synthetic import TraceBuilder, events_of, trace_of


@dataclass(frozen=True)
class Times:
    """The times of one call: columns over operations, and starts per stage and rank, all in ns.

    `duration` of a wait is one look at its flag, of a barrier the time to leave it. `gap` lies
    before an operation and is not recorded. `travel` belongs to waits. `launch_gap[stage, rank]`:
    before stage 0 after the start of the call, else after the launch before has ended.
    """

    duration: list[int]
    gap: list[int]
    travel: list[int]
    launch_gap: list[list[int]]


@dataclass
class CallRun:
    """The start and end of every operation of a call, and the processor of every track."""

    program: Program
    starts: list[int]
    ends: list[int]
    processor: list[int]

    @property
    def length_ns(self) -> int:
        """From the first record of the call to the last one."""
        return max(self.ends) - min(self.starts)


class Engine:
    """Runs one call. `room` is how many blocks a rank has place for at once (0: for all)."""

    def __init__(self, program: Program, times: Times, origin: int, room: int = 0) -> None:
        self.program = program
        self.times = times
        self.origin = origin
        self.room = room
        count = len(program)
        self.op: list[int] = program.op.tolist()
        self.partner: list[int] = program.partner.tolist()
        self.group: list[int] = program.group.tolist()
        self.starts = [0] * count
        self.ends = [-1] * count
        self.first: list[int] = program.first.tolist()
        self.position = self.first[:-1].copy()
        self.clock = [0] * len(program.track_rank)
        self.processor = [0] * len(program.track_rank)
        self.heap: list[tuple[int, int]] = []
        self.parked: dict[int, int] = {}
        self.members: dict[int, list[tuple[int, int]]] = {}
        groups, counts = np.unique(program.group[program.op == Op.BARRIER], return_counts=True)
        self.expected = dict(zip(groups.tolist(), counts.tolist(), strict=True))
        self.lock_free: dict[int, int] = {}
        self._lay_out()

    def _lay_out(self) -> None:
        """Tracks by block, blocks by launch, in the order in which they start."""
        program = self.program
        self.block_of: list[tuple[int, int, int]] = list(
            zip(
                program.track_stage.tolist(),
                program.track_rank.tolist(),
                program.track_block.tolist(),
                strict=True,
            )
        )
        self.tracks_of: dict[tuple[int, int, int], list[int]] = {}
        for track, block in enumerate(self.block_of):
            self.tracks_of.setdefault(block, []).append(track)
        self.pending: dict[tuple[int, int], list[tuple[int, int, int]]] = {}
        for block in self.tracks_of:
            self.pending.setdefault(block[:2], []).append(block)
        self.running = {block: len(tracks) for block, tracks in self.tracks_of.items()}
        self.blocks_left = {launch: len(blocks) for launch, blocks in self.pending.items()}

    def run(self) -> CallRun:
        """The start and end of every operation."""
        for rank in range(self.program.num_ranks):
            self._launch(0, rank, self.origin)
        while self.heap:
            now, track = heapq.heappop(self.heap)
            self._advance(track, now)
        assert min(self.ends) >= 0, "the program does not end"
        return CallRun(self.program, self.starts, self.ends, self.processor)

    def _launch(self, stage: int, rank: int, after: int) -> None:
        at = after + self.times.launch_gap[stage][rank]
        blocks = self.pending.get((stage, rank), [])
        room = self.room or len(blocks)
        for processor in range(min(room, len(blocks))):
            self._start_block(blocks.pop(0), at, processor)

    def _start_block(self, block: tuple[int, int, int], at: int, processor: int) -> None:
        for track in self.tracks_of[block]:
            self.clock[track] = at
            self.processor[track] = processor
            heapq.heappush(self.heap, (at, track))

    def _advance(self, track: int, now: int) -> None:
        """Run a track until it must wait, or until its order relative to others matters."""
        times, last = self.times, self.first[track + 1]
        i, t = self.position[track], self.clock[track]
        while i < last:
            op = self.op[i]
            begin = t + times.gap[i]
            if op == Op.LOCK and begin > now:
                heapq.heappush(self.heap, (begin, track))
                break
            end = self._end_of(op, i, begin, track)
            if end is None:
                break
            self.starts[i], self.ends[i] = begin, end
            if op == Op.SEND:
                self._release(i)
            t = end
            i += 1
        else:
            self._finish(track, t, now)
        self.position[track], self.clock[track] = i, t

    def _end_of(self, op: int, i: int, begin: int, track: int) -> int | None:
        """The end of an operation that begins now; None if not known yet."""
        end = begin + self.times.duration[i]
        if op == Op.WAIT:
            sent = self.ends[self.partner[i]]
            if sent < 0:
                self.parked[i] = track
                return None
            return max(end, sent + self.times.travel[i])
        if op == Op.BARRIER:
            return self._meet(i, begin, track)
        if op == Op.LOCK:
            group = self.group[i]
            end = max(end, self.lock_free.get(group, 0) + self.times.duration[i])
            self.lock_free[group] = end + self.times.gap[i + 1] + self.times.duration[i + 1]
        return end

    def _release(self, send: int) -> None:
        track = self.parked.pop(self.partner[send], None)
        if track is not None:
            heapq.heappush(self.heap, (self.ends[send], track))

    def _meet(self, i: int, begin: int, track: int) -> int | None:
        """The last track to reach a barrier opens it for all."""
        group = self.group[i]
        if group in self.lock_free:
            return self.lock_free[group] + self.times.duration[i]
        members = self.members.setdefault(group, [])
        members.append((begin, track))
        if len(members) < self.expected[group]:
            return None
        opened = max(entered for entered, _ in members)
        self.lock_free[group] = opened
        for _, member in members[:-1]:
            heapq.heappush(self.heap, (opened, member))
        return opened + self.times.duration[i]

    def _finish(self, track: int, t: int, now: int) -> None:
        """A block ends with its last track. Then the next block has room, or the next launch begins."""
        if t > now and self.room:
            # Decide in the order of time what starts next on this processor.
            heapq.heappush(self.heap, (t, track))
            return
        block = self.block_of[track]
        self.running[block] -= 1
        if self.running[block]:
            return
        stage, rank, _ = block
        ended = max(self.clock[other] if other != track else t for other in self.tracks_of[block])
        launch = (stage, rank)
        self.blocks_left[launch] -= 1
        if self.pending[launch]:
            self._start_block(self.pending[launch].pop(0), ended + 150, self.processor[track])
        elif self.blocks_left[launch] == 0 and stage + 1 < self.program.num_stages:
            last = max(
                t if other == track else self.clock[other]
                for other, (s, r, _) in enumerate(self.block_of)
                if (s, r) == launch
            )
            self._launch(stage + 1, rank, last)


@dataclass
class Run:
    """A simulated run: its calls, and the clock offsets of its ranks."""

    calls: list[CallRun]
    clock_error_ns: float = 0.0
    offsets_ns: list[float] = field(default_factory=list)
    is_aligned: bool = True
    # New indices of ranks and blocks by the old ones; empty: unchanged.
    ranks: tuple[int, ...] = ()
    blocks: tuple[int, ...] = ()

    @property
    def lengths_ns(self) -> list[int]:
        """The length of every call."""
        return [call.length_ns for call in self.calls]

    def trace(self) -> Trace:
        """The run as a trace."""
        program = self.calls[0].program
        regions, num_ranks = parse_regions(REGIONS_TEXT), program.num_ranks
        bound_ns = max(1.0, self.clock_error_ns)
        builder = TraceBuilder(regions, num_ranks, bound_ns=bound_ns, is_aligned=self.is_aligned)
        num_blocks = int(program.track_block.max()) + 1
        for number in range(len(self.calls)):
            for stage in range(program.num_stages):
                kernel = "kernel" if program.num_stages == 1 else f"kernel/{stage}"
                builder.launch(number * program.num_stages + stage, kernel, num_blocks)
        return trace_of(builder, self._table())

    def _table(self) -> pa.Table:
        regions = parse_regions(REGIONS_TEXT)
        ids = {region.name: region.id for region in regions.regions}
        parts = [self._columns(number, call, ids) for number, call in enumerate(self.calls)]
        columns = [np.concatenate([part[i] for part in parts]) for i in range(len(parts[0]))]
        # Records of a track are in the order of time, a rank's in the order of its tracks.
        order = np.lexsort((columns[6], columns[3], columns[2], columns[1], columns[0]))
        return events_of(column[order] for column in columns)

    def _columns(self, number: int, call: CallRun, ids: dict[str, int]) -> list[Ints]:
        program = call.program
        names, inverse = np.unique(program.region, return_inverse=True)
        region = np.array([ids[str(name)] for name in names])[inverse]
        starts, ends = np.array(call.starts), np.array(call.ends)
        rank = program.of_ops(program.track_rank)
        offsets = np.array(self.offsets_ns or [0.0] * program.num_ranks)
        is_message = program.slot >= 0
        ranks = np.array(self.ranks or range(program.num_ranks))
        blocks = np.array(self.blocks or range(int(program.track_block.max()) + 1))
        return [
            ranks[rank],
            number * program.num_stages + program.of_ops(program.track_stage),
            blocks[program.of_ops(program.track_block)],
            program.of_ops(program.track_warp),
            region,
            np.zeros(len(rank), dtype=np.int64),
            starts + np.rint(offsets[rank]).astype(np.int64),
            ends - starts,
            np.where(is_message, ranks[program.peer] | program.slot << 8, 0),
            np.array(call.processor)[program.track],
        ]
