"""A machine for patterns: every track is a generator that yields what it does next.

    def block(me: Track) -> Steps:
        yield Work("load", 900)
        yield Put("push", dst=1, slot=me.block, ns=300)
        yield Await("pull", src=1, slot=me.block)

    machine = Machine(num_ranks=2, seed=3)
    machine.call([Track(rank, b) for rank in range(2) for b in range(4)], block)
    trace = machine.trace()

Written apart from `simulation`, with nothing of it: an error in one of the two must not hide in the
other. Only the engine is here; `cases.py` has what goes wrong.
"""

from __future__ import annotations

import heapq
import zlib
from collections import deque
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from kprof.regions import RegionTable, parse_regions
from kprof.trace import Trace
from synthetic import TraceBuilder, events_of, trace_of

REGIONS: Final = parse_regions("""
REGION(A_LOAD,   "load",    compute)
REGION(A_MATH,   "math",    compute)
REGION(A_SUM,    "sum",     compute)
REGION(A_STORE,  "store",   compute)
REGION(A_PUSH,   "push",    send,    peer:8, slot:24)
REGION(A_PULL,   "pull",    wait,    peer:8, slot:24)
REGION(A_UP,     "up",      send,    peer:8, slot:24)
REGION(A_UPWAIT, "up-wait", wait,    peer:8, slot:24)
REGION(A_FILL,   "fill",    send,    peer:8, slot:24)
REGION(A_FULL,   "full",    wait,    peer:8, slot:24)
REGION(A_GRID,   "grid",    sync)
REGION(A_MUTEX,  "mutex",   sync)
FLOW(A_PUSH, A_PULL)
FLOW(A_UP, A_UPWAIT)
FLOW(A_FILL, A_FULL)
""")
_WAIT_OF: Final = {"push": "pull", "up": "up-wait", "fill": "full"}
_LOOK_NS: Final = 45
_CALL_EVERY_NS: Final = 9_000


@dataclass(frozen=True)
class Work:
    """Be busy in a region."""

    region: str
    ns: float


@dataclass(frozen=True)
class Put:
    """Send; what is sent has arrived a travel time after the end."""

    region: str
    dst: int
    slot: int
    ns: float = 350


@dataclass(frozen=True)
class Await:
    """Wait for what a rank puts into a slot. A look at it may take `stall_ns` longer than usual."""

    region: str
    src: int
    slot: int
    stall_ns: int = 0


@dataclass(frozen=True)
class Meet:
    """Wait until `count` tracks have come to the meeting of this name."""

    name: object
    count: int


@dataclass(frozen=True)
class Grab:
    """Take a lock; who asks first gets it first."""

    name: object


@dataclass(frozen=True)
class Drop:
    """Let a lock go."""

    name: object


@dataclass(frozen=True)
class Idle:
    """Do something that no region covers."""

    ns: float


@dataclass(frozen=True)
class Pop:
    """Take the next entry of a queue that all share; None when it is empty."""

    queue: deque[Any]


Step = Work | Put | Await | Meet | Grab | Drop | Idle | Pop
Steps = Generator[Step, Any, None]
Body = Callable[["Track"], Steps]
Travel = Callable[[int, int], float]


@dataclass
class Track:
    """Where a generator runs; `processor` -1 is the block's own number."""

    rank: int
    block: int
    warp: int = -1
    processor: int = -1
    call: int = 0
    now: int = 0
    steps: Steps | None = None
    counter: int = 0


