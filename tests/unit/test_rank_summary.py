"""Summaries of ranks: what they hold, that they say the same as the events, and when they are not believed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow.parquet as pq
import pytest

from kprof import analysis
from kprof.analysis import Summary
from kprof.capture.checksums import Checksums
from kprof.capture.directory import Capture
from kprof.capture.manifest import Launch, RankInfo
from kprof.capture.names import summary_file_name
from kprof.capture.rank_summary import (
    stored_summaries,
    summarise_file,
    write_summary,
)
from kprof.trace import Trace
from planted import Plant, simulate
from synthetic import TraceBuilder

pytestmark = pytest.mark.slow

REGIONS = """
REGION(R_OUTER, "outer",   compute)
REGION(R_SEND,  "send",    send,  peer:8, slot:24)
REGION(R_WAIT,  "wait",    wait,  peer:8, slot:24)
REGION(R_COPY,  "copy",    recv,  bytes:32)
MARK  (R_DONE,  "done",    other)
FLOW(R_SEND, R_WAIT)
"""


def builder(num_ranks: int = 2) -> TraceBuilder:
    return TraceBuilder(REGIONS, num_ranks, offsets_ns={1: 500.0})


def small(num_ranks: int = 2) -> TraceBuilder:
    """Rank 0 sends twice. Rank 1 waits twice, copies, and has an outer region around a block of its own."""
    build = builder(num_ranks)
    build.span(0, "send", 100, 20, peer=1, slot=1)
    build.span(0, "send", 120, 30, peer=1, slot=2)
    build.span(0, "done", 150)
    build.span(1, "wait", -400, 25, block=1, peer=0, slot=1)
    build.span(1, "copy", -375, 10, block=1, bytes=64)
    build.span(1, "outer", -400, 100, block=2)
    build.span(1, "wait", -390, 40, block=2, peer=0, slot=2)
    return build


def summaries_of(capture: Capture) -> list[Path]:
    world = capture.manifest.world_size
    return [write_summary(capture.path, info, world) for info in capture.manifest.ranks]


def rows_of(table: Mapping[str, np.ndarray]) -> list[dict[str, Any]]:
    columns = [column.tolist() for column in table.values()]
    return [dict(zip(table, row, strict=True)) for row in zip(*columns, strict=True)]


def test_a_summary_on_paper(tmp_path: Path) -> None:
    capture = small().write(tmp_path / "run.kprof")
    rows = rows_of(summarise_file(capture.events_path(1), capture.manifest.ranks[1], 2))
    cells = [row for row in rows if row["part"] == "cell"]
    assert [
        (r["block"], r["region"], r["peer"], r["events"], r["total_ns"], r["bytes"], r["first_ns"])
        for r in cells
    ] == [
        (1, 3, 0, 1, 25, 0, -400),
        (1, 4, -1, 1, 10, 64, -375),
        (2, 1, -1, 1, 100, 0, -400),
        (2, 3, 0, 1, 40, 0, -390),
    ]
    tracks = [row for row in rows if row["part"] == "track"]
    # Block 2: 100 ns of outer region less 40 ns of waiting inside it.
    assert [(r["block"], r["work_ns"], r["wait_ns"], r["last_ns"]) for r in tracks] == [
        (1, 10, 25, -365),
        (2, 60, 40, -300),
    ]
    assert sum(row["events"] for row in rows if row["part"] == "bucket") == 4


ANALYSES = (
    analysis.stats, analysis.waits, analysis.blame, analysis.imbalance, analysis.efficiency,
    analysis.launch_skew, analysis.ramp_and_tail, analysis.bandwidth, analysis.late_sender,
    analysis.histogram,
)  # fmt: skip


@pytest.mark.parametrize("blocks", [(), (0, 2)])
def test_stored_summaries_say_what_the_events_say(blocks: tuple[int, ...], tmp_path: Path) -> None:
    """Of some blocks too. There only rank 1 has stored its own: the other one's is made of its events."""
    capture = small().write(tmp_path / "run.kprof")
    before = Trace.open(capture)
    assert before.summarised_ranks == frozenset()
    of_events = Summary.of(before.select(blocks=blocks) if blocks else before)
    expected = [analyse(of_events) for analyse in ANALYSES]
    for path in summaries_of(capture)[: len(blocks) // 2]:
        path.unlink()
    trace = Trace.open(capture).select(blocks=blocks) if blocks else Trace.open(capture)
    assert trace.summarised_ranks == ({1} if blocks else {0, 1})
    stored = Summary.of(trace)
    for analyse, table in zip(ANALYSES, expected, strict=True):
        assert analyse(stored).equals(table), analyse.__name__


@pytest.mark.parametrize("chosen", [{}, {"blocks": (2,)}])
def test_where_there_are_summaries_no_events_are_read(chosen: Any, tmp_path: Path) -> None:
    capture = small().write(tmp_path / "run.kprof")
    expected = analysis.waits(Summary.of(Trace.open(capture).select(**chosen)), "peer")
    summaries_of(capture)
    trace = Trace.open(capture).select(**chosen)
    for info in capture.manifest.ranks:
        capture.events_path(info.rank).write_bytes(b"gone")
    assert analysis.waits(Summary.of(trace), "peer").equals(expected)


def test_selections_of_ranks_and_launches_use_summaries_and_others_do_not(tmp_path: Path) -> None:
    capture = small().write(tmp_path / "run.kprof")
    whole = Trace.open(capture)
    by_rank = analysis.imbalance(Summary.of(whole.select(ranks=(1,))), "block")
    by_block = analysis.imbalance(Summary.of(whole.select(blocks=(2,))), "block")
    by_region = analysis.stats(Summary.of(whole.select(regions=("wait",))))
    summaries_of(capture)
    trace = Trace.open(capture)
    assert trace.select(ranks=(1,)).summarised_ranks == {1}
    assert analysis.imbalance(Summary.of(trace.select(ranks=(1,))), "block").equals(by_rank)
    assert analysis.imbalance(Summary.of(trace.select(blocks=(2,))), "block").equals(by_block)
    assert analysis.stats(Summary.of(trace.select(regions=("wait",)))).equals(by_region)
    assert by_region["region"].tolist() == ["wait"]
    assert analysis.stats(Summary.of(trace.select(launches=(7,)))).empty


def test_a_selection_by_time_is_by_the_common_clock(tmp_path: Path) -> None:
    """Rank 1's clock is 500 ns behind: its copy runs from 125 to 135, 25 ns after the first event."""
    trace = Trace.open(small().write(tmp_path / "run.kprof"))
    chosen = analysis.stats(Summary.of(trace.select(time_ns=(26, 34))))
    assert sorted(chosen["region"]) == ["copy", "outer", "send", "wait"]
    assert trace.select(time_ns=(26, 34)).num_events() == 4


def corrupt(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:100])


