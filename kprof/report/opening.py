"""Decides where the trace viewer opens: on a finding or the busiest call, with an arrow selected;
and puts the trace into the report page, where a click on a finding opens it.

The Perfetto UI finds the slice to select by its start and length, so the slice must be the only one
with these.
"""

from __future__ import annotations

import base64
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from kprof.analysis import Finding, Findings, Limit
from kprof.capture.database import sql_text
from kprof.export import By, write
from kprof.export.links import ONLINE_UI, DeepLink, PinnedTrack
from kprof.export.model import ExportSummary, OverlayLine
from kprof.regions import Category
from kprof.report.in_trace import FINDINGS_QUERY, WAITS_QUERY, finding_lines, window_ns
from kprof.report.model import Report
from kprof.trace import Trace
from kprof.trace.limits import MAX_EVENTS_IN_PAGE, MAX_SLICES, MAX_SLICES_IN_PAGE
from kprof.trace.views import STILL_WAITING

_MARGIN: Final = 0.05
# A hang is shown over this at least.
_LEAST_NS: Final = 1_000
_MOST_PINNED: Final = 4


@dataclass(frozen=True)
class Place:
    """A range of aligned time, and its (rank, block) pairs, the most relevant first.

    Of a finding also its region, and the stretch of time of its own slice in the export (see
    in_trace.py).
    """

    first_ns: int
    last_ns: int
    tracks: tuple[tuple[int, int], ...]
    region: str | None = None
    own_ns: tuple[int, int] | None = None

    def pinned(self, by: By = By.BLOCK) -> tuple[PinnedTrack, ...]:
        """The tracks to pin, if blocks have their own."""
        tracks = (PinnedTrack(rank, block) for rank, block in self.tracks)
        return tuple(track for track in tracks if track.block < 0 or by is By.BLOCK)


def write_to_view(
    trace: Trace,
    output: Path,
    found: Findings,
    shown: Finding | Limit | None = None,
    *,
    torch_traces: Sequence[Path] = (),
    by: By = By.BLOCK,
    progress: Callable[[float], None] | None = None,
) -> DeepLink:
    """Write a trace, and return the link that opens it on one finding, or see `opening_place`.

    Of a large trace it writes the time around the finding with every slice, instead of everything
    with merged slices. Raises SelectionError if the finding has no time in the trace.
    """
    place = opening_place(trace, found.shown) if shown is None else place_of(shown)
    if shown is not None and place is not None and trace.num_events() > MAX_SLICES:
        origin_ns = trace.origin_ns()
        around_ns = (max(0, place.first_ns - origin_ns), place.last_ns - origin_ns)
        trace = trace.select(time_ns=around_ns)
    lines = finding_lines(found.findings, [info.rank for info in trace.ranks])
    summary = write(
        trace,
        output,
        lines=lines,
        torch_traces=torch_traces,
        by=by,
        pinned=() if place is None else place.pinned(by),
        progress=progress,
    )
    link = DeepLink() if place is None else link_to(trace, place, summary, by)
    return replace(link, queries=_tabs(trace, lines, summary))


def _tabs(trace: Trace, lines: Sequence[OverlayLine], summary: ExportSummary) -> tuple[str, ...]:
    """The queries whose answers are tabs beside the selected slice: waits, and findings if any."""
    # Merged slices have no peer.
    has_waits = not summary.num_merged and any(
        region.category in (Category.WAIT, Category.SYNC)
        and any(field.name == "peer" for field in region.fields)
        for region in trace.regions.regions
    )
    return (WAITS_QUERY,) * has_waits + (FINDINGS_QUERY,) * bool(lines)


def opening_place(trace: Trace, found: Sequence[Finding | Limit]) -> Place | None:
    """Where an export of `trace` opens: on waits that never ended, on its first finding, or on its
    busiest call: the first of these that there is."""
    shown = [finding for finding in found if finding.where_ns is not None]
    place = hung_place(trace)
    if place is None and shown:
        # Nobody asked for it: an arrow says more there than its own slice.
        place = replace(place_of(shown[0]), region=None, own_ns=None)
    return place or busiest_place(trace)


def place_of(finding: Finding | Limit) -> Place:
    """The place of a finding. Raises SelectionError if it has none in the trace."""
    # Limits of the design have no slice of their own.
    own_ns = finding.where_ns if isinstance(finding, Finding) else None
    return Place(*window_ns(finding), finding.tracks, finding.region, own_ns)


