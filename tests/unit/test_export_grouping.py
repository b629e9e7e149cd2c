"""Rows that are not those of tracks: of blocks whose warps record, of processors, and of roles."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kprof.export import By, write
from kprof.export.links import PinnedTrack
from kprof.export.overview import ARG_BUSY_WARPS
from kprof.trace import Trace
from synthetic import TraceBuilder

REGIONS = """
REGION(R_COPY, "copy", compute)
REGION(R_WAIT, "wait", wait)
REGION(R_ALL, "all", other)
REGION(R_LOAD, "load/copy", recv, peer:8, slot:24)
REGION(R_PULL, "math/wait", wait, peer:8, slot:24)
FLOW(R_LOAD, R_PULL)
MARK(R_MARK, "mark", sync)
"""
OVERVIEW = f"""
    SELECT t.name, s.name, s.ts, s.dur, extract_arg(s.arg_set_id, 'debug.{ARG_BUSY_WARPS}')
    FROM slice s LEFT JOIN track t ON t.id = s.track_id WHERE s.category = 'overview' ORDER BY s.ts"""

Processor = Callable[[Path], Any]
Exported = Callable[..., Any]


def three_warps() -> TraceBuilder:
    """Two of three warps copy for 400 ns and then wait for 400; the third waits all the time."""
    build = TraceBuilder(REGIONS, num_ranks=1)
    for warp in range(3):
        is_waiting = warp == 2
        for start in (0, 400):
            region = "wait" if is_waiting or start else "copy"
            build.span(0, region, start, 400, block=5, warp=warp)
    return build


def test_a_block_shows_what_most_of_its_warps_do(exported: Exported) -> None:
    assert exported(three_warps().trace()).rows(OVERVIEW) == [
        ("block 5", "copy", 1_000, 400, "2.0"),
        ("block 5", "wait", 1_400, 400, "3.0"),
    ]


@pytest.mark.parametrize(
    ("spans", "expected"),
    [
        pytest.param(
            [(1, "all", 0, 800), (1, "copy", 0, 400), (1, "mark", 700, 0)],
            [("copy", 1_000, 400), ("all", 1_400, 400)],
            id="a span around others counts for what they leave",
        ),
        pytest.param(
            [(1, "copy", 0, 200), (1, "copy", 600, 200)],
            [("copy", 1_000, 200), ("copy", 1_600, 200)],
            id="nothing where all warps are idle",
        ),
        pytest.param(
            [(1, "copy", 0, 200), (2, "copy", 10_000_000, 200)],
            [("copy", 1_000, 200), ("copy", 10_001_000, 200)],
            id="launches one by one",
        ),
    ],
)
def test_a_block_of_one_warp_shows_what_it_does(
    spans: list[tuple[int, str, int, int]], expected: list[tuple[str, int, int]], exported: Exported
) -> None:
    build = TraceBuilder(REGIONS, num_ranks=1)
    for launch, region, start_ns, duration_ns in spans:
        build.launch(launch, "kernel", num_blocks=1)
        build.span(0, region, start_ns, duration_ns, launch=launch, warp=0)
    shown = [("block 0", *row, "1.0") for row in expected]
    assert exported(build.trace()).rows(OVERVIEW) == shown


def test_a_block_that_records_itself_shows_that_only(exported: Exported) -> None:
    build = three_warps()
    build.span(0, "all", 0, 10, block=5)
    assert exported(build.trace()).rows(OVERVIEW) == []


@pytest.mark.parametrize("num_blocks", [1, 40])
def test_events_that_last_for_years_are_written(exported: Exported, num_blocks: int) -> None:
    """Damage makes such; 64 bits hold neither the sum of 40 blocks' times nor 128 times one of them."""
    years_ns = 1 << 58
    build = TraceBuilder(REGIONS, num_ranks=1)
    for block in range(num_blocks):
        for start in (0, years_ns):
            build.span(0, "copy", start, 1 << 52, block=block, warp=0)
    slices = exported(build.trace()).rows(OVERVIEW)
    assert len(slices) == (2 if num_blocks == 1 else 0)
    assert all(1_000 <= row[2] <= row[2] + row[3] <= 1_000 + years_ns + (1 << 52) for row in slices)


