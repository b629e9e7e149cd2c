"""Sends and waits, read from the events in slices that can be joined one by one.

A slice holds whole groups of launches (launches.py). A group with too many ends for a slice is cut
by slot: a send and its wait have the same slot, so they are in the same slice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from kprof.capture.directory import EVENT_OPEN
from kprof.trace.events import Events
from kprof.trace.flows.launches import Side, has_lost, is_lossy
from kprof.trace.flows.pairing import Doubt, Ends, pair
from kprof.trace.queries import Workspace
from kprof.trace.views import EVENT_ID_RANK_SHIFT, aligned_sql, segment_of

if TYPE_CHECKING:
    from kprof.capture.database import Arrays

_SIDES: Final = "flow_sides"


@dataclass(frozen=True)
class Slice:
    """Groups `first` to `last`, or the slots of one large group with `slot % parts == part`."""

    first: int
    last: int
    launches: tuple[int, ...]
    num_ends: int
    part: int = 0
    parts: int = 1


@dataclass(frozen=True)
class FlowEnds:
    """The sends and waits of a trace that can meet."""

    trace: Events
    sides: tuple[Side, ...]
    tables: Workspace

    @staticmethod
    def of(trace: Events, all_sides: Iterable[Side]) -> FlowEnds:
        """Those of the selection; `all_sides` are of the whole capture (`Trace.flow_sides`)."""
        sides = tuple(side for side in all_sides if _is_selected(side, trace))
        tables = Workspace(trace)
        tables.put(_SIDES, _sides_table(trace, sides))
        return FlowEnds(trace, sides, tables)

    @cached_property
    def ends_of_groups(self) -> dict[int, int]:
        """How many sends and waits each group has, by its number."""
        counts: Counter[int] = Counter()
        for side in self.sides:
            counts[side.group] += side.num_ends
        return counts

    def slices(self, max_ends: int, groups: frozenset[int] | None = None) -> Iterator[Slice]:
        """All groups or some of them, in slices of about `max_ends` sends and waits; half as many
        again where a single group has them."""
        chosen: list[int] = []
        total = 0
        for group, count in self.ends_of_groups.items():
            if groups is not None and group not in groups:
                continue
            is_next = not chosen or group == chosen[-1] + 1
            if chosen and (total + count > max_ends or not is_next):
                yield from self._cut(chosen, total, max_ends)
                chosen, total = [], 0
            chosen.append(group)
            total += count
        if chosen:
            yield from self._cut(chosen, total, max_ends)

    def _cut(self, groups: list[int], num_ends: int, max_ends: int) -> Iterator[Slice]:
        first, last = groups[0], groups[-1]
        # Every part scans the launches whole, so a little too many ends are read at once.
        parts = max(1, round(num_ends / max_ends))
        launches = tuple(sorted(set().union(*(self._launches_of_groups[each] for each in groups))))
        for part in range(parts):
            yield Slice(first, last, launches, num_ends // parts, part, parts)

    @cached_property
    def _launches_of_groups(self) -> dict[int, set[int]]:
        launches: dict[int, set[int]] = {}
        for side in self.sides:
            launches.setdefault(side.group, set()).add(side.launch)
        return launches

    def read(self, chosen: Slice) -> tuple[Ends, Ends]:
        """Sends and waits of a slice."""
        return split(self.tables.arrays(f"{self.query} WHERE {_where(chosen)}"))

    def batches(self) -> Iterator[tuple[Ends, Ends]]:
        """All sends and waits in one scan, in no order."""
        for piece in self.tables.pieces(f"{self.query} WHERE {_CAN_MEET}"):
            yield split(piece)

    def pair(self, sends: Ends, waits: Ends) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Rows of the sends and of the waits that belong together and are both selected."""
        return pair(sends, waits, self._doubt)

    @cached_property
    def _doubt(self) -> Doubt:
        manifest = self.trace.manifest
        size = 1 + max((info.rank for info in manifest.ranks), default=0)
        lossy = np.full(max(size, manifest.world_size), is_lossy(manifest))
        for info in manifest.ranks:
            lossy[info.rank] = has_lost(info)
        alignment = self.trace.alignment
        in_block = np.array([rule.in_block for rule in self.trace.regions.flows], np.bool_)
        if not self.trace.is_on_one_clock:
            return Doubt(lossy, None, in_block)
        bounds = [entry.bound_ns for entry in alignment.ranks] if alignment else []
        return Doubt(lossy, 2 * max(bounds, default=0.0), in_block)

    @cached_property
    def query(self) -> str:
        """All ends, as columns of Ends; from the records, at half the cost of the view `events`.

        The largest value of a field means that the real one did not fit: such ends have no partner.
        Within blocks, source and destination are the rank, and every block has its own epochs.
        """
        peer = f"CASE WHEN f.in_block THEN e.rank ELSE {_field('peer')} END"
        return f"""
        SELECT CAST(f.rule AS SMALLINT) AS rule, f.is_send,
            CAST(CASE WHEN f.is_send THEN e.rank ELSE {peer} END AS INTEGER) AS src,
            CAST(CASE WHEN f.is_send THEN {peer} ELSE e.rank END AS INTEGER) AS dst,
            CASE WHEN f.in_block THEN (CAST(f.epoch AS BIGINT) << 32) + e.block ELSE f.epoch END
                AS epoch,
            CAST({_field("slot")} AS BIGINT) AS slot,
            CAST(f.turn AS INTEGER) AS turn,
            {aligned_sql("e.start_ns")} AS start_ns,
            {aligned_sql("e.start_ns + e.duration_ns")} AS end_ns,
            (CAST(e.rank AS BIGINT) << {EVENT_ID_RANK_SHIFT}) + e.file_row_number AS event_id,
            CAST(e.launch AS INTEGER) AS launch, CAST(e.block AS INTEGER) AS block,
            CAST(e.warp AS SMALLINT) AS warp,
            {self.trace.cut_sql} AS is_selected
        FROM raw_events e
        JOIN {_SIDES} f ON f.rank = e.rank AND f.launch = e.launch AND f.region = e.region
        JOIN clock_segments c ON {segment_of("e.rank", "e.start_ns")}"""


