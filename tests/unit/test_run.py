"""What `kprof.open` gives: analyses as methods, words that select, and how a run shows itself."""

from __future__ import annotations

import base64
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec import structs

import kprof
from kprof import analysis
from kprof import report as reports
from kprof.errors import KprofError, SelectionError
from kprof.regions import RegionTable
from synthetic import TraceBuilder, write_events

REGIONS = """
REGION(R_SEND, "dispatch/send", send, peer:8, slot:24)
REGION(R_WAIT, "dispatch/wait", wait, peer:8, slot:24)
REGION(R_COPY, "<b>copy</b>", compute)
FLOW(R_SEND, R_WAIT)
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> kprof.Run:
    """Two ranks with two blocks: rank 1 waits for both sends of rank 0, the second of which is late."""
    build = TraceBuilder(REGIONS, 2)
    for block, send_ns in ((0, 100), (1, 900)):
        build.span(0, "dispatch/send", send_ns, 50, block=block, slot=block, peer=1)
        build.span(1, "dispatch/wait", 110, send_ns - 50, block=block, slot=block, peer=0)
        build.span(1, "<b>copy</b>", 1200, 10, block=block)
    return kprof.open(build.write(tmp_path_factory.mktemp("run") / "small.kprof").path)


def test_tables_have_the_columns_of_their_docstrings(run: kprof.Run) -> None:
    for table, method in (
        (run.findings(), kprof.Run.findings),
        (run.stats(), kprof.Run.stats),
        (run.waits(), kprof.Run.waits),
        (run.calls(), kprof.Run.calls),
        (run.launches(), kprof.Run.launches),
        (run.flows(), kprof.Run.flows),
    ):
        documented = method.__doc__ or ""
        missing = [column for column in table.columns if column not in documented]
        assert missing == [], method


def test_they_say_what_the_analyses_say(run: kprof.Run) -> None:
    assert run.findings()["sentence"].tolist() == [
        finding.sentence for finding in analysis.find(run.summary).findings
    ]
    assert run.waits(by="peer")[["peer", "wait_ns"]].to_numpy().tolist() == [[0, 50 + 850]]
    assert run.waits(by="matrix").loc[1, 0] == 900
    assert run.waits(by="sender")["flows"].tolist() == [2]
    assert (
        run.stats(by="block").columns.tolist()
        == analysis.imbalance(run.summary, by="block").columns.tolist()
    )
    assert run.flows()[["src", "dst", "slot"]].to_numpy().tolist() == [[0, 1, 0], [0, 1, 1]]


@pytest.mark.parametrize(
    ("words", "num_events"),
    [
        ({"rank": 1}, 4),
        ({"ranks": "0-1"}, 6),
        ({"ranks": [0]}, 2),
        ({"region": "dispatch/*"}, 4),
        ({"regions": ["<b>copy</b>", "dispatch/send"]}, 4),
        ({"time": "1us.."}, 2),
        ({"time_ns": (0, 60)}, 3),
        ({"rank": 1, "block": 0, "time": "..500ns"}, 1),
        ({"rank": None}, 6),
    ],
)
def test_words_select(run: kprof.Run, words: dict[str, object], num_events: int) -> None:
    selected = run.select(**words)
    assert isinstance(selected, kprof.Run)
    assert selected.num_events() == num_events


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            {"warp": 1},
            "nothing is selected by 'warp'; select by ranks, blocks, launches, regions, time or "
            "time_ns",
        ),
        ({"rank": 1, "ranks": 0}, "ranks is selected twice"),
        ({"time": "1us..", "time_ns": (0, 1)}, "time is selected twice|time_ns is selected twice"),
        ({"rank": 1.5}, "ranks: 1.5 is no number"),
        ({"rank": "one"}, "ranks 'one': 'one' is neither a number nor a range"),
        ({"rank": 7}, "rank 7 was not recorded"),
        ({"regions": "combine/*"}, r"no region matches 'combine/\*'; known: dispatch/send"),
        ({"time": "soon"}, "time 'soon': write it like 10us..50us"),
        ({"time_ns": 5}, "time_ns: 5 is not a pair"),
    ],
)
def test_other_words_are_refused_in_a_sentence(
    run: kprof.Run, words: dict[str, object], sentence: str
) -> None:
    with pytest.raises(SelectionError, match=sentence):
        run.select(**words)


def test_unknown_keys_are_refused_in_a_sentence(run: kprof.Run) -> None:
    with pytest.raises(SelectionError, match="use rank, block, region, peer, matrix, sender"):
        run.waits(by="warp")  # type: ignore[arg-type]
    with pytest.raises(KprofError, match="use region, rank, block"):
        run.stats(by="peer")  # type: ignore[arg-type]


def test_a_timeline_has_a_row_per_block_and_times_from_the_start(run: kprof.Run) -> None:
    figure = run.timeline(rank=1, launch=0)
    bars = {bar.name: bar for bar in figure.data}
    assert set(bars) == {"wait", "compute"}
    assert list(bars["wait"].y) == ["rank 1 block 0", "rank 1 block 1"]
    assert list(bars["wait"].x) == [50.0, 850.0]
    assert list(bars["compute"].base) == [1090.0, 1090.0]
    assert "<b>" not in "".join(bars["compute"].hovertext)
    assert figure.layout.xaxis.title.text == "time since the start of launch 0, ns"
    assert {bar.name for bar in run.timeline().data} == {"send", "wait", "compute"}
    with pytest.raises(SelectionError, match="launch 9 has no events"):
        run.timeline(launch=9)


def test_a_ribbon_has_a_row_per_rank_or_block_and_says_whom_each_waits_for(run: kprof.Run) -> None:
    figure = run.ribbon(launch=0)
    cells, *keys = figure.data
    assert list(figure.layout.yaxis.ticktext) == ["rank 0", "rank 1"]
    assert [key.name for key in keys] == ["waits for rank 0", "own work"]
    assert figure.layout.xaxis.title.text == "time since the start of launch 0, ns"
    # From 100 to 1210 ns, in bins of 3: one of two blocks waits until 160, the other until 960.
    assert (cells.x0, cells.dx) == (1.5, 3.0)
    assert len(cells.hovertext) == 2
    of_0, of_1 = cells.hovertext
    assert set(of_0) == {"rank 0 works", "rank 0 is not running"}
    assert of_1[0] == "rank 1 is not running"
    assert of_1[10] == "rank 1 waits for rank 0: 100 %"
    assert of_1[100] == "rank 1 waits for rank 0: 50 %"
    assert of_1[367] == "rank 1 works"
    picture = base64.b64decode(cells.source.partition(",")[2])
    assert struct.unpack(">II", picture[16:24]) == (500, 2)
    of_blocks = run.ribbon(launch=0, blocks_of=1)
    assert list(of_blocks.layout.yaxis.ticktext) == ["block 0", "block 1"]
    assert of_blocks.data[0].hovertext[1][100] == "block 1 waits for rank 0: 100 %"
    with pytest.raises(SelectionError, match="launch 9 has no events"):
        run.ribbon(launch=9)
    with pytest.raises(SelectionError, match="rank 7"):
        run.ribbon(blocks_of=7)


def test_a_run_says_what_it_is(run: kprof.Run) -> None:
    assert repr(run).startswith("<kprof.Run small.kprof: 2 ranks on ")
    assert "6 events in dispatch/send, dispatch/wait, <b>copy</b>" in repr(run)
    page = run._repr_html_()
    assert "&lt;b&gt;copy" in page
    assert "<b>" not in page
    assert "1 rank on" in repr(run.select(rank=0))
    assert run.select(rank=0).launches()["rank"].tolist() == [0]


@pytest.mark.slow
def test_a_capture_without_launches_has_none_in_sql(tmp_path: Path) -> None:
    """Nor a region: the row that tells the types of an empty table is in no view."""
    manifest = TraceBuilder(REGIONS, 1).manifest()
    (info,) = manifest.ranks
    for regions in (info.regions, RegionTable()):
        ranks = (structs.replace(info, launches=(), regions=regions),)
        events = TraceBuilder(REGIONS, 1).table()
        written = write_events(
            structs.replace(manifest, ranks=ranks), events, tmp_path / "e.kprof", force=True
        )
        empty = kprof.open(written.path)
        for view, count in (("launches", 0), ("regions", len(regions.regions))):
            found = empty.frame(f"SELECT count(*) AS n FROM {view}")
            assert found["n"].tolist() == [count]
        assert "; 0 launches; 0 events" in repr(empty)
        assert reports.build(empty.trace).num_launches == 0


def test_launches_without_events_are_counted_where_all_events_are_selected() -> None:
    build = TraceBuilder(REGIONS, 1)
    build.launch(1, "kernel")
    build.span(0, "<b>copy</b>", 0, 10)
    trace = build.trace()
    for words, count in (
        ({}, 2),
        ({"launches": 1}, 1),
        ({"blocks": 0}, 2),
        ({"time": "0ns..5ns"}, 1),
    ):
        assert reports.build(trace.select(**words)).num_launches == count


def test_completion_shows_what_there_is(run: kprof.Run) -> None:
    assert {"findings", "stats", "waits", "calls", "flows", "timeline", "select"} <= set(dir(run))
    shown = {name for name in dir(run) if not name.startswith("_")}
    assert {name for name in shown if not getattr(kprof.Run, name, run.trace).__doc__} == set()
    # What a Trace has for analyses is one step away, and hides nothing here.
    assert not shown & {"source", "require_flows", "cut_sql", "flow_sides"}
    assert set(dir(kprof)) == {*kprof.__all__, "__version__"}
    assert all(getattr(kprof, name).__doc__ for name in kprof.__all__)


@pytest.mark.slow
def test_the_modules_of_the_library_need_no_import_of_their_own(tmp_path: Path) -> None:
    code = (
        "import kprof; kprof.analysis.stats; kprof.report.build; kprof.export.write; "
        "kprof.errors.ClockError"
    )
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True)