@dataclass
class Machine:
    """Runs calls one after the other and keeps what was recorded. `room` is how many blocks of a rank run at once
    (0: all). All ranks begin a call together; with `pause_ns` each begins it so long after its own end."""

    num_ranks: int
    seed: int = 0
    noise: float = 0.04
    travel_ns: float = 650
    room: int = 0
    num_blocks: int = 0
    pause_ns: int = 0
    rows: list[tuple[int, ...]] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    kernels: list[str] = field(default_factory=list)
    clock: int = 5_000
    ended: dict[int, int] = field(default_factory=dict)

    def call(
        self,
        tracks: Iterable[Track],
        body: Body,
        *,
        late: dict[int, float] | None = None,
        travel: Travel | None = None,
    ) -> None:
        """One call of one launch. `late` ranks launch so many ns later, `travel` is the time from rank to rank."""
        self.stages([(tracks, body, late or {})], travel)

    def stages(
        self,
        stages: list[tuple[Iterable[Track], Body, dict[int, float]]],
        travel: Travel | None = None,
    ) -> None:
        """One call of several launches: each begins on a rank when the one before it has ended there."""
        run = _Call(self, len(self.lengths), travel or (lambda _src, _dst: self.travel_ns))
        run.execute([(list(tracks), body, late) for tracks, body, late in stages])
        goes_on = self.pause_ns and self.ended
        begin = max(self.ended.values()) + self.pause_ns if goes_on else run.first
        self.lengths.append(run.last - begin)
        self.ended = run.ended
        self.clock = run.last + _CALL_EVERY_NS
        if not self.kernels:
            self.kernels = [f"stage{i}" if len(stages) > 1 else "only" for i in range(len(stages))]

    def random(self, *key: object) -> np.random.Generator:
        """Random numbers that belong to something, whatever else is drawn."""
        return np.random.default_rng([self.seed, zlib.crc32(repr(key).encode())])

    def trace(self, *, has_flows: bool = True, is_aligned: bool = True) -> Trace:
        """What was recorded; without joined sends and waits, or with clocks of their own, if so."""
        regions = REGIONS if has_flows else RegionTable(REGIONS.regions)
        builder = TraceBuilder(regions, self.num_ranks, bound_ns=5.0, is_aligned=is_aligned)
        for call in range(len(self.lengths)):
            for stage, kernel in enumerate(self.kernels):
                builder.launch(call * len(self.kernels) + stage, kernel, self.num_blocks)
        columns = np.array(sorted(self.rows, key=lambda row: (*row[:4], row[6])), dtype=np.int64).T
        columns[6] += 0 if is_aligned else 77_777 * columns[0]
        return trace_of(builder, events_of(columns))


