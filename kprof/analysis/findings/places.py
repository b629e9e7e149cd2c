"""Where a finding shows: one call, and the tracks that a reader would want side by side.

A finding speaks about the whole run. To see it one needs the call in which it costs most, the block
that shows it most, and one to look at beside it: a block of the rank that is waited for, or an
ordinary block of the same call. All of it comes from the small tables of the summary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from kprof.analysis.findings.facts import Where
from kprof.analysis.findings.finding import Finding
from kprof.analysis.findings.limits import Limit, LimitKind
from kprof.analysis.summary import WAIT, Summary, sql_list

# In place of a block: the line of the rank's kernel launches.
LAUNCHES: Final = -1


@dataclass(frozen=True)
class _Rows:
    """SQL conditions on the summary's cells: those of a finding, and those to compare with.

    `idle_in` are launches, as a query: a block without any event there says most beside a busy one.
    """

    about: str
    beside: str
    idle_in: str = ""


def place_of(summary: Summary, finding: Finding, ordinals: Sequence[int]) -> Where:
    """The stretch of time and the tracks that show a finding.

    `ordinals` are the calls of its gains, in order.
    """
    ordinal = ordinals[0] if ordinals else 0
    if finding.gains_ns:
        # The call that gains most; where no gain is known, the first one.
        ordinal = ordinals[int(np.argmax(finding.gains_ns))]
    shown = finding.kind.shown_at(summary, finding, ordinal)
    if shown is not None:
        return shown
    return _first_that_shows(summary, _candidates(summary, finding), ordinal)


def worst_beside_idle(summary: Summary, finding: Finding, ordinal: int) -> Where:
    """A call's block with the most of it, and one that has nothing of it."""
    region = _region_is(summary, finding.region)
    ranks = _ranks_are(finding)
    launches = f"SELECT rank, launch FROM cells c WHERE {region} AND {ranks}"
    beside = f"(c.rank, c.launch) IN ({launches})"
    rows = _Rows(f"{region} AND {ranks}", beside, idle_in=launches)
    return _first_that_shows(summary, [rows], ordinal)


def _first_that_shows(summary: Summary, candidates: Sequence[_Rows], ordinal: int) -> Where:
    for rows in candidates:
        window = _window(summary, f"{rows.about} AND s.ordinal = {ordinal}")
        if window is not None:
            return window, _tracks(summary, rows, ordinal)
    return None, ()


def _ranks_are(finding: Finding) -> str:
    return f"c.rank IN ({sql_list(finding.ranks)})" if finding.ranks else "true"


def place_of_design(summary: Summary, limit: Limit, ordinals: Sequence[int]) -> Where:
    """The call with the median of it: its block with the most of it, above another one; where only
    one block works, above the launch on its rank."""
    region = _region_is(summary, limit.region)
    rows = _Rows(region, region)
    calls = summary.frame(
        f"""SELECT s.ordinal FROM {_CELLS} WHERE {rows.about}
            AND s.ordinal IN ({sql_list(ordinals)}) GROUP BY s.ordinal
            ORDER BY sum(c.total_ns), s.ordinal"""
    )["ordinal"].tolist()
    if not calls:
        return None, ()
    ordinal = int(calls[len(calls) // 2])
    tracks = _tracks(summary, rows, ordinal)
    rank, block = tracks[0]
    others = [place for place in _blocks(summary, f"s.ordinal = {ordinal}") if place[0] == rank]
    if len(others) == 1 or limit.kind is LimitKind.FEW_BLOCKS:
        tracks = ((rank, block), (rank, LAUNCHES))
    return _window(summary, f"{rows.about} AND s.ordinal = {ordinal}"), tracks


def _candidates(summary: Summary, finding: Finding) -> list[_Rows]:
    """From the most telling rows to the least; the first that the trace has is taken."""
    region = _region_is(summary, finding.region)
    if finding.links:
        held_up = f"({' OR '.join(_is_on(*link) for link in finding.links)}) AND {WAIT}"
        return [_Rows(held_up, f"{WAIT} AND NOT ({held_up})")]
    ranks = _ranks_are(finding)
    blocks = f"block IN ({sql_list(finding.blocks)})" if finding.blocks else "true"
    if finding.places:
        pairs = ", ".join(f"({rank}, {block})" for rank, block in finding.places)
        blocks = f"(c.rank, block) IN ({pairs})"
    about = [f"{ranks} AND {blocks}", ranks] if finding.ranks or finding.blocks else []
    return [
        *(_Rows(f"{region} AND {rows}", f"{region} AND NOT ({rows})") for rows in about),
        _Rows(region, region),
    ]


def _is_on(source: int, destination: int) -> str:
    """Waits for one source on one destination; either may be every one."""
    peer = f"peer = {int(source)}" if source >= 0 else "peer >= 0"
    return f"({peer} AND c.rank = {int(destination)})" if destination >= 0 else f"({peer})"


def _region_is(summary: Summary, name: str | None) -> str:
    ids = [region.id for region in summary.trace.regions.regions if region.name == name]
    return f"region_id = {ids[0]}" if ids else "true"


# All cells: findings are about unknown regions, too, which have no category of their own.
_CELLS = """(SELECT c.*, coalesce(r.category, 'other') AS category
        FROM cells c LEFT JOIN regions r ON r.id = c.region_id) c
    JOIN spans_of_launches s ON s.rank = c.rank AND s.launch = c.launch"""


def _window(summary: Summary, where: str) -> tuple[int, int] | None:
    first, last = summary.row(f"SELECT min(c.first_ns), max(c.last_ns) FROM {_CELLS} WHERE {where}")
    return None if first is None else (first, max(last, first + 1))


def _tracks(summary: Summary, rows: _Rows, ordinal: int) -> tuple[tuple[int, int], ...]:
    """The block with the most of it, and one with the median of the others."""
    worst = _blocks(summary, f"{rows.about} AND s.ordinal = {ordinal}")[:1]
    beside = _blocks(summary, f"{rows.beside} AND s.ordinal = {ordinal}")
    if rows.idle_in:
        beside = _idle_blocks(summary, worst, rows.idle_in, ordinal) or beside
    others = [place for place in beside if place not in worst]
    return (*worst, *others[len(others) // 2 :][:1])


def _idle_blocks(
    summary: Summary, worst: list[tuple[int, int]], launches: str, ordinal: int
) -> list[tuple[int, int]]:
    """Blocks of the rank of the worst one that did nothing in those launches of a call."""
    if not worst:
        return []
    rank = worst[0][0]
    frame = summary.frame(
        f"""SELECT DISTINCT block FROM tracks WHERE rank = {rank} AND block NOT IN (
                SELECT t.block FROM tracks t JOIN spans_of_launches s USING (rank, launch)
                WHERE t.rank = {rank} AND s.ordinal = {ordinal}
                    AND (t.rank, t.launch) IN ({launches}))
            ORDER BY block"""
    )
    return [(rank, block) for block in frame["block"].tolist()]


def _blocks(summary: Summary, where: str) -> list[tuple[int, int]]:
    """(rank, block) by time, the largest first."""
    frame = summary.frame(
        f"""SELECT c.rank, block FROM {_CELLS} WHERE {where}
            GROUP BY c.rank, block ORDER BY sum(c.total_ns) DESC, c.rank, block"""
    )
    return list(zip(frame["rank"].tolist(), frame["block"].tolist(), strict=True))
