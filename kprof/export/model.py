"""What every writer gets: names, tracks and batches of their events. Times are ns in the exported
file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from kprof.on_use import np
from kprof.trace.columns import Columns

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kprof.regions import Region

# The time of the first event in the file. Not 0, which viewers read as "no time".
FIRST_EVENT_NS: Final = 1_000
# A rank's line of kernel launches.
LAUNCHES_NAME: Final = "kernel launches"


class By(str, Enum):
    """What a rank's tracks are: see grouping.py."""

    BLOCK = "block"
    PROCESSOR = "processor"
    ROLE = "role"


@dataclass(frozen=True)
class ExportSummary:
    """What was written. `notices` say what was left out and how to get it. `num_merged` spans share
    slices with neighbours.

    Aligned ns = ns in the file + `origin_ns`. The file's events lie between FIRST_EVENT_NS and
    `last_ns`.
    """

    path: Path
    num_slices: int
    num_flows: int
    num_tracks: int
    size_bytes: int
    notices: tuple[str, ...] = ()
    origin_ns: int = 0
    last_ns: int = 0
    num_merged: int = 0


class TrackKind(Enum):
    """What a track shows."""

    PROCESS = "process"
    RANK = "rank"
    LAUNCHES = "launches"
    OVERLAY = "overlay"
    CHIPLET = "chiplet"
    BLOCK = "block"
    WARP = "warp"
    COUNTER = "counter"


@dataclass(frozen=True)
class Track:
    """A line in the viewer. `id` is unique over all ranks and > 0; `order` sorts siblings.

    A lane (`lane` > 0) is a further line of the track before it, with the same name and parent, for
    overlapping spans.
    """

    id: int
    kind: TrackKind
    name: str
    rank: int
    parent: int = 0
    order: int = 0
    lane: int = 0
    unit: str = ""


@dataclass(frozen=True)
class Rank:
    """A rank as readers see it. `pid` is unique in the trace.

    `place` is its host and device.
    """

    rank: int
    pid: int
    name: str
    labels: tuple[str, ...]
    place: str = ""


@dataclass(frozen=True)
class OverlaySlice:
    """A slice that is not an event of the trace: a kernel launch on one rank, from its first event
    to its last, a finding, or a slice of a foreign trace. `track` is 0 until it has one. `color` is
    the category of regions whose colour it has, if any."""

    name: str
    category: str
    start_ns: int
    end_ns: int
    args: Mapping[str, int | str] = field(default_factory=dict)
    track: int = 0
    color: str = ""


@dataclass(frozen=True)
class OverlayLine:
    """A line between the launches and the blocks of a rank: findings, or a line of a foreign trace.

    Times are aligned ns.
    """

    rank: int
    name: str
    slices: tuple[OverlaySlice, ...]


@dataclass(frozen=True)
class Batch(Columns):
    """Events of one rank, sorted by (track, start, longer first). Every column has shape (n,).

    `name` indexes Header.names. `flow_out` and `flow_in` are flow ids, 0 for none. `late_ns` is how
    long a wait had lasted when the send that released it began, 0 if the send began first. A row
    with `num_merged` > 1 represents that many short spans, `busy_ns` long in total.
    """

    track: NDArray[np.int64]
    name: NDArray[np.int32]
    flags: NDArray[np.uint8]
    start_ns: NDArray[np.int64]
    end_ns: NDArray[np.int64]
    payload: NDArray[np.int64]
    flow_out: NDArray[np.int64]
    flow_in: NDArray[np.int64]
    late_ns: NDArray[np.int64]
    num_merged: NDArray[np.int32]
    busy_ns: NDArray[np.int64]

    def chunks(self, num_rows: int) -> Iterator[Batch]:
        """The batch in pieces of at most `num_rows`, which fit the cache."""
        for first in range(0, len(self), num_rows):
            yield self.rows(slice(first, first + num_rows))


@dataclass(frozen=True)
class CounterPoints:
    """A counter: `values[i]` is valid from `start_ns[i]` on. Shapes (n,), values >= 0."""

    track: int
    start_ns: NDArray[np.int64]
    values: NDArray[np.int64]


@dataclass(frozen=True)
class Header:
    """What is known before the first event. `names[0]` marks blocks without events."""

    names: tuple[Region, ...]
    ranks: tuple[Rank, ...]
    last_ns: int


class Writer(Protocol):
    """One output format.

    Calls come in this order: begin, then tracks before the events on them, then end.
    """

    def begin(self, header: Header) -> None:
        """Write what precedes all tracks."""

    def tracks(self, tracks: list[Track]) -> None:
        """Declare tracks, parents first."""

    def launches(self, launches: list[OverlaySlice]) -> None:
        """Write kernel launches, by track and start."""

    def events(self, batch: Batch) -> None:
        """Write spans, marks and values."""

    def counter(self, points: CounterPoints) -> None:
        """Write one counter, by time."""

    def end(self) -> None:
        """Write what follows all events."""