def link_to(trace: Trace, place: Place, summary: ExportSummary, by: By = By.BLOCK) -> DeepLink:
    """The link that opens an export of `trace` on a place: tracks pinned, ranks unfolded, an arrow
    selected.

    Selects the arrow of the longest wait there, if possible on these tracks; without arrows, the
    longest span. Of a finding, only waits and spans of its region on its tracks count; without any
    it selects the finding's own slice. The export must know what is pinned.
    """
    # Ranks are called "Rank 3 (host...", with leading zeros where there are more than ten.
    ranks = dict.fromkeys(rank for rank, _ in place.tracks)
    link = DeepLink(
        tracks=place.pinned(by),
        expanded=tuple(f"^Rank 0*{rank}\\b" for rank in ranks),
    ).within(summary, place.first_ns, place.last_ns)
    # Merging may have removed the slice to select.
    chosen = (
        None
        if summary.num_merged
        else _open_wait(trace, place) or _arrow(trace, place) or _span(trace, place)
    )
    if chosen is None and place.own_ns is not None:
        # The ranks of a finding have the same slice: whichever is selected, it is the finding's.
        chosen = place.own_ns[0], place.own_ns[1] - place.own_ns[0]
    if chosen is None:
        return link
    return link.selecting(chosen[0] - summary.origin_ns, chosen[1], summary)


