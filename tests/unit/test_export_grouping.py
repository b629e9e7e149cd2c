"""Traces by processor and by role: the same events on other tracks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kprof.export import By, write
from kprof.trace import Trace
from synthetic import TraceBuilder

REGIONS = """
REGION(R_LOAD, "load/copy", recv, peer:8, slot:24)
REGION(R_WAIT, "math/wait", wait, peer:8, slot:24)
REGION(R_MATH, "math/multiply", compute)
REGION(R_PLAIN, "plain", compute)
FLOW(R_LOAD, R_WAIT)
"""
# Events with the names of their tracks, from the rank down.
PATHS = """
    WITH RECURSIVE path AS (
        SELECT id, name AS text FROM track WHERE parent_id IS NULL
        UNION ALL
        SELECT t.id, path.text || ' > ' || t.name FROM track t JOIN path ON path.id = t.parent_id)
    SELECT path.text, s.name, s.ts FROM slice s JOIN path ON path.id = s.track_id
    WHERE s.category NOT IN ('launch', 'overview') AND s.name <> 'released' ORDER BY path.text, s.ts"""

Processor = Callable[[Path], Any]


def on(build: TraceBuilder, target: str, hw_ids: dict[int, int], **rank: Any) -> Trace:
    """The trace of `build`, its blocks on these processors of a device of `target`."""
    for row in build._rows:
        row["hw_id"] = hw_ids[row["block"]]
    return build.trace({"target": target, "device": "", "host": "", **rank})


def paths(trace: Trace, by: By, tmp_path: Path, processor: Processor) -> list[tuple[Any, ...]]:
    loaded = processor(write(trace, tmp_path / "run.pftrace", by=by).path)
    assert loaded.import_errors() == []
    rows: list[tuple[Any, ...]] = loaded.rows(PATHS)
    return rows


def test_blocks_that_overlap_on_a_processor_have_rows_of_their_own(
    tmp_path: Path, processor: Processor
) -> None:
    build = TraceBuilder(REGIONS, num_ranks=1)
    for block, start in ((0, 0), (1, 50), (2, 100), (3, 0)):
        build.span(0, "plain", start, 100, block=block)
    trace = on(build, "cuda", {0: 7, 1: 7, 2: 7, 3: 1}, num_processors=4)
    assert paths(trace, By.PROCESSOR, tmp_path, processor) == [
        ("Rank 0 > SM 0", "no events recorded", 1_000),
        ("Rank 0 > SM 1 > row 0", "plain", 1_000),
        ("Rank 0 > SM 2", "no events recorded", 1_000),
        ("Rank 0 > SM 3", "no events recorded", 1_000),
        ("Rank 0 > SM 7 > row 0", "plain", 1_000),
        ("Rank 0 > SM 7 > row 0", "plain", 1_100),
        ("Rank 0 > SM 7 > row 1", "plain", 1_050),
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
    arch: str, chiplets: tuple[str, str], tmp_path: Path, processor: Processor
) -> None:
    build = TraceBuilder(REGIONS, num_ranks=1)
    for block in range(2):
        build.span(0, "plain", block, 9, block=block)
    third = 3 << 16 if chiplets[0] else 0
    hw_ids = {0: third | 2 << 5 | 1 << 4 | 9, 1: 12}
    assert paths(on(build, "hip", hw_ids, arch=arch), By.PROCESSOR, tmp_path, processor) == [
        (f"Rank 0 > {chiplets[0]}SE 0 SA 0 CU 12 > row 0", "plain", 1_001),
        (f"Rank 0 > {chiplets[1]}SE 2 SA 1 CU 9 > row 0", "plain", 1_000),
    ]


def test_warps_are_under_the_role_that_takes_most_of_their_time(
    tmp_path: Path, processor: Processor
) -> None:
    build = TraceBuilder(REGIONS, num_ranks=1)
    build.span(0, "load/copy", 0, 50, block=3, warp=0, peer=0, slot=1)
    build.span(0, "math/wait", 0, 60, block=3, warp=1, peer=0, slot=1)
    build.span(0, "load/copy", 60, 10, block=3, warp=1)
    build.span(0, "plain", 0, 10, block=4)
    assert paths(on(build, "cuda", {3: 0, 4: 0}), By.ROLE, tmp_path, processor) == [
        ("Rank 0 > load > block 3 warp 0", "load/copy", 1_000),
        ("Rank 0 > math > block 3 warp 1", "math/wait", 1_000),
        ("Rank 0 > math > block 3 warp 1", "load/copy", 1_060),
        ("Rank 0 > no role > block 4", "plain", 1_000),
    ]


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
