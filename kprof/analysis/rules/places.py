"""Where a finding shows: the call in which it costs most, and the tracks that a reader would want side by side.

A finding speaks about the whole run. To see it one needs one call of it, the block that shows it most, and one to
look at beside it: a block of the rank that is waited for, or an ordinary block of the same call. All of it comes
from the small tables of the summary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from kprof.analysis.rules.finding import LAUNCHES, Finding
from kprof.analysis.skew import launch_starts
from kprof.capture.database import sql_text

if TYPE_CHECKING:
    from kprof.analysis.summary import Summary

# Kinds whose ranks are the ones waited for: the waits are on other ranks, and name them as their peer.
_WAITED_FOR: Final = ("late_sender", "back_pressure")


@dataclass(frozen=True)
class _Rows:
    """SQL conditions on the summary's cells: those a finding is about, and those to compare them with.

    `causing_rank` is the one that they wait for, if they do.
    """

    about: str
    beside: str
    causing_rank: int | None = None


@dataclass(frozen=True)
class _Call:
    """One call of a kernel: the stretch of time of the rows in question, and a condition on its launches."""

    window_ns: tuple[int, int]
    launches: str


def with_places(summary: Summary, found: Sequence[Finding]) -> list[Finding]:
    """The findings with `where_ns` and `tracks` filled in where they cost time and the trace shows them."""
    return [_placed(summary, finding) if finding.cost_ns > 0 else finding for finding in found]


def _placed(summary: Summary, finding: Finding) -> Finding:
    if finding.where_ns is not None:
        return replace(finding, tracks=finding.tracks or _launch_lines(summary, finding))
    # Blocks are compared within their rank, and so is everything where ranks have no clock in common.
    is_one_rank = bool(finding.blocks) or not summary.trace.is_on_one_clock
    for rows in _candidates(summary, finding):
        call = _costliest_call(summary, rows.about, is_one_rank)
        if call is not None:
            return replace(finding, where_ns=call.window_ns, tracks=_tracks(summary, rows, call))
    return finding


def _launch_lines(summary: Summary, finding: Finding) -> tuple[tuple[int, int], ...]:
    """The kernel launches of the rank concerned and of another one."""
    others = [info.rank for info in summary.trace.ranks if info.rank not in finding.ranks]
    return tuple((rank, LAUNCHES) for rank in (*finding.ranks[:1], *others[:1]))


def _candidates(summary: Summary, finding: Finding) -> list[_Rows]:
    """From the most telling rows to the least; the first that the trace has is taken."""
    region = f"{_region_is(summary, finding)} AND {_kernel_is(finding)}"
    ranks = f"rank IN ({_numbers(finding.ranks)})" if finding.ranks else "true"
    blocks = f"block IN ({_numbers(finding.blocks)})" if finding.blocks else "true"
    src, dst = finding.evidence.get("src"), finding.evidence.get("dst")
    waits = []
    if src is not None and dst is not None:
        waits = [(f"rank = {int(dst)} AND peer = {int(src)}", int(src))]
    elif finding.kind in _WAITED_FOR and finding.ranks:
        waits = [(f"peer IN ({_numbers(finding.ranks)})", finding.ranks[0])]
    return [
        *(_Rows(f"{region} AND {about}", "false", cause) for about, cause in waits),
        *(
            _Rows(f"{region} AND {about}", f"{region} AND NOT ({about})")
            for about in (f"{ranks} AND {blocks}", ranks)
        ),
        _Rows(region, "false"),
    ]


def _region_is(summary: Summary, finding: Finding) -> str:
    ids = [region.id for region in summary.trace.regions.regions if region.name == finding.region]
    return f"region_id = {ids[0]}" if ids else "true"


def _kernel_is(finding: Finding) -> str:
    if "kernel" not in finding.evidence:
        return "true"
    kernel = sql_text(str(finding.evidence["kernel"]))
    return f"(rank, launch) IN (SELECT (rank, launch) FROM launches WHERE kernel = {kernel})"


def _numbers(numbers: Sequence[int]) -> str:
    return ", ".join(str(int(number)) for number in numbers)


def _costliest_call(summary: Summary, about: str, is_one_rank: bool) -> _Call | None:
    """The call in which these rows took most; of the rank where they did, where `is_one_rank`."""
    rank = "rank" if is_one_rank else "-1"
    frame = summary.frame(
        f"""SELECT s.kernel, s.ordinal, {rank} AS of_rank, min(c.first_ns) AS first_ns, max(c.last_ns) AS last_ns
            FROM cells c JOIN spans_of_launches s USING (rank, launch)
            WHERE {about} GROUP BY ALL ORDER BY sum(c.total_ns) DESC, s.ordinal, of_rank LIMIT 1"""
    )
    if frame.empty:
        return None
    row = frame.to_dict("records")[0]
    starts = launch_starts(summary)
    in_call = starts[(starts["kernel"] == row["kernel"]) & (starts["ordinal"] == row["ordinal"])]
    if is_one_rank:
        in_call = in_call[in_call["rank"] == row["of_rank"]]
    launches = in_call[["rank", "launch"]].to_numpy().tolist()
    pairs = ", ".join(f"({rank}, {launch})" for rank, launch in launches)
    window_ns = (int(row["first_ns"]), int(row["last_ns"]))
    return _Call(window_ns, f"(rank, launch) IN ({pairs})")


def _tracks(summary: Summary, rows: _Rows, call: _Call) -> tuple[tuple[int, int], ...]:
    """The block with the most of it, and what to see beside it."""
    worst = _blocks(summary, "cells", f"{rows.about} AND {call.launches}", "total_ns")[:1]
    if rows.causing_rank is not None:
        of_cause = f"rank = {rows.causing_rank} AND {call.launches}"
        return (*worst, *_blocks(summary, "tracks", of_cause, "work_ns")[:1])
    others = _blocks(summary, "cells", f"{rows.beside} AND {call.launches}", "total_ns")
    return (*worst, *others[len(others) // 2 :][:1])


def _blocks(summary: Summary, table: str, where: str, measure: str) -> list[tuple[int, int]]:
    """(rank, block) by a sum, the largest first."""
    frame = summary.frame(
        f"""SELECT rank, block FROM {table} WHERE {where}
            GROUP BY rank, block ORDER BY sum({measure}) DESC, rank, block"""
    )
    return list(zip(frame["rank"].tolist(), frame["block"].tolist(), strict=True))