def hung_place(trace: Trace) -> Place | None:
    """What came before the waits that never ended, and about as much of these, which go on for
    seconds. None where all ended."""
    if trace.manifest.hang is None or not trace.manifest.hang.num_open:
        return None
    rows = trace.frame(
        f"""WITH waits AS (SELECT * FROM events WHERE {STILL_WAITING}),
            before AS (SELECT rank, min(start_ns) AS first_ns FROM events
                SEMI JOIN waits USING (rank, launch) GROUP BY rank)
        SELECT rank, block, first_ns, max(start_ns) OVER (PARTITION BY rank) AS last_ns,
            end_ns FROM waits JOIN before USING (rank) ORDER BY rank, block"""
    )
    if rows.empty:
        return None
    tracks = list(zip(rows["rank"].tolist(), rows["block"].tolist(), strict=True))
    shown = [pair for pair in trace.manifest.hang.shown if pair in tracks] or tracks[:1]
    others = [pair for pair in tracks if pair not in shown]
    if not trace.is_on_one_clock:
        # Times of other ranks would be elsewhere.
        rows = rows[rows["rank"] == shown[0][0]]
        others = [pair for pair in others if pair[0] == shown[0][0]]
    first, last = int(rows["first_ns"].min()), int(rows["last_ns"].max())
    length = max(_LEAST_NS, last - first)
    tracks = list(dict.fromkeys([*shown, *others]))[:_MOST_PINNED]
    return Place(first - length // 10, min(last + length, int(rows["end_ns"].max())), tuple(tracks))


def busiest_place(trace: Trace) -> Place | None:
    """The call with the most recorded time, with its busiest block and the least busy one of the
    same rank. None without events."""
    rows = trace.frame(
        """WITH busy AS (
               SELECT ordinal, rank, block, sum(duration_ns) AS busy_ns,
                   min(start_ns) AS first_ns, max(end_ns) AS last_ns
               FROM events GROUP BY ordinal, rank, block),
           call AS (SELECT ordinal FROM busy GROUP BY ordinal ORDER BY sum(busy_ns) DESC,
               ordinal LIMIT 1)
           SELECT rank, block, busy_ns, min(first_ns) OVER () AS first_ns, max(last_ns) OVER ()
               AS last_ns
           FROM busy JOIN call USING (ordinal) ORDER BY busy_ns DESC, rank, block"""
    )
    if rows.empty:
        return None
    most = rows.iloc[0]
    likes = rows[rows["rank"] == most["rank"]]
    tracks = dict.fromkeys(
        (int(row["rank"]), int(row["block"])) for row in (most, likes.iloc[len(likes) - 1])
    )
    first, last = int(most["first_ns"]), int(most["last_ns"])
    margin = max(1, round(_MARGIN * (last - first)))
    return Place(first - margin, last + margin, tuple(tracks))


def _open_wait(trace: Trace, place: Place) -> tuple[int, int] | None:
    """The start and length of a wait that never ended, on the first of the tracks."""
    if trace.manifest.hang is None:
        return None
    return _first_row(
        trace,
        f"""SELECT start_ns, duration_ns FROM events
            WHERE {STILL_WAITING} AND {_on(place, "rank", "block")}
            QUALIFY count(*) OVER (PARTITION BY start_ns, duration_ns) = 1
            ORDER BY {_on(replace(place, tracks=place.tracks[:1]), "rank", "block")} DESC,
                start_ns, duration_ns LIMIT 1""",
    )


def _arrow(trace: Trace, place: Place) -> tuple[int, int] | None:
    """The start and length of a slice at the end of an arrow.

    An arrow ends at the wait, or, if that began before the send, at an instant at the wait's end
    (see export/packets.py). Sends and waits of several flows show only one arrow, so this chooses
    among those with one.
    """
    if not trace.regions.flows:
        return None
    trace.require_flows()
    return _first_row(
        trace,
        f"""WITH arrows AS (
                SELECT *, send_start_ns > wait_start_ns AS is_late,
                    wait_end_ns - wait_start_ns AS waited_ns,
                    CASE WHEN is_late THEN wait_end_ns ELSE wait_start_ns END AS start_ns,
                    CASE WHEN is_late THEN 0 ELSE waited_ns END AS duration_ns
                FROM flows
                WHERE wait_end_ns > send_start_ns AND wait_end_ns BETWEEN {place.first_ns}
                    AND {place.last_ns} AND {_of_finding(place, "wait_region", "dst", "wait_block")}
                QUALIFY count(*) OVER (PARTITION BY send_event_id) = 1
                    AND count(*) OVER (PARTITION BY wait_event_id) = 1),
            alone AS (
                SELECT * FROM arrows
                QUALIFY count(*) OVER (PARTITION BY start_ns, duration_ns) = 1)
            SELECT start_ns, duration_ns FROM alone a
            WHERE (SELECT count(*) FROM events e
                   WHERE e.start_ns = a.start_ns AND e.duration_ns = a.duration_ns
                       AND e.kind <> 'value')
                = CASE WHEN is_late THEN 0 ELSE 1 END
            ORDER BY {_on(place, "dst", "wait_block")} DESC, {_on(place, "src", "send_block")} DESC,
                waited_ns DESC, start_ns, duration_ns LIMIT 1""",
    )


def _span(trace: Trace, place: Place) -> tuple[int, int] | None:
    """The start and length of the longest span, if possible on the tracks."""
    return _first_row(
        trace,
        f"""SELECT start_ns, duration_ns FROM events
            WHERE kind = 'span' AND end_ns > start_ns
                AND start_ns BETWEEN {place.first_ns} AND {place.last_ns}
                    AND end_ns <= {place.last_ns}
                    AND {_of_finding(place, "region", "rank", "block")}
            QUALIFY count(*) OVER (PARTITION BY start_ns, duration_ns) = 1
            ORDER BY {_on(place, "rank", "block")} DESC, duration_ns DESC, start_ns LIMIT 1""",
    )


def _of_finding(place: Place, region: str, rank: str, block: str) -> str:
    """Whether a row may show the finding, in SQL: it is of its region, on one of its tracks."""
    if place.region is None and place.own_ns is None:
        return "true"
    return f"({region} = {sql_text(place.region or '')} AND {_on(place, rank, block)})"


def _on(place: Place, rank: str, block: str) -> str:
    """Whether a row is on one of the tracks, in SQL; lines of launches count if they are all."""
    blocks = [track for track in place.tracks if track[1] >= 0]
    terms = [
        f"({rank} = {int(r)} AND {block} = {int(b)})" if b >= 0 else f"({rank} = {int(r)})"
        for r, b in blocks or place.tracks
    ]
    return f"({' OR '.join(terms) or 'false'})"


def _first_row(trace: Trace, query: str) -> tuple[int, int] | None:
    rows = trace.records(query)
    return (int(rows[0]["start_ns"]), int(rows[0]["duration_ns"])) if rows else None


@dataclass(frozen=True)
class EmbeddedTrace:
    """A gzipped pftrace in base64, and for each finding id the part of the UI's address that opens
    it."""

    title: str
    base64: str
    links: dict[str, str]
    ui: str = ONLINE_UI


def embed(trace: Trace, report: Report, *, ui: str = ONLINE_UI) -> EmbeddedTrace | None:
    """Export `trace` for the page of its report. None if it has nothing to show, or too much."""
    shown = [finding for finding in report.found.shown if finding.where_ns is not None]
    places = {finding.id: place_of(finding) for finding in shown}
    if not places or report.num_events > MAX_EVENTS_IN_PAGE:
        return None
    lines = finding_lines(report.findings, [info.rank for info in trace.ranks])
    with tempfile.TemporaryDirectory(prefix="kprof-report-") as folder:
        file = Path(folder) / "trace.pftrace.gz"
        pinned = {track for place in places.values() for track in place.pinned()}
        summary = write(trace, file, max_slices=MAX_SLICES_IN_PAGE, lines=lines, pinned=pinned)
        data = base64.b64encode(file.read_bytes()).decode()
    tabs = _tabs(trace, lines, summary)
    links = {
        name: replace(link_to(trace, place, summary), queries=tabs).query().lstrip("&")
        for name, place in places.items()
    }
    return EmbeddedTrace(" ".join(report.manifest.command) or "kprof", data, links, ui)
