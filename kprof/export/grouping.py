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
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from kprof.export.model import By
from kprof.trace.queries import Queries, Workspace

if TYPE_CHECKING:
    from kprof.capture.manifest import RankInfo
    from kprof.trace import Trace

EVENTS: Final = "grouped_events"
NO_ROLE: Final = "no role"


@dataclass(frozen=True)
class Grouping:
    """The view to read events from, and the names of groups, rows and parents of groups.

    `group_names[rank, group]` and `row_names[row]` name tracks; `parents[rank, group]` names the
    track above, if there is one.
    """

    tables: Queries
    events: str
    group_names: Mapping[tuple[int, int], str]
    row_names: Mapping[int, str]
    parents: Mapping[tuple[int, int], str]
    idle_groups: tuple[tuple[int, int], ...] = ()


def grouping(trace: Trace, by: By) -> Grouping | None:
    """The grouping of a trace's events. None for blocks, which need none."""
    if by is By.BLOCK:
        return None
    return _by_processor(trace) if by is By.PROCESSOR else _by_role(trace)


def _by_processor(trace: Trace) -> Grouping:
    rows = trace.sql(
        """SELECT rank, launch, block, warp, CAST(min(hw_id) AS BIGINT) AS hw_id,
               min(start_ns) AS first_ns, max(end_ns) AS last_ns
           FROM events GROUP BY rank, launch, block, warp ORDER BY rank, hw_id, first_ns, launch,
               block, warp"""
    ).to_pylist()
    infos = {info.rank: info for info in trace.ranks}
    seen = {(row["rank"], row["hw_id"]) for row in rows}
    idle = tuple(
        (info.rank, number)
        for info in trace.ranks
        if info.target == "cuda"
        for number in range(info.num_processors)
        if (info.rank, number) not in seen
    )
    everything = sorted({*seen, *idle})
    return Grouping(
        *_grouped(trace, _stacked(rows)),
        group_names={key: processor_name(infos[key[0]], key[1]) for key in everything},
        row_names=_Numbered(),
        parents={key: name for key in everything if (name := chiplet_name(infos[key[0]], key[1]))},
        idle_groups=idle,
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
    return f"XCD {hw_id >> 16}" if info.target == "hip" and info.arch.startswith("gfx94") else ""


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
        placed.append(_placed(row, row["hw_id"], number))
    return placed


def _by_role(trace: Trace) -> Grouping:
    rows = trace.sql(
        f"""WITH spent AS (
                SELECT rank, launch, block, warp,
                    CASE WHEN contains(region, '/') THEN split_part(region, '/', 1)
                        ELSE '{NO_ROLE}' END AS role,
                    sum(duration_ns) AS total_ns
                FROM events GROUP BY rank, launch, block, warp, role)
            SELECT rank, launch, block, warp, first(role ORDER BY total_ns DESC, role) AS role
            FROM spent GROUP BY rank, launch, block, warp ORDER BY block, warp, rank, launch"""
    ).to_pylist()
    roles = sorted({row["role"] for row in rows})
    tracks = {key: i for i, key in enumerate(dict.fromkeys((r["block"], r["warp"]) for r in rows))}
    placed = [
        _placed(row, roles.index(row["role"]), tracks[row["block"], row["warp"]]) for row in rows
    ]
    return Grouping(
        *_grouped(trace, placed),
        group_names={(row["rank"], roles.index(row["role"])): row["role"] for row in rows},
        row_names={i: _track_name(*key) for key, i in tracks.items()},
        parents={},
    )


def _track_name(block: int, warp: int) -> str:
    return f"block {block}" if warp < 0 else f"block {block} warp {warp}"


def _placed(row: dict[str, Any], group: int, number: int) -> dict[str, Any]:
    return {
        "rank": row["rank"],
        "launch": row["launch"],
        "block": row["block"],
        "warp": row["warp"],
        "new_block": group,
        "new_warp": number,
    }


def _grouped(trace: Trace, placed: list[dict[str, Any]]) -> tuple[Queries, str]:
    """A workspace with a view of the regrouped events, and the view's name."""
    import pyarrow as pa

    columns = ("rank", "launch", "block", "warp", "new_block", "new_warp")
    tables = Workspace(trace)
    tables.put(
        "places",
        pa.table({name: pa.array([row[name] for row in placed], pa.int64()) for name in columns}),
    )
    tables.frame(
        f"""CREATE OR REPLACE TEMP VIEW {EVENTS} AS
            SELECT e.* REPLACE (p.new_block AS block, p.new_warp AS warp)
            FROM events e JOIN places p USING (rank, launch, block, warp)"""
    )
    return tables, EVENTS


class _Numbered(dict[int, str]):
    """`row 3` for 3."""

    def __missing__(self, number: int) -> str:
        return f"row {number}"
