"""A run that hung: its open waits in the capture, in both traces, in the report, and in no sum."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet as pq
import pytest

from kprof import analysis
from kprof import report as reports
from kprof.analysis import DoubtKind, Summary
from kprof.analysis.hung import hung_waits, left_out
from kprof.analysis.waiting import role_waits
from kprof.capture.directory import EVENT_OPEN, Capture
from kprof.capture.manifest import HangNote, HungCall
from kprof.capture.names import events_file_name, summary_file_name
from kprof.errors import CaptureError
from kprof.export import write
from kprof.hangs.report import Hang, write_hang
from kprof.hangs.state import OpenSpan
from kprof.recording.finishing import open_spans
from kprof.recording.finishing.open_spans import keep_hang, unseen_waits
from kprof.report.opening import link_to, opening_place
from kprof.report.page import to_html
from kprof.trace import Trace
from sealing import seal
from synthetic import TraceBuilder, write_events

REGIONS = """
REGION(R_SEND, "send", send, peer:8, slot:24)
REGION(R_WAIT, "wait", wait, peer:8, slot:24)
FLOW(R_SEND, R_WAIT)
"""
IN_BLOCK = """
REGION(R_FILL, "producer/fill", compute, slot:24)
REGION(R_WAIT, "consumer/wait", wait, slot:24)
REGION(R_MEET, "meet", sync)
FLOW_IN_BLOCK(R_FILL, R_WAIT)
"""
ROOT = "rank 1 never sent slot 7"
HUNG = "The run hung, and had stood still for 31.0 s when that was reported"
IDLE_S = 31.0
IDLE_NS = 31_000_000_000

Processor = Callable[[Path], Any]


def exchange() -> TraceBuilder:
    """Two calls of two ranks. In the second, a wait of rank 0 (block 1, from 2000) has no record."""
    build = TraceBuilder(REGIONS, num_ranks=2)
    build.launch(1, "kernel")
    for rank in (0, 1):
        for launch in (0, 1):
            at = 1_000_000 * launch
            for block in (0, 1):
                slot = {"peer": 1 - rank, "slot": block}
                where = {"rank": rank, "launch": launch, "block": block}
                build.span(region="send", start_ns=at + 100, duration_ns=50, **where, **slot)
                if (rank, launch, block) != (0, 1, 1):
                    build.span(
                        region="wait", start_ns=at + 200, duration_ns=60_000, **where, **slot
                    )
    return build


def waiting(rank: int, launch: int, block: int, start_ns: int) -> OpenSpan:
    slot = 1 - rank | block << 8
    return OpenSpan(
        rank, launch, "kernel", launch, block, -1, "wait", 1 - rank, block, IDLE_S, start_ns, slot
    )


# Of the waits that were open, that of rank 1 has ended since.
HANG = Hang(
    IDLE_S,
    ROOT,
    "never_sent",
    (1,),
    waits=(waiting(0, 1, 1, 1_000_200), waiting(1, 1, 0, 1_000_200)),
    shown=((0, 1),),
)


@pytest.fixture
def whole(tmp_path: Path) -> Capture:
    """The capture with its hang.json, before the recording finishes it."""
    build = exchange()
    capture = write_events(build.manifest(), build.table(), tmp_path / "run.kprof")
    write_hang(capture.path, HANG)
    return capture


@pytest.fixture
def hung(whole: Capture) -> Capture:
    """The capture, as the recording finishes it."""
    return finished(whole)


def finished(whole: Capture) -> Capture:
    infos, note = keep_hang(whole.path, whole.manifest.ranks, 2)
    manifest = msgspec.structs.replace(whole.manifest, ranks=infos, hang=note)
    (whole.path / "manifest.json").write_bytes(msgspec.json.encode(manifest))
    seal(whole.path)
    return Capture.open(whole.path)


def test_a_wait_without_a_record_becomes_an_open_span(hung: Capture) -> None:
    events = pq.read_table(hung.path / events_file_name(0)).to_pylist()
    (added,) = [row for row in events if row["flags"] & EVENT_OPEN]
    assert (added["launch"], added["block"], added["start_ns"]) == (1, 1, 1_000_200)
    assert (added["duration_ns"], added["payload"], added["hw_id"]) == (IDLE_NS, 1 | 1 << 8, 1)
    assert pq.read_metadata(hung.path / events_file_name(1)).num_rows == 8
    counts = hung.manifest.ranks[0].counts
    assert (counts.recorded, counts.open) == (8, 1)
    assert hung.manifest.messages == ()
    # It is added once.
    assert keep_hang(hung.path, hung.manifest.ranks, 2)[0] == hung.manifest.ranks
    calls = (HungCall("kernel", 1),)
    assert hung.manifest.hang == HangNote(IDLE_S, ROOT, "never_sent", calls, 1, ((0, 1),))


def test_a_wait_that_ended_right_before_is_another(tmp_path: Path) -> None:
    """A block that waits for its own rank first, which takes no time."""
    build = exchange()
    where = {"rank": 0, "launch": 1, "block": 1, "peer": 0, "slot": 1}
    build.span(region="wait", start_ns=1_000_160, duration_ns=40, **where)
    whole = write_events(build.manifest(), build.table(), tmp_path / "run.kprof")
    write_hang(whole.path, HANG)
    infos, note = keep_hang(whole.path, whole.manifest.ranks, 2)
    assert [info.counts.open for info in infos] == [1, 0]
    assert note is not None
    assert note.num_open == 1


def test_a_rank_that_saved_nothing_is_named(tmp_path: Path) -> None:
    """Its waits are in hang.json, and nowhere else."""
    build = exchange()
    whole = write_events(build.manifest(), build.table(), tmp_path / "run.kprof")
    infos = whole.manifest.ranks
    assert unseen_waits(whole.path, infos) == ()
    write_hang(whole.path, HANG)
    assert unseen_waits(whole.path, infos) == ()
    assert unseen_waits(whole.path, infos[:1]) == (
        "rank 1: a wait that never ended is in hang.json alone: the rank ended before it had saved "
        "anything, so nobody knows its clock",
    )
    (whole.path / "hang.json").write_text("{")
    assert unseen_waits(whole.path, infos[:1]) == ()


def test_an_announced_span_becomes_an_open_span(tmp_path: Path) -> None:
    """Unless the rank has recorded it, with the same start."""
    build = exchange()
    whole = write_events(build.manifest(), build.table(), tmp_path / "run.kprof")

    def announced(start_ns: int) -> OpenSpan:
        return OpenSpan(0, 1, "kernel", 1, 0, -1, "send", -1, -1, IDLE_S, start_ns, 1)

    # The recorded send of the block begins at 1_000_100.
    spans = announced(1_000_100), announced(1_000_180)
    write_hang(whole.path, msgspec.structs.replace(HANG, waits=(), spans=spans))
    infos, note = keep_hang(whole.path, whole.manifest.ranks, 2)
    assert [info.counts.open for info in infos] == [1, 0]
    events = pq.read_table(whole.path / events_file_name(0)).to_pylist()
    (added,) = [row for row in events if row["flags"] & EVENT_OPEN]
    assert (added["region"], added["start_ns"], added["duration_ns"]) == (1, 1_000_180, IDLE_NS)
    manifest = msgspec.structs.replace(whole.manifest, ranks=infos, hang=note)
    (whole.path / "manifest.json").write_bytes(msgspec.json.encode(manifest))
    seal(whole.path)
    chrome = write(Trace.open(Capture.open(whole.path)), tmp_path / "run.json")
    assert '"send: not ended after 31 s"' in chrome.path.read_text()


@pytest.mark.parametrize(
    ("step", "error", "num_open"),
    [
        # A disk that refuses leaves the capture as it is.
        ("append_events", CaptureError("no space left"), 0),
        ("write_summary", OSError("stale file handle"), 1),
    ],
)
def test_a_step_that_fails_ends_no_recording(
    step: str, error: Exception, num_open: int, whole: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    (whole.path / summary_file_name(0)).touch()

    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(open_spans, step, fail)
    infos, note = keep_hang(whole.path, whole.manifest.ranks, 2)
    assert [info.counts.open for info in infos] == [num_open, 0]
    assert note is not None
    assert (note.sentence, note.num_open) == (ROOT, num_open)
    assert pq.read_metadata(whole.path / events_file_name(0)).num_rows == 7 + num_open


def test_damaged_lines_of_a_hang_leave_a_capture_that_can_be_read(whole: Capture) -> None:
    damaged = (waiting(0, 0, 0, 2**63 + 5), waiting(1, 0, 0, 2**64 + 5))
    write_hang(whole.path, msgspec.structs.replace(HANG, waits=(*HANG.waits, *damaged)))
    ranks = finished(whole).manifest.ranks
    assert [info.counts.open for info in ranks] == [1, 0]
    assert ranks[0].counts.recorded == 8


def test_both_traces_show_it_and_their_arrows_are_the_same(
    hung: Capture, tmp_path: Path, processor: Processor
) -> None:
    name = "wait: still waiting after 31 s"
    trace = Trace.open(hung)
    without = write(exchange().trace(), tmp_path / "without.pftrace")
    perfetto = write(trace, tmp_path / "run.pftrace")
    assert perfetto.num_flows == without.num_flows == 7
    loaded = processor(perfetto.path)
    question = f"SELECT dur FROM slice WHERE name = '{name}' AND category = 'wait'"
    assert loaded.rows(question) == [(IDLE_NS,)]
    assert loaded.rows("SELECT count(*) FROM slice WHERE name = 'wait'") == [(7,)]
    chrome = write(trace, tmp_path / "run.json")
    assert chrome.num_flows == 7
    slices = json.loads(chrome.path.read_text())["traceEvents"]
    (found,) = [each for each in slices if each["name"] == name]
    assert (found["ph"], found["dur"], found["args"]["slot"]) == ("X", IDLE_NS / 1e3, 1)


@pytest.mark.slow
def test_the_viewer_opens_on_it(hung: Capture, tmp_path: Path) -> None:
    trace = Trace.open(hung)
    summary = write(trace, tmp_path / "run.pftrace")
    place = opening_place(trace, analysis.find(Summary.of(trace)).shown)
    assert place is not None
    link = link_to(trace, place, summary)
    assert link.selected == (1_000_200 - summary.origin_ns, IDLE_NS)
    assert (link.tracks[0].rank, link.tracks[0].block) == (0, 1)


OF_WAITS = (
    analysis.stats,
    analysis.waits,
    analysis.blame,
    analysis.late_sender,
    analysis.histogram,
    analysis.stragglers,
    analysis.imbalance,
)


def of_waits_in_a_block() -> tuple[TraceBuilder, HangNote]:
    """Two calls in which a consumer waits for a producer and all meet; the second one hung."""
    build = TraceBuilder(IN_BLOCK, num_ranks=2)
    build.launch(1, "kernel")
    for launch, rank, block in itertools.product((0, 1), (0, 1), (0, 1)):
        at, where = 1_000_000 * launch, {"rank": rank, "launch": launch, "block": block}
        build.span(region="producer/fill", start_ns=at, duration_ns=500, warp=0, slot=0, **where)
        build.span(region="consumer/wait", start_ns=at, duration_ns=600, warp=1, slot=0, **where)
        build.span(region="meet", start_ns=at + 700 + block, duration_ns=90, **where)
    return build, HangNote(IDLE_S, ROOT, "never_sent", (HungCall("kernel", 1),))


@pytest.mark.slow
@pytest.mark.parametrize("table", [analysis.barrier_waits, role_waits])
def test_tables_of_meetings_and_roles_leave_out_calls_that_hung(
    table: Callable[[Summary], Any],
) -> None:
    build, note = of_waits_in_a_block()
    with_it = table(Summary.of(build.trace(hang=note)))
    assert not with_it.empty
    assert with_it.equals(table(Summary.of(build.trace().select(launches=(0,)))))


def test_tables_of_waits_leave_out_calls_that_hung_and_count_their_waits(hung: Capture) -> None:
    """Those that ended did so when the hang did, or in time by chance. What never ended is in no other sum."""
    with_it = Summary.of(Trace.open(hung))
    whole = Summary.of(exchange().trace())
    assert analysis.efficiency(with_it).equals(analysis.efficiency(whole))
    without = Summary.of(exchange().trace().select(launches=(0,)))
    for table in OF_WAITS:
        assert table(with_it).equals(table(without)), table.__name__
    counted = analysis.all_metrics()["hung_waits"](with_it)
    assert counted.to_dict("records") == [
        {"rank": 0, "region": "wait", "ended": 1, "open": 1},
        {"rank": 1, "region": "wait", "ended": 2, "open": 0},
    ]
    said = "4 waits of calls that hung are left out; 1 never ended (kprof hang)"
    assert left_out(counted) == said
    assert f"{said}." in to_html(reports.build(with_it.trace))
    assert left_out(hung_waits(without)) == ""
    chosen = Summary.of(Trace.open(hung).select(launches=(1,)))
    assert analysis.waits(chosen)["count"].sum() == 3
    assert left_out(hung_waits(chosen)) == ""


def test_where_every_call_hung_tables_of_waits_are_empty() -> None:
    build = exchange()
    note = HangNote(IDLE_S, ROOT, "never_sent", (HungCall("kernel", 0), HungCall("kernel", 1)))
    summary = Summary.of(build.trace(hang=note))
    for table in OF_WAITS:
        assert table(summary).empty, table.__name__
    assert "7 waits" in left_out(hung_waits(summary))


@pytest.mark.slow
def test_the_report_says_first_that_the_run_hung(hung: Capture, tmp_path: Path) -> None:
    report = reports.build(Trace.open(hung))
    assert report.verdict == f"{HUNG}: {ROOT}"
    assert report.advice.endswith("findings leave out call 1 of kernel")
    assert report.found.num_calls == 1
    document = json.loads(reports.to_json(report))
    (row,) = document["tables"]["open_waits"]
    assert (row["rank"], row["block"], row["peer"], row["waited_ns"]) == (0, 1, 1, IDLE_NS)
    page = reports.write_html(report, tmp_path / "report.html").read_text()
    assert page.count(f"{HUNG}: {ROOT}") == 1
    assert 'class="still"' in page
    assert "wait, for rank 1, slot 1, still waiting after 31.0 s" in page
    assert "2 launches" in report.facts
    # Findings below that headline are not about the hang.
    assert page.count("What follows is about the calls that finished.") == 1


@pytest.mark.slow
def test_a_run_that_went_on_says_so_and_one_whose_hosts_paused_is_no_headline() -> None:
    build = exchange()
    calls = (HungCall("kernel", 0), HungCall("kernel", 1))

    def found(note: HangNote, **changes: Any) -> analysis.Findings:
        return analysis.find(Summary.of(build.trace(hang=note, **changes)))

    note = HangNote(IDLE_S, ROOT, "never_sent", calls)
    went_on = found(note)
    assert went_on.headline == f"{HUNG}: {ROOT}, and then the run went on"
    assert found(note, exit_code=137).headline == f"{HUNG}: {ROOT}"
    assert went_on.findings == ()
    assert went_on.rest.sentence == "No call was recorded that did not hang"
    paused = found(HangNote(IDLE_S, "all ranks have made 2 launches", "hosts"))
    assert "hung" not in paused.headline
    assert DoubtKind.HUNG in {doubt.kind for doubt in paused.doubts}
