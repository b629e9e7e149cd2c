"""The facts of a finding, and what tables show of its region: typed fields, and no text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kprof.analysis.findings.thresholds import LEAST_RATIO
from kprof.analysis.findings.when import When
from kprof.capture.verified import Verified

# A stretch of the trace, and the tracks (rank, block) to look at.
Where = tuple[tuple[int, int] | None, tuple[tuple[int, int], ...]]


@dataclass(frozen=True)
class Caused:
    """A wait that remains, under its cause: what `ranks` waited in `region` for `peers`, in ns
    summed over blocks, and its share of the blocks' time."""

    region: str
    ranks: tuple[int, ...]
    peers: tuple[int, ...]
    wait_ns: int
    share: float


@dataclass(frozen=True)
class Arrival:
    """A collective at which ranks are `late_ns` late: the `place`-th of `places` of its kernel in a
    call. `before` is the kernel before it that takes `before_ns` of that; "" where none does."""

    kernel: str
    place: int
    places: int
    late_ns: float
    before: str
    before_ns: float


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What is known about one thing that pays, without a word.

    Where: `ranks` and `blocks` are empty where all of them are meant; `places` are the (rank,
    block) pairs of single blocks; `links` are (source, destination), -1 for every one; `region`
    where it is one; `processors` are SMs (CUs) of `ranks`; `position` is "first" or "last" where it
    is about these events of every track. `hosts` are those whose ranks all are meant, `rail` is the
    n of the n-th ranks of every host, `host_links` are the pairs of hosts that several links join.

    When: `calls` are the ordinals of the calls that have it, `costly_calls` of those that would get
    shorter; `when` is about these, and `period` is the n of "every n-th" call or event (else 0).

    How much: `gain_ns` is what all replayed calls together get shorter, on top of the findings
    before it; `gains_ns` has it by call and `share` as a part of `total_ns`, which all these calls
    took. `alone_ns` is the gain without the findings before it, `interval_ns` where the gain lies
    with 90 % when calls are drawn again. `factor` is how many times as long, or as many, as at
    comparable places. `together` is how many findings pay only together, and the share that they
    then gain; (0, 0.0) for one that pays by itself. One that `is_by_design` is no fault. If
    only counts are known, `is_timed` is false and gains are 0.

    Of a trace that was looked up: `id`; `particulars`, which only its kind knows; `waits`,
    those of other ranks that end with it; `arrival`, where it makes its ranks late for the others;
    `rate`, GB/s of the region per rank and its part of a copy's; `where_ns` and `tracks` (rank,
    block), the stretch of the trace that shows it, the track that shows it most and one to see
    beside it (block LAUNCHES: the rank's kernel launches); `evidence`, the table behind it.
    `warm_up` are calls that were left out, `is_on_gpu` says what ran it, and `is_hidden` that a
    finding before it has to be fixed first. `verified` is what an experiment on the machine showed.
    """

    ranks: tuple[int, ...] = ()
    blocks: tuple[int, ...] = ()
    places: tuple[tuple[int, int], ...] = ()
    links: tuple[tuple[int, int], ...] = ()
    hosts: tuple[str, ...] = ()
    rail: int | None = None
    host_links: tuple[tuple[str, str], ...] = ()
    region: str | None = None
    processors: tuple[int, ...] = ()
    position: str = ""
    calls: tuple[int, ...] = ()
    when: When = When.ONCE
    period: int = 0
    gain_ns: float = 0.0
    interval_ns: tuple[float, float] = (0.0, 0.0)
    share: float = 0.0
    factor: float = 1.0
    gains_ns: tuple[float, ...] = ()
    costly_calls: tuple[int, ...] = ()
    alone_ns: float = 0.0
    total_ns: float = 0.0
    together: tuple[int, float] = (0, 0.0)
    is_timed: bool = True
    is_by_design: bool = False
    id: str = ""
    particulars: Any = None
    waits: tuple[Caused, ...] = ()
    arrival: Arrival | None = None
    rate: tuple[float | None, float | None] = (None, None)
    where_ns: tuple[int, int] | None = None
    tracks: tuple[tuple[int, int], ...] = ()
    evidence: tuple[Mapping[str, Any], ...] = ()
    warm_up: tuple[int, ...] = ()
    is_on_gpu: bool = False
    is_hidden: bool = False
    verified: Verified | None = None

    @property
    def link(self) -> tuple[int, int] | None:
        """The link, where it is one."""
        return self.links[0] if len(self.links) == 1 else None

    @property
    def who_waits(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The ranks that wait because of it, and those that they wait for."""
        waiting = {rank for wait in self.waits for rank in wait.ranks}
        peers = {rank for wait in self.waits for rank in wait.peers}
        return tuple(sorted(waiting)), tuple(sorted(peers))


@dataclass(frozen=True)
class BlockTime:
    """Per block of a call, the mean of those that have the region: its time, its spans, and the
    bytes that they count (0: none)."""

    total_ns: float
    spans: float
    bytes: float


@dataclass(frozen=True)
class GrownRegion:
    """A region where it takes longer, and at the same places in the other recording."""

    longer: BlockTime
    shorter: BlockTime

    @property
    def factor(self) -> float:
        """How many times as long it takes per block."""
        return self.longer.total_ns / self.shorter.total_ns

    @property
    def work(self) -> tuple[float, str] | None:
        """How many times as much a block has to do there, and of what: bytes, or spans where no
        bytes are counted. None where it is as much."""
        here, there = self.longer, self.shorter
        if here.bytes and there.bytes:
            factor, unit = here.bytes / there.bytes, "bytes"
        else:
            factor, unit = here.spans / there.spans, "spans"
        return (factor, unit) if has_changed(1.0, factor) else None


def has_changed(before: float, now: float) -> bool:
    """Whether there is so much more to do, or less, that one would say so."""
    return not 1 / LEAST_RATIO < now / before < LEAST_RATIO
