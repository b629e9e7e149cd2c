"""What is known of every rank at one moment: open waits, launches, what was sent, Python stacks."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import msgspec
from msgspec import structs

from kprof.capture.processes import Condition as Condition


class Call(NamedTuple):
    """The `ordinal`-th launch of a kernel on its rank, from 0."""

    kernel: str
    ordinal: int

    def __str__(self) -> str:
        return f"call {self.ordinal} of {self.kernel}"


@dataclass(frozen=True)
class Track:
    """A block or a warp (-1: the block) of one launch of one rank."""

    rank: int
    launch: int
    block: int
    warp: int = -1

    def __str__(self) -> str:
        warp = f", warp {self.warp}" if self.warp >= 0 else ""
        return f"block {self.block}{warp} of rank {self.rank}"


class OpenSpan(msgspec.Struct, frozen=True):
    """A wait, or an announced span, that has begun and not ended; hang.json has these fields.

    `peer` -1: a wait for somebody on its own rank. `age_s` is how long it was seen, `start_ticks`
    its begin on the device's clock. Its flag holds `held`, and the wait is for `wanted` (0: not
    told). An announced span has no peer, no slot (-1) and no flag.
    """

    rank: int
    launch: int
    kernel: str
    ordinal: int
    block: int
    warp: int
    region: str
    peer: int = -1
    slot: int = -1
    age_s: float = 0.0
    start_ticks: int = 0
    payload: int = 0
    held: int = 0
    wanted: int = 0

    @staticmethod
    def of(track: Track, call: Call, region: str, *rest: Any, **others: Any) -> OpenSpan:
        """A span of a track in a call; what follows the region as above."""
        place = track.rank, track.launch, *call, track.block, track.warp
        return OpenSpan(*place, region, *rest, **others)

    @property
    def track(self) -> Track:
        """The track that it is on."""
        return Track(self.rank, self.launch, self.block, self.warp)

    @property
    def call(self) -> Call:
        """The call that its launch is."""
        return Call(self.kernel, self.ordinal)


@dataclass(frozen=True)
class Sent:
    """A send that a kernel recorded; -1 where it has no peer or slot."""

    track: Track
    call: Call
    region: str
    peer: int
    slot: int


@dataclass(frozen=True)
class Records:
    """What a rank had recorded when it was asked.

    `started` are the blocks of a launch that opened a track. `send_first` holds the pairs (send
    region, wait region) of which a track always did all sends before its first wait. `last_event`
    names the span that ended last.
    """

    num_events: int = 0
    sent: tuple[Sent, ...] = ()
    started: dict[int, frozenset[int]] = field(default_factory=dict)
    send_first: frozenset[tuple[str, str]] = frozenset()
    last_event: str = ""


@dataclass(frozen=True)
class RankState:
    """One rank. `launches` are its latest (call, number of blocks, 0 where unknown) by number.

    Launches below `num_finished` have ended; the host may not know of more. `records` None: the
    rank could not be asked. `is_moving`: it has recorded more between two looks; `host_moves`: its
    Python stack has changed. `error` is what a rank that ended has left as its reason;
    `is_silent`: it gave its stack, but its Python did not run to save what it recorded.
    `gave_up`: it has closed its recorder after kernels that gave up waiting; `waits` are theirs.
    `spans` are open when it is asked, those of a track in the order in which they began.
    `misses_waits`: more waits than kprof has room for; some are not in `waits`.
    """

    rank: int
    condition: Condition = Condition.RUNNING
    pid: int = 0
    num_launches: int = 0
    num_finished: int = 0
    num_calls: int = 0
    launches: dict[int, tuple[Call, int]] = field(default_factory=dict)
    waits: tuple[OpenSpan, ...] = ()
    records: Records | None = None
    stack: tuple[str, ...] = ()
    is_moving: bool = False
    host_moves: bool = False
    error: str = ""
    is_silent: bool = False
    gave_up: bool = False
    spans: tuple[OpenSpan, ...] = ()
    misses_waits: bool = False

    @property
    def last_event(self) -> str:
        """The span that ended last, of a rank whose kernels do not say that they wait."""
        return self.records.last_event if self.records and not self.waits else ""

    def number_of(self, call: Call) -> int | None:
        """The launch of a call, or None where the rank has not made it."""
        return next((n for n, (made, _) in self.launches.items() if made == call), None)


@dataclass(frozen=True)
class RunState:
    """All ranks of a run. `senders` are the regions that release waits of a region (FLOW)."""

    ranks: dict[int, RankState]
    senders: dict[str, tuple[str, ...]] = field(default_factory=dict)
    world_size: int = 0

    @property
    def waits(self) -> tuple[OpenSpan, ...]:
        """Of all ranks, in their order; what a rank that has ended waited for keeps nobody."""
        return tuple(
            wait
            for _, state in sorted(self.ranks.items())
            if state.condition is not Condition.ENDED or state.gave_up
            for wait in state.waits
        )


class Ages:
    """For how long open spans have been seen: from the first look on that saw them."""

    def __init__(self) -> None:
        self._first_seen_s: dict[tuple[Track, str, int], float] = {}

    def seen(self, run: RunState, now_s: float) -> RunState:
        """The same run with the ages of its waits and spans; what it has no longer is forgotten."""
        before_s, self._first_seen_s = self._first_seen_s, {}

        def aged(span: OpenSpan) -> OpenSpan:
            key = span.track, span.region, span.start_ticks
            first_s = self._first_seen_s[key] = before_s.get(key, now_s)
            return structs.replace(span, age_s=round(now_s - first_s, 1))

        ranks = {
            rank: replace(
                state, waits=tuple(map(aged, state.waits)), spans=tuple(map(aged, state.spans))
            )
            for rank, state in run.ranks.items()
        }
        return replace(run, ranks=ranks)
