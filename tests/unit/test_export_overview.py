"""Rows of blocks in captures that record by warp: what most of their warps do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kprof.export import write
from kprof.export.links import PinnedTrack
from kprof.export.overview import ARG_BUSY_WARPS
from synthetic import TraceBuilder

REGIONS = """
REGION(R_COPY, "copy", compute)
REGION(R_WAIT, "wait", wait)
REGION(R_ALL, "all", other)
MARK(R_MARK, "mark", sync)
"""
OVERVIEW = f"""
    SELECT t.name, s.name, s.ts, s.dur, extract_arg(s.arg_set_id, 'debug.{ARG_BUSY_WARPS}')
    FROM slice s LEFT JOIN track t ON t.id = s.track_id WHERE s.category = 'overview' ORDER BY s.ts"""

Processor = Callable[[Path], Any]


def overview(build: TraceBuilder, tmp_path: Path, processor: Processor) -> list[tuple[Any, ...]]:
    loaded = processor(write(build.trace(), tmp_path / "run.pftrace").path)
    assert loaded.import_errors() == []
    rows: list[tuple[Any, ...]] = loaded.rows(OVERVIEW)
    return rows


def three_warps() -> TraceBuilder:
    """Two of three warps copy for 400 ns and then wait for 400; the third waits all the time."""
    build = TraceBuilder(REGIONS, num_ranks=1)
    for warp in range(3):
        is_waiting = warp == 2
        for start in (0, 400):
            region = "wait" if is_waiting or start else "copy"
            build.span(0, region, start, 400, block=5, warp=warp)
    return build


def test_a_block_shows_what_most_of_its_warps_do(tmp_path: Path, processor: Processor) -> None:
    assert overview(three_warps(), tmp_path, processor) == [
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
    spans: list[tuple[int, str, int, int]],
    expected: list[tuple[str, int, int]],
    tmp_path: Path,
    processor: Processor,
) -> None:
    build = TraceBuilder(REGIONS, num_ranks=1)
    for launch, region, start_ns, duration_ns in spans:
        build.launch(launch, "kernel", num_blocks=1)
        build.span(0, region, start_ns, duration_ns, launch=launch, warp=0)
    shown = [("block 0", *row, "1.0") for row in expected]
    assert overview(build, tmp_path, processor) == shown


def test_a_block_that_records_itself_shows_that_only(tmp_path: Path, processor: Processor) -> None:
    build = three_warps()
    build.span(0, "all", 0, 10, block=5)
    assert overview(build, tmp_path, processor) == []


@pytest.mark.parametrize("num_blocks", [1, 40])
def test_events_that_last_for_years_are_written(
    tmp_path: Path, processor: Processor, num_blocks: int
) -> None:
    """Damage makes such; 64 bits hold neither the sum of 40 blocks' times nor 128 times one of them."""
    years_ns = 1 << 58
    build = TraceBuilder(REGIONS, num_ranks=1)
    for block in range(num_blocks):
        for start in (0, years_ns):
            build.span(0, "copy", start, 1 << 52, block=block, warp=0)
    slices = overview(build, tmp_path, processor)
    assert len(slices) == (2 if num_blocks == 1 else 0)
    assert all(1_000 <= row[2] <= row[2] + row[3] <= 1_000 + years_ns + (1 << 52) for row in slices)


def test_pinned_blocks_have_it_among_too_many(
    tmp_path: Path, processor: Processor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kprof.export.overview._MAX_SLICES", 2)
    build = three_warps()
    for block in range(3):
        build.span(0, "copy", 0, 1000, block=block, warp=0)
    assert overview(build, tmp_path, processor) == []
    summary = write(
        build.trace(), tmp_path / "pinned.pftrace", pinned=[PinnedTrack(0, 5), PinnedTrack(1, 0)]
    )
    assert [row[0] for row in processor(summary.path).rows(OVERVIEW)] == ["Rank 0 block 5"]


@pytest.mark.parametrize("suffix", [".pftrace", ".json"])
def test_it_is_not_counted_among_the_slices(suffix: str, tmp_path: Path) -> None:
    summary = write(three_warps().trace(), tmp_path / f"run{suffix}")
    assert summary.num_slices == 6
