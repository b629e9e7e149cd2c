"""Reads a Trace in pieces that fit memory: whole blocks of a rank, sorted for the writers."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Final

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from kprof.capture.database import sql_text
from kprof.capture.directory import EVENT_OPEN
from kprof.export.grouping import Grouping
from kprof.export.model import FIRST_EVENT_NS, OverlaySlice
from kprof.regions import Category, Kind, Region
from kprof.trace import Trace
from kprof.trace.columns import Columns
from kprof.trace.views import STILL_WAITING

# A piece of this many events needs about 50 MB.
_ROWS_PER_PIECE: Final = 1 << 18
# Name 0, a mark on blocks that recorded nothing: viewers hide tracks without events.
IDLE_NAME: Final = "no events recorded"
_SECONDS: Final = "CAST(round(duration_ns / 1e9) AS BIGINT)"
_MAX_OPEN_NAMES: Final = 256


@dataclass(frozen=True)
class TrackKey:
    """A track of the device and its number of events. `warp` -1 is the block itself."""

    rank: int
    block: int
    warp: int
    num_events: int


@dataclass(frozen=True)
class Piece:
    """Blocks `first_block` to `last_block` of a rank, in one query."""

    rank: int
    first_block: int
    last_block: int
    num_events: int


@dataclass(frozen=True)
class RawEvents(Columns):
    """Events of one piece, sorted by (block, warp, start, longer first), in file time.

    Every column has shape (n,).
    """

    event_id: NDArray[np.int64]
    launch: NDArray[np.int64]
    block: NDArray[np.int64]
    warp: NDArray[np.int64]
    name: NDArray[np.int32]
    flags: NDArray[np.uint8]
    start_ns: NDArray[np.int64]
    end_ns: NDArray[np.int64]
    payload: NDArray[np.int64]


@dataclass(frozen=True)
class Source:
    """A trace's time base, names, tracks and pieces."""

    trace: Trace
    origin_ns: int
    last_ns: int
    names: tuple[Region, ...]
    name_sql: str
    keys: tuple[TrackKey, ...]
    grouping: Grouping

    @staticmethod
    def of(trace: Trace, grouping: Grouping, slices: Sequence[OverlaySlice]) -> Source:
        """Read every event once. The file's time also covers the `slices` of overlays."""
        first_ns, last_ns = trace.window_ns()
        first_ns = min([first_ns, *(slice_.start_ns for slice_ in slices)])
        last_ns = max([last_ns, *(slice_.end_ns for slice_ in slices)])
        origin_ns = first_ns - FIRST_EVENT_NS
        names, name_sql = _names(trace)
        keys = _track_keys(grouping)
        return Source(trace, origin_ns, last_ns - origin_ns, names, name_sql, keys, grouping)

    @property
    def num_events(self) -> int:
        """The number of selected events."""
        return sum(key.num_events for key in self.keys)

    def pieces(self, rank: int) -> list[Piece]:
        """The pieces of a rank, split at block boundaries."""
        return self._pieces.get(rank, [])

    def read(self, piece: Piece) -> RawEvents:
        """Read a piece. No span ends before it starts (see end_sql)."""
        if piece not in self._read_ahead:
            self._read_ahead.clear()
            self._read_ahead.update(self._fetch(self._read_together(piece)))
        return self._read_ahead.pop(piece)

    @cached_property
    def _pieces(self) -> dict[int, list[Piece]]:
        pieces: dict[int, list[Piece]] = {}
        for key in self.keys:
            of_rank = pieces.setdefault(key.rank, [])
            last = of_rank[-1] if of_rank else None
            is_same_block = last is not None and last.last_block == key.block
            if last and (is_same_block or last.num_events + key.num_events <= _ROWS_PER_PIECE):
                total = last.num_events + key.num_events
                of_rank[-1] = Piece(key.rank, last.first_block, key.block, total)
            else:
                of_rank.append(Piece(key.rank, key.block, key.block, key.num_events))
        return pieces

    @cached_property
    def _read_ahead(self) -> dict[Piece, RawEvents]:
        """Pieces that were read together with the one requested last."""
        return {}

    def _read_together(self, first: Piece) -> list[Piece]:
        """Whole ranks from `first` on, because finding one of many ranks takes longer than reading
        it."""
        together, num_events = [first], first.num_events
        if len(self._pieces[first.rank]) > 1:
            return together
        following = itertools.dropwhile(lambda rank: rank != first.rank, self._pieces)
        for rank in itertools.islice(following, 1, None):
            piece, *others = self._pieces[rank]
            num_events += piece.num_events
            if others or num_events > _ROWS_PER_PIECE:
                break
            together.append(piece)
        return together

    def _fetch(self, pieces: list[Piece]) -> Iterator[tuple[Piece, RawEvents]]:
        ranks = ", ".join(str(piece.rank) for piece in pieces)
        only = pieces[0]
        is_part = len(pieces) == 1
        blocks = f"block BETWEEN {only.first_block} AND {only.last_block}" if is_part else "true"
        table = self.grouping.tables.arrays(
            f"""SELECT rank, event_id, launch, block, warp, {self.name_sql} AS name, flags,
                start_ns - {self.origin_ns} AS start_ns,
                {end_sql("", self.last_ns + self.origin_ns)} - {self.origin_ns} AS end_ns, payload
            FROM {self.grouping.events}
            WHERE rank IN ({ranks}) AND {blocks}
            ORDER BY rank, block, warp, start_ns, end_ns DESC, event_id"""
        )
        narrow = {"name": np.int32, "flags": np.uint8}
        columns = {
            field.name: np.asarray(table[field.name], narrow.get(field.name, np.int64))
            for field in fields(RawEvents)
        }
        rank = table["rank"]
        for piece in pieces:
            first, end = np.searchsorted(rank, [piece.rank, piece.rank + 1])
            yield piece, RawEvents(**{name: of[first:end] for name, of in columns.items()})