_CAN_MEET: Final = (
    f"e.flags & {EVENT_OPEN} = 0 AND (e.payload >> f.slot_shift) & f.slot_mask < f.slot_mask "
    "AND (f.in_block OR (e.payload >> f.peer_shift) & f.peer_mask < f.peer_mask)"
)


def _where(chosen: Slice) -> str:
    """Names launches, too, so that row groups of other launches are not read."""
    launches = ", ".join(map(str, chosen.launches)) or "NULL"
    terms = [
        _CAN_MEET,
        f'e.launch IN ({launches}) AND f."group" BETWEEN {chosen.first} AND {chosen.last}',
    ]
    if chosen.parts > 1:
        terms.append(f"{_field('slot')} % {chosen.parts} = {chosen.part}")
    return " AND ".join(terms)


def _field(name: str) -> str:
    return f"((e.payload >> f.{name}_shift) & f.{name}_mask)"


def split(table: Arrays) -> tuple[Ends, Ends]:
    """Rows of the query as sends and waits."""
    columns = dict(table)
    is_send = columns.pop("is_send")
    ends = Ends(**columns)
    return ends.rows(is_send), ends.rows(~is_send)


def _is_selected(side: Side, trace: Events) -> bool:
    """The condition on ranks, launches and regions.

    Blocks and times must wait until after the join.
    """
    selection = trace.selection
    if selection.regions is not None:
        rule = trace.regions.flows[side.rule]
        names = {trace.regions[rule.send].name, trace.regions[rule.wait].name}
        if not names <= set(selection.regions):
            return False
    return (selection.ranks is None or side.rank in selection.ranks) and (
        selection.launches is None or side.launch in selection.launches
    )


def _sides_table(trace: Events, sides: tuple[Side, ...]) -> Arrays:
    """What the query needs to know of each side, by local region ids."""
    local = trace.local_regions
    rows = [(side, local[side.rank][side.region]) for side in sides]
    columns: dict[str, list[int] | list[bool]] = {
        name: [getattr(side, name) for side in sides]
        for name in ("rule", "is_send", "rank", "launch", "epoch", "turn", "group")
    }
    columns["region"] = [region.id for _, region in rows]
    columns["in_block"] = [trace.regions.flows[side.rule].in_block for side in sides]
    for name in ("peer", "slot"):  # flows within a block need no peer
        fields = [region.field(name) for _, region in rows]
        columns[f"{name}_shift"] = [field.shift if field else 0 for field in fields]
        columns[f"{name}_mask"] = [field.mask if field else 0 for field in fields]
    kinds = {name: np.bool_ if name in ("is_send", "in_block") else np.int64 for name in columns}
    return {name: np.array(values, kinds[name]) for name, values in columns.items()}


_ENDS_PER_SLICE: Final = 2_000_000


def flow_pairs(trace: Events, sides: Iterable[Side]) -> Iterator[Arrays]:
    """All flows of the selection, slice by slice."""
    ends = FlowEnds.of(trace, sides)
    for chosen in ends.slices(_ENDS_PER_SLICE):
        sends, waits = ends.read(chosen)
        s, w = ends.pair(sends, waits)
        columns = {
            name: getattr(waits, name)[w] for name in ("rule", "launch", "src", "dst", "slot")
        }
        for side, of_side, rows in (("send", sends, s), ("wait", waits, w)):
            for name in ("event_id", "block", "warp", "start_ns", "end_ns"):
                columns[f"{side}_{name}"] = getattr(of_side, name)[rows]
        yield columns