def test_pinned_blocks_have_it_among_too_many(
    exported: Exported, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kprof.export.overview._MAX_SLICES", 2)
    build = three_warps()
    for block in range(3):
        build.span(0, "copy", 0, 1000, block=block, warp=0)
    assert exported(build.trace()).rows(OVERVIEW) == []
    pinned = [PinnedTrack(0, 5), PinnedTrack(1, 0)]
    loaded = exported(build.trace(), pinned=pinned, force=True)
    assert [row[0] for row in loaded.rows(OVERVIEW)] == ["Rank 0 block 5"]


@pytest.mark.parametrize("suffix", [".pftrace", ".json"])
def test_rows_of_blocks_are_not_counted_among_the_slices(suffix: str, tmp_path: Path) -> None:
    summary = write(three_warps().trace(), tmp_path / f"run{suffix}")
    assert summary.num_slices == 6


# Events with the names of their tracks, from the rank down.
PATHS = """
    WITH RECURSIVE path AS (
        SELECT id, name AS text FROM track WHERE parent_id IS NULL
        UNION ALL
        SELECT t.id, path.text || ' > ' || t.name FROM track t JOIN path ON path.id = t.parent_id)
    SELECT path.text, s.name, s.ts FROM slice s JOIN path ON path.id = s.track_id
    WHERE s.category NOT IN ('launch', 'overview') AND s.name <> 'released' ORDER BY path.text, s.ts"""


def on(build: TraceBuilder, target: str, hw_ids: dict[int, int], **rank: Any) -> Trace:
    """The trace of `build`, its blocks on these processors of a device of `target`."""
    for row in build._rows:
        row["hw_id"] = hw_ids[row["block"]]
    return build.trace({"target": target, "device": "", "host": "", **rank})


def test_blocks_that_overlap_on_a_processor_have_rows_of_their_own(exported: Exported) -> None:
    build = TraceBuilder(REGIONS, num_ranks=1)
    for block, start in ((0, 0), (1, 50), (2, 100), (3, 0)):
        build.span(0, "copy", start, 100, block=block)
    trace = on(build, "cuda", {0: 7, 1: 7, 2: 7, 3: 1}, num_processors=4)
    assert exported(trace, by=By.PROCESSOR).rows(PATHS) == [
        ("Rank 0 > SM 0", "no events recorded", 1_000),
        ("Rank 0 > SM 1 > row 0", "copy", 1_000),
        ("Rank 0 > SM 2", "no events recorded", 1_000),
        ("Rank 0 > SM 3", "no events recorded", 1_000),
        ("Rank 0 > SM 7 > row 0", "copy", 1_000),
        ("Rank 0 > SM 7 > row 0", "copy", 1_100),
        ("Rank 0 > SM 7 > row 1", "copy", 1_050),
    ]


@pytest.mark.parametrize(
    ("arch", "chiplets"),
    [
        ("gfx942", ("XCD 0 > ", "XCD 3 > ")),
        ("gfx950", ("XCD 0 > ", "XCD 3 > ")),
        ("gfx90a", ("", "")),
    ],
)
def test_compute_units_are_under_their_chiplets_where_there_are_several(
    arch: str, chiplets: tuple[str, str], exported: Exported
) -> None:
    build = TraceBuilder(REGIONS, num_ranks=1)
    for block in range(2):
        build.span(0, "copy", block, 9, block=block)
    third = 3 << 16 if chiplets[0] else 0
    hw_ids = {0: third | 2 << 5 | 1 << 4 | 9, 1: 12}
    trace = on(build, "hip", hw_ids, arch=arch)
    assert exported(trace, by=By.PROCESSOR).rows(PATHS) == [
        (f"Rank 0 > {chiplets[0]}SE 0 SA 0 CU 12 > row 0", "copy", 1_001),
        (f"Rank 0 > {chiplets[1]}SE 2 SA 1 CU 9 > row 0", "copy", 1_000),
    ]


def test_warps_are_under_the_role_that_takes_most_of_their_time(exported: Exported) -> None:
    build = TraceBuilder(REGIONS, num_ranks=1)
    build.span(0, "load/copy", 0, 50, block=3, warp=0, peer=0, slot=1)
    build.span(0, "math/wait", 0, 60, block=3, warp=1, peer=0, slot=1)
    build.span(0, "load/copy", 60, 10, block=3, warp=1)
    build.span(0, "copy", 0, 10, block=4)
    trace = on(build, "cuda", {3: 0, 4: 0})
    assert exported(trace, by=By.ROLE).rows(PATHS) == [
        ("Rank 0 > load > block 3 warp 0", "load/copy", 1_000),
        ("Rank 0 > math > block 3 warp 1", "math/wait", 1_000),
        ("Rank 0 > math > block 3 warp 1", "load/copy", 1_060),
        ("Rank 0 > no role > block 4", "copy", 1_000),
    ]


@pytest.mark.slow
@pytest.mark.parametrize("by", By)
@pytest.mark.parametrize("suffix", [".pftrace", ".json"])
def test_every_grouping_has_the_same_slices_and_flows(
    by: By, suffix: str, tmp_path: Path, processor: Processor
) -> None:
    build = TraceBuilder(REGIONS, num_ranks=2)
    for slot in range(12):
        build.span(0, "load/copy", 10 * slot, 9, block=slot, warp=slot % 2, peer=1, slot=slot)
        build.span(1, "math/wait", 5 * slot, 100, block=slot, warp=slot % 2, peer=0, slot=slot)
    trace = on(build, "cuda", {block: block % 5 for block in range(12)})
    summary = write(trace, tmp_path / f"run{suffix}", by=by)
    loaded = processor(summary.path)
    assert (summary.num_slices, summary.num_flows) == (24, 12)
    assert loaded.import_errors() == []
    assert loaded.value("SELECT count(*) FROM flow") == 12
    assert loaded.rows(
        """SELECT name, count(*) FROM slice
           WHERE name IN ('load/copy', 'math/wait') AND category <> 'overview' GROUP BY 1 ORDER BY 1"""
    ) == [("load/copy", 12), ("math/wait", 12)]