class _Call:
    def __init__(self, machine: Machine, number: int, travel: Travel) -> None:
        self.machine, self.number, self.travel = machine, number, travel
        self.heap: list[tuple[int, int, Track, Any]] = []
        self.order = 0
        self.arrived: dict[tuple[str, int, int, int, int], int] = {}
        self.waiting: dict[tuple[str, int, int, int, int], tuple[Track, int, Await]] = {}
        self.met: dict[object, list[tuple[Track, int]]] = {}
        self.holder: dict[object, Track] = {}
        self.queued: dict[object, deque[tuple[Track, int]]] = {}
        self.first, self.last = 1 << 62, 0
        self.ended: dict[int, int] = {}

    def execute(self, stages: list[tuple[list[Track], Body, dict[int, float]]]) -> None:
        self.plan = stages
        self.live: dict[tuple[int, ...], int] = {}
        self.backlog: dict[tuple[int, int], deque[list[Track]]] = {}
        self.stage_of: dict[int, int] = {}
        pause_ns, ended = self.machine.pause_ns, self.machine.ended
        for rank in range(self.machine.num_ranks):
            goes_on = pause_ns and rank in ended
            self._start_stage(0, rank, ended[rank] + pause_ns if goes_on else self.machine.clock)
        while self.heap:
            now, _, track, value = heapq.heappop(self.heap)
            track.now = now
            self._step(track, value)
        assert not self.waiting, f"tracks wait for ever: {list(self.waiting)[:3]}"

    def _start_stage(self, stage: int, rank: int, now: int) -> None:
        tracks, _, late = self.plan[stage]
        jitter = int(self.machine.random("launch", self.number, stage, rank).integers(0, 150))
        begin = now + jitter + int(late.get(rank, 0)) + (1200 if stage else 0)
        blocks: dict[int, list[Track]] = {}
        for track in tracks:
            if track.rank == rank:
                blocks.setdefault(track.block, []).append(track)
        self.live[stage, rank] = len(blocks)
        self.backlog[stage, rank] = deque(blocks.values())
        room = self.machine.room or len(blocks)
        for place in range(min(room, len(blocks))):
            self._start_block(stage, rank, begin, place if self.machine.room else -1)

    def _start_block(self, stage: int, rank: int, now: int, place: int) -> None:
        members = self.backlog[stage, rank].popleft()
        body = self.plan[stage][1]
        for track in members:
            track.call = self.number
            if place >= 0:
                track.processor = place
            track.steps = body(track)
            track.counter = 0
            self.stage_of[id(track)] = stage
            self._go_on(track, now, None)
        self.live[stage, rank, members[0].block] = len(members)

    def _go_on(self, track: Track, at: int, value: Any) -> None:
        self.order += 1
        heapq.heappush(self.heap, (at, self.order, track, value))

    def _step(self, track: Track, value: Any) -> None:
        assert track.steps is not None
        try:
            step = track.steps.send(value)
        except StopIteration:
            self._end(track)
            return
        getattr(self, "_" + type(step).__name__.lower())(track, step)

    def _spent(self, track: Track, ns: float) -> int:
        track.counter += 1
        random = self.machine.random(
            self.number, track.rank, track.block, track.warp, track.counter
        )
        return max(1, round(ns * max(0.3, random.normal(1.0, self.machine.noise))))

    def _record(
        self, track: Track, region: str, begin: int, end: int, peer: int = -1, slot: int = 0
    ) -> None:
        number = self.number * len(self.plan) + self.stage_of[id(track)]
        payload = peer | slot << 8 if peer >= 0 else 0
        processor = track.processor if track.processor >= 0 else track.block
        self.machine.rows.append(
            (
                *(track.rank, number, track.block, track.warp),
                *(REGIONS.by_name(region).id, 0, begin, end - begin, payload, processor),
            )
        )
        self.first, self.last = min(self.first, begin), max(self.last, end)

    def _work(self, track: Track, step: Work) -> None:
        end = track.now + self._spent(track, step.ns)
        self._record(track, step.region, track.now, end)
        self._go_on(track, end + 8, None)

    def _put(self, track: Track, step: Put) -> None:
        end = track.now + self._spent(track, step.ns)
        self._record(track, step.region, track.now, end, step.dst, step.slot)
        stage = self.stage_of[id(track)]
        key = (_WAIT_OF[step.region], track.rank, step.dst, step.slot, stage)
        spent = 40 if step.region == "fill" else self.travel(track.rank, step.dst)
        self.arrived[key] = end + self._spent(track, spent)
        waiting = self.waiting.pop(key, None)
        if waiting is not None:
            self._got(*waiting, self.arrived[key])
        self._go_on(track, end + 8, None)

    def _await(self, track: Track, step: Await) -> None:
        key = (step.region, step.src, track.rank, step.slot, self.stage_of[id(track)])
        if key in self.arrived:
            self._got(track, track.now, step, self.arrived[key])
        else:
            self.waiting[key] = (track, track.now, step)

    def _got(self, track: Track, begin: int, step: Await, arrived: int) -> None:
        end = max(begin + _LOOK_NS + step.stall_ns, arrived)
        self._record(track, step.region, begin, end, step.src, step.slot)
        self._go_on(track, end + 8, None)

    def _meet(self, track: Track, step: Meet) -> None:
        met = self.met.setdefault(step.name, [])
        met.append((track, track.now))
        if len(met) == step.count:
            for member, begin in met:
                self._record(member, "grid", begin, track.now + 180)
                self._go_on(member, track.now + 188, None)
            del self.met[step.name]

    def _grab(self, track: Track, step: Grab) -> None:
        if step.name in self.holder:
            self.queued.setdefault(step.name, deque()).append((track, track.now))
            return
        self._take(track, track.now, track.now, step.name)

    def _take(self, track: Track, begin: int, free: int, name: object) -> None:
        self.holder[name] = track
        self._record(track, "mutex", begin, free + 60)
        self._go_on(track, free + 68, None)

    def _drop(self, track: Track, step: Drop) -> None:
        del self.holder[step.name]
        if self.queued.get(step.name):
            follower, begin = self.queued[step.name].popleft()
            self._take(follower, begin, track.now, step.name)
        self._go_on(track, track.now, None)

    def _idle(self, track: Track, step: Idle) -> None:
        self._go_on(track, track.now + round(step.ns), None)

    def _pop(self, track: Track, step: Pop) -> None:
        self._go_on(track, track.now, step.queue.popleft() if step.queue else None)

    def _end(self, track: Track) -> None:
        stage = self.stage_of[id(track)]
        block = (stage, track.rank, track.block)
        self.live[block] -= 1
        if self.live[block]:
            return
        self.live[stage, track.rank] -= 1
        self.ended[track.rank] = track.now
        if self.backlog[stage, track.rank]:
            self._start_block(stage, track.rank, track.now + 120, track.processor)
        elif not self.live[stage, track.rank] and stage + 1 < len(self.plan):
            self._start_stage(stage + 1, track.rank, track.now)
