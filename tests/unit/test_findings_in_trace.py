"""Findings in the trace: where they are, as slices of the exported file, and as links that open it on them."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest

from kprof import analysis
from kprof import report as reports
from kprof.analysis import Finding, Findings, Summary
from kprof.errors import SelectionError
from kprof.export import ExportSummary, write
from kprof.report import in_trace
from kprof.report.opening import link_to, place_of, write_to_view
from kprof.trace import Trace
from planted import Plant, simulate
from synthetic import TraceBuilder

pytestmark = pytest.mark.slow

Processor = Callable[[Path], Any]
VIEW = "kprof view 'my run.kprof'"


@pytest.fixture(scope="module")
def trace() -> Trace:
    """Rank 3 has three times the tokens."""
    return simulate(Plant(tokens_of={3: 3.0}))


@pytest.fixture(scope="module")
def found(trace: Trace) -> Findings:
    return analysis.find(Summary.of(trace))


@pytest.fixture(scope="module")
def report(trace: Trace) -> reports.Report:
    return reports.build(trace, view_command=VIEW)


@pytest.fixture(scope="module")
def late_sends() -> tuple[Trace, Finding]:
    """Rank 2 does nothing for a while."""
    trace = simulate(Plant(send_late_ns={2: 30_000}))
    return trace, of_kind(analysis.find(Summary.of(trace)), "idle_gap")


@pytest.fixture(scope="module")
def late_start() -> tuple[Trace, Finding]:
    trace = simulate(Plant(start_late_ns={5: 60_000}))
    return trace, of_kind(analysis.find(Summary.of(trace)), "late_start")


def of_kind(found: Findings, kind: str) -> Finding:
    return next(finding for finding in found.findings if finding.kind.name == kind)


def events_within(trace: Trace, finding: Finding, rank: int, block: int) -> int:
    """How many events of the finding's region a track has in the finding's window."""
    assert finding.where_ns is not None
    frame = trace.frame(
        """SELECT count(*) AS n FROM events WHERE rank = ? AND block = ? AND start_ns >= ? AND end_ns <= ?
           AND (region = ? OR ? IS NULL)""",
        [rank, block, *finding.where_ns, finding.region, finding.region],
    )
    return int(frame["n"][0])


def test_a_finding_shows_on_its_place_beside_an_ordinary_one(
    trace: Trace,
    found: Findings,
    late_sends: tuple[Trace, Finding],
    late_start: tuple[Trace, Finding],
) -> None:
    uneven, gap, late = of_kind(found, "uneven_work"), late_sends[1], late_start[1]
    for finding, rank in ((uneven, 3), (gap, 2), (late, 5)):
        (first, _), (other, _) = finding.tracks
        assert first == rank != other
    assert all(events_within(trace, uneven, rank, block) for rank, block in uneven.tracks)
    # Launches have a line of their own.
    assert [line for _, line in late.tracks] == [-1, -1]
    (wait,) = gap.waits
    assert (wait.peers, wait.region) == ((2,), "dispatch/wait-token")
    assert 2 not in wait.ranks
    of_blocks = analysis.find(Summary.of(simulate(Plant(heavy_blocks={(4, 7): 4.0})))).findings
    heavy, other_block = next(finding.tracks for finding in of_blocks if finding.blocks)
    assert heavy == (4, 7) != other_block


def test_a_window_is_one_call_not_the_whole_run(trace: Trace, found: Findings) -> None:
    starts = analysis.launch_starts(Summary.of(trace))
    calls = starts.groupby("ordinal").agg(first=("first_ns", "min"), last=("last_ns", "max"))
    for finding in found.findings:
        if finding.where_ns is not None:
            first, last = finding.where_ns
            assert ((calls["first"] <= first) & (last <= calls["last"])).sum() == 1, finding.id


def test_without_one_clock_the_window_is_of_one_rank() -> None:
    trace = simulate(Plant(tokens_of={3: 3.0}, is_aligned=False))
    found = analysis.find(Summary.of(trace))
    finding = next(finding for finding in found.findings if finding.is_timed)
    assert len({rank for rank, _ in finding.tracks}) == 1
    assert finding.where_ns is not None
    ends = trace.frame(
        """SELECT count(*) FILTER (start_ns = ?) AS begun, count(*) FILTER (end_ns = ?) AS ended
           FROM events WHERE rank = ?""",
        [*finding.where_ns, finding.tracks[0][0]],
    )
    assert (ends[["begun", "ended"]] > 0).all(axis=None)


def test_findings_are_slices_on_a_line_of_their_ranks(
    trace: Trace, found: Findings, tmp_path: Path, processor: Processor
) -> None:
    lines = in_trace.finding_lines(found.findings, [info.rank for info in trace.ranks])
    summary = write(trace, tmp_path / "trace.pftrace", lines=lines)
    loaded = processor(summary.path)
    assert loaded.import_errors() == []
    rows = loaded.rows(
        """SELECT r.name, s.name, s.ts, s.dur, extract_arg(s.arg_set_id, 'debug.id'),
               extract_arg(s.arg_set_id, 'debug.kind'), extract_arg(s.arg_set_id, 'debug.finding')
           FROM slice s JOIN track t ON t.id = s.track_id JOIN track r ON r.id = t.parent_id
           WHERE s.category = 'finding' AND t.name = 'findings' ORDER BY r.name, s.ts"""
    )
    expected = {
        (rank, finding.sentence, finding.where_ns, finding.id, finding.kind.name, number)
        for number, finding in enumerate(found.findings, start=1)
        if finding.where_ns is not None
        for rank in {*finding.ranks, *(rank for rank, _ in finding.tracks)}
    }
    assert expected
    assert {
        (
            int(name.split()[1]),
            sentence,
            (ts + summary.origin_ns, ts + dur + summary.origin_ns),
            *rest,
        )
        for name, sentence, ts, dur, *rest in rows
    } == expected
    assert len(rows) == len(expected)


def test_a_link_zooms_on_the_finding_and_its_tracks_have_slices_there(
    trace: Trace, found: Findings, tmp_path: Path, processor: Processor
) -> None:
    finding = of_kind(found, "uneven_work")
    summary = write(trace, tmp_path / "trace.pftrace", pinned=place_of(finding).pinned())
    arguments = parse_qs(link_to(trace, place_of(finding), summary).query())
    first, last = int(arguments["visStart"][0]), int(arguments["visEnd"][0])
    assert finding.where_ns is not None
    assert first <= finding.where_ns[0] - summary.origin_ns
    assert finding.where_ns[1] - summary.origin_ns <= last + 1
    assert last - first < 2.1 * (finding.where_ns[1] - finding.where_ns[0])
    commands = json.loads(arguments["startupCommands"][0])
    expand = [each for each in commands if each["id"] == "dev.perfetto.ExpandTracksByRegex"]
    assert [each["args"] for each in expand] == [["^Rank 0*3\\b"], ["^Rank 0*5\\b"]]
    pinned = [each for each in commands if each["id"] == "dev.perfetto.PinTracksByRegex"]
    assert [*expand, *pinned] == commands
    assert len(pinned) == len(finding.tracks)
    loaded = processor(summary.path)
    for (rank, block), command in zip(finding.tracks, pinned, strict=True):
        (pattern,) = command["args"]
        assert re.match(pattern, f"Rank {rank} block {block}")
        starts = loaded.column(
            f"""SELECT ts FROM slice JOIN track t ON t.id = track_id
                WHERE t.name = 'Rank {rank} block {block}'"""
        )
        assert any(first <= start <= last for start in starts)


def test_a_link_on_launches_names_the_launches_of_its_rank(
    late_start: tuple[Trace, Finding], tmp_path: Path, processor: Processor
) -> None:
    trace, finding = late_start
    place = place_of(finding)
    summary = write(trace, tmp_path / "trace.pftrace", pinned=place.pinned())
    track = link_to(trace, place, summary).tracks[0]
    assert track.title == "Rank 5 kernel launches"
    names = processor(summary.path).column(
        f"SELECT slice.name FROM slice JOIN track t ON t.id = track_id WHERE t.name = '{track.title}'"
    )
    kernels = trace.frame("SELECT kernel FROM launches WHERE rank = 5 ORDER BY launch")["kernel"]
    assert sorted(names) == sorted(kernels.tolist())


def test_tabs_show_the_findings_and_for_whom_ranks_wait(
    trace: Trace, found: Findings, tmp_path: Path, processor: Processor
) -> None:
    link = write_to_view(trace, tmp_path / "trace.pftrace", found)
    of_waits, of_findings = link.queries
    loaded = processor(tmp_path / "trace.pftrace")
    rows = loaded.rows(of_findings)
    assert [row[:2] for row in rows] == [
        (number, finding.sentence) for number, finding in enumerate(found.findings, start=1)
    ]
    assert loaded.rows(f"SELECT name FROM slice WHERE id = {rows[0][4]}") == [rows[0][1:2]]
    waits = trace.frame(
        """SELECT rank, peer, sum(duration_ns) / 1e3 AS us FROM events
           WHERE category IN ('wait', 'sync') AND peer IS NOT NULL GROUP BY ALL"""
    )
    shown = [(int(who.split()[1]), peer, us) for who, peer, us, _ in loaded.rows(of_waits)]
    assert sorted(shown) == sorted(waits.itertuples(index=False, name=None))
    assert [us for *_, us in shown] == sorted((us for *_, us in shown), reverse=True)


def test_tabs_are_only_of_what_there_is(tmp_path: Path) -> None:
    build = TraceBuilder('REGION(R_COPY, "copy", compute)', num_ranks=1)
    build.span(0, "copy", 0, 5)
    found = analysis.find(Summary.of(build.trace()))
    assert write_to_view(build.trace(), tmp_path / "trace.pftrace", found).queries == ()


def test_a_finding_about_a_gap_selects_its_own_slice(late_sends: tuple[Trace, Finding]) -> None:
    trace, finding = late_sends
    assert finding.where_ns is not None
    summary = ExportSummary(Path(), 0, 0, 0, 0, last_ns=trace.window_ns()[1])
    link = link_to(trace, replace(place_of(finding), region=None), summary)
    first, last = finding.where_ns
    assert link.selected == (first, last - first)


def test_findings_have_ids_and_numbers() -> None:
    plant = Plant(tokens_of={3: 3.0}, send_late_ns={3: 20_000})
    found = analysis.find(Summary.of(simulate(plant))).findings
    assert in_trace.find(found, "2") is found[1]
    assert in_trace.find(found, found[1].id) is found[1]
    with pytest.raises(SelectionError, match=f"unknown finding 'nonsense'; known: {found[0].id}"):
        in_trace.find(found, "nonsense")


def test_a_finding_that_nothing_shows_has_no_window(found: Findings) -> None:
    finding = found.findings[0]
    with pytest.raises(SelectionError, match="has no time in the trace"):
        in_trace.window_ns(replace(finding, where_ns=None))


def test_a_page_holds_its_trace_and_a_link_for_every_finding_in_it(
    trace: Trace, report: reports.Report, tmp_path: Path, processor: Processor
) -> None:
    embedded = reports.embed(trace, report)
    assert embedded is not None
    file = tmp_path / "trace.pftrace.gz"
    file.write_bytes(base64.b64decode(embedded.base64))
    loaded = processor(file)
    assert loaded.import_errors() == []
    num_events = loaded.value(
        "SELECT count(*) FROM slice WHERE category NOT IN ('launch', 'finding') AND name <> "
        "'released'"
    )
    assert num_events == trace.num_events()
    placed = [finding.id for finding in report.findings if finding.where_ns is not None]
    assert list(embedded.links) == placed
    page = reports.write_html(report, tmp_path / "r.html", trace=embedded).read_text()
    assert f'data-finding="{placed[0]}"' in page
    assert f"kprof view &#39;my run.kprof&#39; --finding {placed[0]}" in page
    assert embedded.base64 in page


def test_the_json_report_says_how_to_open_a_finding(report: reports.Report) -> None:
    document = json.loads(reports.to_json(report))
    first = document["findings"][0]
    assert first["view"] == f"{VIEW} --finding {first['id']}"
    assert first["tracks"][0][0] == 3
