"""Where regions stand: the line of the kernel that records one, in captures, reports and SQL."""

from __future__ import annotations

import dataclasses
import io
import os
from pathlib import Path

import pytest
from msgspec.structs import replace
from rich.console import Console

from kprof import analysis
from kprof import report as reports
from kprof.analysis import Summary
from kprof.region_places import place
from kprof.regions import RegionTable, merge_tables
from kprof.trace import Trace
from planted import Plant, simulate
from synthetic import TraceBuilder, write_trace

REGIONS = """\
// R_WAIT is declared below.
REGION(R_WAIT, "wait", wait, peer:8, slot:24)
REGION(R_COPY, "copy", compute)
REGION(R_LATE, "late", compute)
FLOW(R_LATE, R_WAIT)
"""
KERNEL = """\
#include "regions.h"
// profile_stop(track, span, R_WAIT) stands below.
static constexpr auto kCopy = R_COPY;
__global__ void recv() {
  span = kprof::profile_lap(track, span, R_WAIT);
  kprof::profile_stop(track, span, R_WAIT);
}
"""


@pytest.fixture
def header(tmp_path: Path) -> Path:
    (tmp_path / "kernel.hip").write_text(KERNEL)
    (tmp_path / "notes.txt").write_text("profile_stop(R_LATE)")
    os.mkfifo(tmp_path / "a_pipe.h")
    path = tmp_path / "regions.h"
    path.write_text(REGIONS.replace("FLOW(R_LATE, R_WAIT)\n", ""))
    return path


def test_a_region_stands_where_it_is_recorded_or_named_or_declared(
    header: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = {region.name: region.place for region in RegionTable.from_header(header).regions}
    folder = header.parent
    assert found == {
        "wait": f"{folder}/kernel.hip:5",
        "copy": f"{folder}/kernel.hip:3",
        "late": f"{folder}/regions.h:4",
    }
    # As a terminal in that folder follows it.
    monkeypatch.chdir(folder)
    assert place(folder / "kernel.hip", 5) == "kernel.hip:5"
    assert place("/elsewhere/kernel.hip", 5) == "/elsewhere/kernel.hip:5"


def test_regions_that_differ_by_their_place_are_one(header: Path) -> None:
    table = RegionTable.from_header(header)
    (header.parent / "kernel.hip").unlink()
    header.write_text("\n" + header.read_text())
    moved = RegionTable.from_header(header)
    assert moved != table
    merged = merge_tables([table, moved])
    assert merged.table == table
    assert merged.id_maps[0] == merged.id_maps[1]


def test_a_finding_says_its_line() -> None:
    """In the terminal on a line of its own, in Markdown behind how much it saves."""
    trace = simulate(Plant(heavy_blocks={(4, 7): 4.0}))
    found = analysis.find(Summary.of(trace)).findings
    region = next(finding.region for finding in found if finding.region)
    ranks = tuple(
        replace(info, regions=with_place(info.regions, str(region), "my/kernel.hip:42"))
        for info in trace.manifest.ranks
    )
    report = reports.build(trace)
    report = dataclasses.replace(report, manifest=replace(report.manifest, ranks=ranks))
    console = Console(width=100, file=io.StringIO())
    console.print(reports.render_terminal(report))
    assert "    my/kernel.hip:42 " in console.file.getvalue()  # type: ignore[attr-defined]
    assert " · my/kernel\\.hip\\:42 | " in reports.render_markdown(report)


def with_place(table: RegionTable, name: str, where: str) -> RegionTable:
    regions = (replace(each, place=where if each.name == name else "") for each in table.regions)
    return RegionTable(tuple(regions), table.flows)


def test_reports_and_sql_say_where(header: Path, tmp_path: Path) -> None:
    table = RegionTable.from_header(header)
    build = TraceBuilder(table, num_ranks=1)
    build.span(0, "copy", 0, 5000)
    trace = Trace.open(write_trace(build.trace(), tmp_path / "run.kprof").path)
    assert trace.frame("SELECT place FROM regions WHERE name = 'copy'")["place"].tolist() == [
        f"{tmp_path}/kernel.hip:3"
    ]
    report = reports.build(trace)
    assert report.place_of("copy") == f"{tmp_path}/kernel.hip:3"
    assert report.place_of(None) == ""
    page = reports.write_html(report, tmp_path / "report.html").read_text()
    assert f"<td>{tmp_path}/kernel.hip:3" in page or f"{tmp_path}/kernel.hip:3</td>" in page