def other_version(path: Path) -> None:
    table = pq.read_table(path)
    document = msgspec.json.decode(table.schema.metadata[b"kprof_summary"])
    document["version"] += 1
    pq.write_table(
        table.replace_schema_metadata({b"kprof_summary": msgspec.json.encode(document)}), path
    )


def no_metadata(path: Path) -> None:
    pq.write_table(pq.read_table(path).replace_schema_metadata(None), path)


@pytest.mark.parametrize("damage", [corrupt, other_version, no_metadata, Path.unlink])
def test_a_summary_that_does_not_hold_is_made_again(damage: object, tmp_path: Path) -> None:
    capture = small().write(tmp_path / "run.kprof")
    expected = analysis.imbalance(Summary.of(Trace.open(capture)), "block")
    damage(summaries_of(capture)[1])  # type: ignore[operator]
    trace = Trace.open(capture)
    assert trace.summarised_ranks == {0}
    assert analysis.imbalance(Summary.of(trace), "block").equals(expected)


def test_a_summary_of_other_events_is_not_believed(tmp_path: Path) -> None:
    capture = small().write(tmp_path / "run.kprof")
    summaries_of(capture)
    assert set(stored_summaries(capture)) == {0, 1}
    longer = capture.manifest.with_events_found(
        {0: 1000, 1: capture.manifest.ranks[1].counts.recorded}
    )
    assert set(stored_summaries(Capture(capture.path, longer, Checksums(), {}))) == {1}
    larger = msgspec.structs.replace(capture.manifest, world_size=3)
    assert stored_summaries(Capture(capture.path, larger, Checksums(), {})) == {}


def test_few_events_are_summarised_where_they_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A database of their own would take longer. With more events the sums are the same."""
    trace = Trace.open(small().write(tmp_path / "run.kprof"))
    with monkeypatch.context() as patch:
        patch.setattr("kprof.analysis.summary.EVENTS_PER_SLICE", 3)
        apart = [analyse(Summary.of(trace)) for analyse in ANALYSES]
    monkeypatch.delattr("kprof.analysis.summary.summarise_files")
    summary = Summary.of(trace)
    for analyse, table in zip(ANALYSES, apart, strict=True):
        assert analyse(summary).equals(table), analyse.__name__


def test_large_ranks_are_summarised_in_slices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build = builder(1)
    for launch in range(3):
        build.launch(launch, "kernel")
        for block in range(5):
            at = 1000 * launch + 10 * block
            build.span(0, "copy", at, 7, launch=launch, block=block)
    capture = build.write(tmp_path / "run.kprof")
    info = capture.manifest.ranks[0]
    whole = rows_of(summarise_file(capture.events_path(0), info, 1))
    for size in (1, 4, 6):
        monkeypatch.setattr("kprof.capture.rank_summary.EVENTS_PER_SLICE", size)
        parts = rows_of(summarise_file(capture.events_path(0), info, 1))
        assert len(parts) >= len(whole)
        assert (
            analysis.imbalance(Summary.of(Trace.open(capture)), "block")["work_ns"].tolist()
            == [21] * 5
        )


def test_events_of_undeclared_regions_are_counted_as_such(tmp_path: Path) -> None:
    capture = small().write(tmp_path / "run.kprof")
    info: RankInfo = capture.manifest.ranks[0]
    poor = msgspec.structs.replace(
        info, regions=builder().regions.__class__(), launches=(Launch(0, "k", 0),)
    )
    rows = rows_of(summarise_file(capture.events_path(0), poor, 2))
    assert {row["region"] for row in rows if row["part"] == "cell"} == {0}


def test_findings_are_the_same_from_summaries(tmp_path: Path) -> None:
    trace = simulate(Plant(num_ranks=4, tokens_of={2: 3.0}, seed=5))
    path = tmp_path / "run.kprof"
    from synthetic import write_trace

    capture = write_trace(trace, path)
    expected = [finding.sentence for finding in analysis.find(Summary.of(trace)).findings]
    assert expected
    summaries_of(capture)
    assert (path / summary_file_name(2)).exists()
    found = analysis.find(Summary.of(Trace.open(path))).findings
    assert [finding.sentence for finding in found] == expected
