"""Where a finding shows: the call in which it costs most, and the tracks that a reader would want side by side.

A finding speaks about the whole run. To see it one needs one call of it, the blocks that it is about, and an
ordinary block of the same call to compare with. All of it comes from the small tables of the summary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from kprof.analysis.rules.finding import LAUNCHES, Finding
from kprof.analysis.skew import launch_starts

if TYPE_CHECKING:
    from kprof.trace import Trace

# Tracks beside each other on one screen: the ones that a finding is about, and what to compare them with.
_MAX_TRACKS: Final = 2
# Kinds whose ranks are the ones waited for: the waits are on other ranks, and name them as their peer.
_WAITED_FOR: Final = ("late_sender", "back_pressure")


@dataclass(frozen=True)
class _Rows:
    """SQL conditions on the summary's cells: those a finding is about, and those to compare them with."""

    about: str
    beside: str


def with_places(trace: Trace, found: Sequence[Finding]) -> list[Finding]:
    """The findings with `where_ns` and `tracks` filled in where they cost time and the trace shows them."""
    return [_placed(trace, finding) if finding.cost_ns > 0 else finding for finding in found]


def _placed(trace: Trace, finding: Finding) -> Finding:
    if finding.where_ns is not None:
        return replace(finding, tracks=finding.tracks or _launch_lines(trace, finding))
    for rows in _candidates(trace, finding):
        call = _costliest_call(trace, rows.about)
        if call is not None:
            window_ns, in_call = call
            return replace(finding, where_ns=window_ns, tracks=_tracks(trace, rows, in_call))
    return finding


def _launch_lines(trace: Trace, finding: Finding) -> tuple[tuple[int, int], ...]:
    """The kernel launches of the ranks concerned and of another one."""
    others = [info.rank for info in trace.ranks if info.rank not in finding.ranks]
    return tuple((rank, LAUNCHES) for rank in (*finding.ranks[:_MAX_TRACKS], *others[:1]))


def _candidates(trace: Trace, finding: Finding) -> list[_Rows]:
    """From the most telling rows to the least; the first that the trace has is taken."""
    region = _region_is(trace, finding)
    ranks = f"rank IN ({_numbers(finding.ranks)})" if finding.ranks else "true"
    blocks = f"block IN ({_numbers(finding.blocks)})" if finding.blocks else "true"
    src, dst = finding.evidence.get("src"), finding.evidence.get("dst")
    candidates = []
    if src is not None and dst is not None:
        candidates.append(f"rank = {int(dst)} AND peer = {int(src)}")
    elif finding.kind in _WAITED_FOR and finding.ranks:
        candidates.append(f"peer IN ({_numbers(finding.ranks)})")
    candidates += [f"{ranks} AND {blocks}", ranks]
    rows = [_Rows(f"{region} AND {about}", f"{region} AND NOT ({about})") for about in candidates]
    return [*rows, _Rows(region, "false")]


def _region_is(trace: Trace, finding: Finding) -> str:
    ids = [region.id for region in trace.regions.regions if region.name == finding.region]
    return f"region_id = {ids[0]}" if ids else "true"


def _numbers(numbers: Sequence[int]) -> str:
    return ", ".join(str(int(number)) for number in numbers)


def _costliest_call(trace: Trace, about: str) -> tuple[tuple[int, int], str] | None:
    """The stretch of time and the launches of the call in which these rows took most."""
    # Ranks without a common clock have no common stretch of time: then the costliest rank's own.
    is_one_clock = trace.alignment is not None or len(trace.manifest.ranks) < 2
    rank = "-1" if is_one_clock else "rank"
    frame = trace.frame(
        f"""SELECT s.kernel, s.ordinal, {rank} AS of_rank, min(c.first_ns) AS first_ns, max(c.last_ns) AS last_ns
            FROM cells c JOIN spans_of_launches s USING (rank, launch)
            WHERE {about} GROUP BY ALL ORDER BY sum(c.total_ns) DESC, s.ordinal, of_rank LIMIT 1"""
    )
    if frame.empty:
        return None
    row = frame.to_dict("records")[0]
    starts = launch_starts(trace)
    in_call = starts[(starts["kernel"] == row["kernel"]) & (starts["ordinal"] == row["ordinal"])]
    if row["of_rank"] >= 0:
        in_call = in_call[in_call["rank"] == row["of_rank"]]
    launches = in_call[["rank", "launch"]].to_numpy().tolist()
    pairs = ", ".join(f"({rank}, {launch})" for rank, launch in launches)
    return (int(row["first_ns"]), int(row["last_ns"])), f"(rank, launch) IN ({pairs})"


def _tracks(trace: Trace, rows: _Rows, in_call: str) -> tuple[tuple[int, int], ...]:
    """The blocks with the most of it, the worst first, and the middle one of those beside them."""
    worst = _blocks(trace, f"{rows.about} AND {in_call}")[:_MAX_TRACKS]
    ordinary = [
        block for block in _blocks(trace, f"{rows.beside} AND {in_call}") if block not in worst
    ]
    return (*worst, *ordinary[len(ordinary) // 2 :][:1])


def _blocks(trace: Trace, where: str) -> list[tuple[int, int]]:
    frame = trace.frame(
        f"""SELECT rank, block FROM cells WHERE {where}
            GROUP BY rank, block ORDER BY sum(total_ns) DESC, rank, block"""
    )
    return list(zip(frame["rank"].tolist(), frame["block"].tolist(), strict=True))