def end_sql(prefix: str, last_ns: int) -> str:
    """SQL: the end of an event of a table with this prefix.

    Of an open span that is when it was last seen open, or the end of the trace.
    """
    is_endless = f"{prefix}flags & {EVENT_OPEN} <> 0 AND {prefix}duration_ns = 0"
    end = f"greatest({prefix}start_ns, {prefix}end_ns)"
    return f"CASE WHEN {is_endless} THEN {last_ns} ELSE {end} END"


def _names(trace: Trace) -> tuple[tuple[Region, ...], str]:
    """The names of events, and SQL: the index of an event's name."""
    names = [Region(0, IDLE_NAME, kind=Kind.MARK), *trace.regions.regions]
    name_sql = "region_id"
    cases = ""
    for (region,) in trace.rows(
        "SELECT DISTINCT region FROM events WHERE region_id = 0 ORDER BY region"
    )[1]:
        cases += f" WHEN {sql_text(region)} THEN {len(names)}"
        names.append(Region(len(names), region))
    if cases:
        name_sql = f"CASE WHEN region_id <> 0 THEN region_id ELSE CASE region{cases} END END"
    if trace.manifest.hang is None:
        return tuple(names), name_sql
    cases = ""
    for region_id, seconds in trace.rows(
        f"""SELECT DISTINCT region_id, {_SECONDS} AS seconds FROM events
            WHERE {STILL_WAITING} AND region_id <> 0 ORDER BY ALL LIMIT {_MAX_OPEN_NAMES}"""
    )[1]:
        cases += f" WHEN region_id = {region_id} AND {_SECONDS} = {seconds} THEN {len(names)}"
        names.append(_open_region(trace.regions[region_id], len(names), seconds))
    if cases:
        ended = f"CASE{cases} ELSE {name_sql} END"
        name_sql = f"CASE WHEN {STILL_WAITING} THEN {ended} ELSE {name_sql} END"
    return tuple(names), name_sql


def _open_region(of: Region, number: int, seconds: int) -> Region:
    """A region of its own for waits that were seen open after so many seconds, and no end: viewers
    give it another colour."""
    age = f"{seconds} s" if seconds else "less than a second"
    is_work = of.category in (Category.COMPUTE, Category.SEND)
    state = "not ended" if is_work else "still waiting"
    return structs.replace(of, id=number, name=f"{of.name}: {state} after {age}")


def _track_keys(grouping: Grouping) -> tuple[TrackKey, ...]:
    """Every track with events, and the groups without events."""
    _, rows = grouping.tables.rows(
        f"SELECT rank, block, warp, count(*) FROM {grouping.events} GROUP BY rank, block, warp"
    )
    keys = [TrackKey(*row) for row in rows]
    seen = {(key.rank, key.block) for key in keys}
    keys += [TrackKey(*group, -1, 0) for group in grouping.groups if group not in seen]
    return tuple(sorted(keys, key=lambda key: (key.rank, key.block, key.warp)))
