"""Findings in the exported trace: slices on a line of their ranks, and where they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from kprof.analysis import Finding, Limit
from kprof.analysis.wording import duration, percent
from kprof.errors import SelectionError
from kprof.export.model import OverlayLine, OverlaySlice

LINE_NAME: Final = "findings"
# What Perfetto's UI shows in tabs, in the trace processor's SQL. A row with these last four columns
# leads to its slice. The rank is the track without a parent (see export/tracks.py).
FINDINGS_QUERY: Final = """\
SELECT extract_arg(arg_set_id, 'debug.finding') AS finding, name AS what_was_found,
extract_arg(arg_set_id, 'debug.gain') AS gain,
extract_arg(arg_set_id, 'debug.what to do') AS what_to_do, min(id) AS id, ts, dur, track_id
FROM slice WHERE category = 'finding' GROUP BY finding ORDER BY finding"""
WAITS_QUERY: Final = """\
SELECT coalesce(d.name, c.name, b.name, a.name) AS who,
extract_arg(arg_set_id, 'debug.peer') AS waits_for_rank, sum(dur) / 1e3 AS us, count(*) AS times
FROM slice JOIN track a ON a.id = track_id LEFT JOIN track b ON b.id = a.parent_id
LEFT JOIN track c ON c.id = b.parent_id LEFT JOIN track d ON d.id = c.parent_id
WHERE category IN ('wait', 'sync') AND waits_for_rank IS NOT NULL GROUP BY 1, 2 ORDER BY us DESC"""
# The margin around a finding, as a share of its length.
_MARGIN: Final = 0.1


def finding_lines(found: Sequence[Finding], ranks: Sequence[int]) -> tuple[OverlayLine, ...]:
    """A line for each of `ranks` that has findings.

    Leaves out findings that have no time of their own in the trace.
    """
    slices: dict[int, list[OverlaySlice]] = {}
    for number, finding in enumerate(found, start=1):
        if finding.where_ns is None:
            continue
        slice_ = _slice(number, finding)
        for rank in _ranks(finding, ranks):
            slices.setdefault(rank, []).append(slice_)
    return tuple(OverlayLine(rank, LINE_NAME, tuple(slices[rank])) for rank in sorted(slices))


def _ranks(finding: Finding, ranks: Sequence[int]) -> list[int]:
    """The ranks that the finding and its tracks name; all ranks if it names none."""
    on_links = {end for link in finding.links for end in link}
    named = {*finding.ranks, *on_links, *(rank for rank, _ in finding.tracks)}
    return [rank for rank in ranks if rank in named or not named]


def _slice(number: int, finding: Finding) -> OverlaySlice:
    assert finding.where_ns is not None
    args: dict[str, int | str] = {
        "finding": number,
        "id": finding.id,
        "kind": finding.kind.name,
        "what to do": finding.advice,
        "details": "; ".join(finding.details),
    }
    if finding.is_timed:
        args["gain"] = f"{duration(finding.gain_ns)}, {percent(finding.share)} of the calls"
    return OverlaySlice(finding.sentence, "finding", *finding.where_ns, args)


def find(found: Sequence[Finding | Limit], which: str) -> Finding | Limit:
    """The finding with this id, or this number in the report (from 1).

    Raises SelectionError.
    """
    for number, finding in enumerate(found, start=1):
        if which in (finding.id, str(number)):
            return finding
    known = ", ".join(finding.id for finding in found) or "this trace has none"
    raise SelectionError(f"unknown finding {which!r}; known: {known}")


def window_ns(finding: Finding | Limit) -> tuple[int, int]:
    """The aligned time of the finding, with a margin.

    Raises SelectionError if the finding has no time in the trace.
    """
    if finding.where_ns is None:
        raise SelectionError(f"finding {finding.id} has no time in the trace; omit --finding")
    first, last = finding.where_ns
    margin = max(1, round(_MARGIN * (last - first)))
    return first - margin, last + margin
