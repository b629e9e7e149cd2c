"""Alternatives to the track tree rank > block > warp: by processor, or by the role of a warp.

    processor   rank > (chiplet >) SM or CU > rows; a row holds blocks or warps that were there one
                after the other
    role        rank > role > block and warp; a role is the part before the "/" of the regions where
                a warp spends most of its time: "load" of "load/wait"

A grouping maps every (rank, launch, block, warp) to a group and a row, which replace block and
warp.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from kprof.capture.manifest import RankInfo
from kprof.export.links import PinnedTrack
from kprof.export.model import By
from kprof.trace import Trace
from kprof.trace.queries import Queries, Workspace

_GROUPED: Final = "grouped_events"
NO_ROLE: Final = "no role"
# Blocks without events are shown for kernels with at most this many.
_MAX_IDLE_BLOCKS: Final = 4096


@dataclass(frozen=True)
class Grouping:
    """The view to read events from, and the names of groups and rows.

    `group_name(rank, group)` and `row_name(row)` name tracks; `parent_name(rank, group)` names the
    track above a group, empty where that is the rank. `groups` are (rank, group) to show even
    without events. Of the tracks in `pinned` names say all, since they are shown without their
    parents.
    """

    tables: Queries
    events: str
    group_name: Callable[[int, int], str]
    row_name: Callable[[int], str]
    parent_name: Callable[[int, int], str] = lambda _rank, _group: ""
    groups: tuple[tuple[int, int], ...] = ()
    pinned: frozenset[PinnedTrack] = frozenset()

    @property
    def is_by_block(self) -> bool:
        """Whether groups and rows are blocks and warps."""
        return self.events != _GROUPED


def grouping(trace: Trace, by: By) -> Grouping:
    """The grouping of a trace's events."""
    return {By.BLOCK: _by_block, By.PROCESSOR: _by_processor, By.ROLE: _by_role}[by](trace)


def _by_block(trace: Trace) -> Grouping:
    return Grouping(
        trace,
        "events",
        group_name=lambda _rank, block: f"block {block}",
        row_name=lambda warp: f"warp {warp}",
        groups=tuple(_launched_blocks(trace)),
    )


def _launched_blocks(trace: Trace) -> Iterator[tuple[int, int]]:
    """Nothing where only some events of blocks are selected."""
    selection = trace.selection
    if (selection.blocks, selection.regions, selection.time_ns) != (None, None, None):
        return
    for info in trace.ranks:
        sizes = [
            launch.num_blocks
            for launch in info.launches
            if selection.launches is None or launch.launch in selection.launches
        ]
        num_blocks = max(sizes, default=0)
        if num_blocks <= _MAX_IDLE_BLOCKS:
            yield from ((info.rank, block) for block in range(num_blocks))


def _by_processor(trace: Trace) -> Grouping:
    rows = trace.records(
        """SELECT rank, launch, block, warp, CAST(min(hw_id) AS BIGINT) AS hw_id,
               min(start_ns) AS first_ns, max(end_ns) AS last_ns
           FROM events GROUP BY rank, launch, block, warp ORDER BY rank, hw_id, first_ns, launch,
               block, warp"""
    )
    infos = {info.rank: info for info in trace.ranks}
    return Grouping(
        _grouped(trace, _stacked(rows)),
        _GROUPED,
        group_name=lambda rank, number: processor_name(infos[rank], number),
        row_name=lambda row: f"row {row}",
        parent_name=lambda rank, number: chiplet_name(infos[rank], number),
        groups=tuple(
            (info.rank, number)
            for info in trace.ranks
            if info.target == "cuda"
            for number in range(info.num_processors)
        ),
    )


def processor_name(info: RankInfo, hw_id: int) -> str:
    """The name of a processor, from its hardware id: `SM 17`, `SE 1 CU 7` or `core 3`."""
    if info.target == "cuda":
        return f"SM {hw_id}"
    if info.target == "hip":
        # Bits 8 to 15 of HW_ID, see platform/hip.h: CU in 4 bits, shader array in 1, shader engine
        # in 3.
        return f"SE {hw_id >> 5 & 7} SA {hw_id >> 4 & 1} CU {hw_id & 15}"
    return f"core {hw_id}" if info.target == "cpu" else f"processor {hw_id}"


def chiplet_name(info: RankInfo, hw_id: int) -> str:
    """`XCD 3` on a GPU with chiplets, else nothing."""
    has_chiplets = info.target == "hip" and info.arch.startswith(("gfx94", "gfx95"))
    return f"XCD {hw_id >> 16}" if has_chiplets else ""


def _stacked(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Gives each track the lowest free row of its processor. `rows` are sorted by (rank, hw_id,
    first_ns)."""
    placed: list[dict[str, Any]] = []
    ending: list[tuple[int, int]] = []
    free: list[int] = []
    num_rows, processor = 0, None
    for row in rows:
        if (row["rank"], row["hw_id"]) != processor:
            processor, ending, free, num_rows = (row["rank"], row["hw_id"]), [], [], 0
        while ending and ending[0][0] <= row["first_ns"]:
            heapq.heappush(free, heapq.heappop(ending)[1])
        if not free:
            heapq.heappush(free, num_rows)
            num_rows += 1
        number = heapq.heappop(free)
        heapq.heappush(ending, (max(row["last_ns"], row["first_ns"] + 1), number))
        placed.append(row | {"new_block": row["hw_id"], "new_warp": number})
    return placed


def _by_role(trace: Trace) -> Grouping:
    rows = trace.records(
        f"""WITH spent AS (
                SELECT rank, launch, block, warp,
                    CASE WHEN contains(region, '/') THEN split_part(region, '/', 1)
                        ELSE '{NO_ROLE}' END AS role,
                    sum(duration_ns) AS total_ns
                FROM events GROUP BY rank, launch, block, warp, role)
            SELECT rank, launch, block, warp, first(role ORDER BY total_ns DESC, role) AS role
            FROM spent GROUP BY rank, launch, block, warp ORDER BY block, warp, rank, launch"""
    )
    roles = sorted({row["role"] for row in rows})
    tracks = list(dict.fromkeys((row["block"], row["warp"]) for row in rows))
    number_of = {track: i for i, track in enumerate(tracks)}
    names = [f"block {block}" + (f" warp {warp}" if warp >= 0 else "") for block, warp in tracks]
    for row in rows:
        row["new_block"] = roles.index(row["role"])
        row["new_warp"] = number_of[row["block"], row["warp"]]
    return Grouping(
        _grouped(trace, rows),
        _GROUPED,
        group_name=lambda _rank, number: roles[number],
        row_name=lambda number: names[number],
    )


def _grouped(trace: Trace, placed: list[dict[str, Any]]) -> Queries:
    """A workspace with the view _GROUPED of the regrouped events."""
    columns = ("rank", "launch", "block", "warp", "new_block", "new_warp")
    tables = Workspace(trace)
    places = {name: np.array([row[name] for row in placed], np.int64) for name in columns}
    tables.put("places", places)
    tables.frame(
        f"""CREATE OR REPLACE TEMP VIEW {_GROUPED} AS
            SELECT e.* REPLACE (p.new_block AS block, p.new_warp AS warp)
            FROM events e JOIN places p USING (rank, launch, block, warp)"""
    )
    return tables
