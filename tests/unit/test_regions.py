"""Region tables: what the X-macro file means, what is refused, that names never drift from ids, and where regions stand."""

from __future__ import annotations

import dataclasses
import io
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from msgspec.structs import replace
from rich.console import Console

from kprof import analysis
from kprof import report as reports
from kprof.abi import MAX_REGION_ID
from kprof.analysis import Summary
from kprof.errors import RegionError
from kprof.region_places import place
from kprof.regions import (
    Category,
    Field,
    FlowRule,
    Kind,
    Region,
    RegionTable,
    merge_tables,
    parse_fields,
    parse_regions,
)
from kprof.trace import Trace
from planted import Plant, simulate
from synthetic import TraceBuilder, write_trace

HEADER = """
// The regions of the all-to-all.
#pragma once
REGION(R_SEND,   "dispatch/send",  send,  peer:8, slot:24)   // a span
REGION(R_WAIT,   "dispatch/wait",  wait,  peer:8, slot:24)

MARK  (R_DONE,   "dispatch/done, at last (really)",  sync)
VALUE (R_LEFT,   "dispatch/left",  other)
REGION(R_COPY,   "dispatch/copy",  compute,  bytes:32)
FLOW  (R_SEND, R_WAIT)
"""


def test_a_header_becomes_a_table():
    table = parse_regions(HEADER)
    peer_slot = (Field("peer", 8, 0), Field("slot", 24, 8))
    assert table.regions == (
        Region(1, "dispatch/send", Category.SEND, Kind.SPAN, peer_slot),
        Region(2, "dispatch/wait", Category.WAIT, Kind.SPAN, peer_slot),
        Region(3, "dispatch/done, at last (really)", Category.SYNC, Kind.MARK),
        Region(4, "dispatch/left", Category.OTHER, Kind.VALUE),
        Region(5, "dispatch/copy", Category.COMPUTE, Kind.SPAN, (Field("bytes", 32, 0),)),
    )
    assert table.flows == (FlowRule(1, 2),)
    assert table[2].name == "dispatch/wait"
    assert table.by_name("dispatch/copy").id == 5
    assert len(table) == 5


@pytest.mark.skipif(shutil.which("c++") is None, reason="needs a C++ compiler called c++")
def test_the_preprocessor_gives_the_ids_that_python_reads(tmp_path):
    (tmp_path / "regions.h").write_text(HEADER.replace("#pragma once", ""))
    source = tmp_path / "ids.cpp"
    source.write_text(
        "#include <stdio.h>\n"
        "#define REGION(id, ...) id,\n#define MARK(id, ...) id,\n#define VALUE(id, ...) id,\n"
        "#define FLOW(...)\n"
        'enum { R_NONE,\n#include "regions.h"\n};\n'
        'int main() { printf("%d %d %d %d %d", R_SEND, R_WAIT, R_DONE, R_LEFT, R_COPY); }\n'
    )
    subprocess.run(["c++", source, "-o", tmp_path / "ids"], check=True)
    output = subprocess.run([tmp_path / "ids"], check=True, capture_output=True, text=True).stdout
    assert output == "1 2 3 4 5"


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("REGION(A, 'a', send)", "expected"),
        ('REGION(A, "a", sent)', "unknown category 'sent'; use one of compute, send"),
        ('REGION(A, "a", send, peer)', "found 'peer'"),
        ('REGION(A, "a", send, peer:0)', "name:bits"),
        ('REGION(A, "a", send, peer:8, slot:25)', "take 33 bits of 32"),
        ('REGION(A, "a", send', "expected one REGION"),
        ("enum { A, B };", "expected one REGION"),
        ("FLOW(A, B)", "two regions declared above it"),
        (
            'REGION(A, "a", send)\nREGION(B, "b", wait, slot:8)\nFLOW_IN_BLOCK(A, B)',
            "'a' takes part in a flow within a block and needs the payload field slot",
        ),
        ('REGION(A, "a", send)\nREGION(A, "b", send)', ":2: region id A is declared twice"),
        ('REGION(A, "a", send)\nREGION(B, "a", send)', "'a' is used twice"),
        ('REGION(A, "a", send)\nREGION(B, "b", wait)\nFLOW(A, B)', "needs the payload fields"),
    ],
)
def test_a_line_that_cannot_be_used_is_named_with_its_file(line, sentence):
    with pytest.raises(RegionError, match=r"kernel\.h") as error:
        parse_regions(line, "kernel.h")
    assert sentence in str(error.value)


def test_a_header_that_is_not_there_says_which_file_is_wanted(tmp_path):
    with pytest.raises(RegionError, match=r"cannot read the region file .*regions\.h"):
        RegionTable.from_header(tmp_path / "regions.h")


def test_a_header_in_another_encoding_is_refused_in_a_sentence(tmp_path):
    path = tmp_path / "regions.h"
    path.write_bytes('REGION(A, "café", compute)'.encode("latin-1"))
    with pytest.raises(RegionError, match=r"regions\.h is not UTF-8 \(its byte 14 is not\)"):
        RegionTable.from_header(path)
    path.write_text('REGION(A, "café τ", compute)', encoding="utf-8")
    assert RegionTable.from_header(path).names == ["café τ"]


def test_an_id_space_does_not_overflow():
    names = [f"region {i}" for i in range(MAX_REGION_ID + 1)]
    assert len(RegionTable.from_names(names[:-1])) == MAX_REGION_ID
    with pytest.raises(RegionError, match="do not fit the 16-bit id"):
        RegionTable.from_names(names)


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(RegionError, match="unknown region 'c'; known: a, b"):
        RegionTable.from_names(["a", "b"]).by_name("c")


def test_tables_of_several_kernels_unite_by_name():
    dispatch = parse_regions('REGION(A, "send", send, peer:8, slot:24)\nREGION(B, "copy", compute)')
    combine = parse_regions(
        'REGION(C, "reduce", compute)\nREGION(A, "send", send, peer:8, slot:24)\n'
        'REGION(W, "wait", wait, peer:8, slot:24)\nFLOW(A, W)'
    )
    merged = merge_tables([dispatch, combine, dispatch])
    assert merged.table.names == ["send", "copy", "reduce", "wait"]
    assert merged.id_maps == ((0, 1, 2), (0, 3, 1, 4), (0, 1, 2))
    assert merged.table.flows == (FlowRule(1, 4),)


def test_one_name_with_two_declarations_makes_two_regions():
    norm = parse_regions('REGION(A, "add", compute)\nREGION(R, "reduce", sync)')
    gemm = parse_regions('REGION(R, "reduce", compute, slot:32)\nREGION(A, "add", compute)')
    late = parse_regions('MARK(R, "reduce", compute, complete)')
    merged = merge_tables([norm, gemm, late])
    names = ["add", "reduce", "reduce (compute, slot:32)", "reduce (compute, mark, complete)"]
    assert merged.table.names == names
    assert merged.id_maps == ((0, 1, 2), (0, 3, 1), (0, 4))
    assert [merged.table[each].category.value for each in (2, 3)] == ["sync", "compute"]
    assert merged.table[3].fields == parse_fields("slot:32")


def test_ranks_that_took_a_name_in_turn_have_the_same_regions():
    one, other = (parse_regions(f'REGION(A, "reduce", {kind})') for kind in ("sync", "compute"))
    ranks = [merge_tables(tables).table for tables in ([one, other], [other, one])]
    assert [rank.names for rank in ranks] == [
        ["reduce", "reduce (compute)"],
        ["reduce", "reduce (sync)"],
    ]
    merged = merge_tables(ranks)
    assert merged.table == ranks[0]
    assert merged.id_maps == ((0, 1, 2), (0, 2, 1))
    assert merge_tables([merged.table, one, other]).table == merged.table


def test_a_name_that_looks_like_that_of_a_second_declaration_stays_apart():
    table = parse_regions('REGION(A, "a", sync)\nREGION(B, "a (compute)", sync)')
    other = parse_regions('REGION(A, "a", compute)\nREGION(B, "a (compute)", compute)')
    merged = merge_tables([table, other])
    assert len(merged.table) == 4
    assert merge_tables([merged.table]).table == merged.table


def test_a_region_says_at_which_moment_its_clock_is_read() -> None:
    table = parse_regions(
        'REGION(R_A, "a", recv, complete, bytes:32)\nREGION(R_B, "b", recv, issue)\n'
        'REGION(R_C, "c", recv, bytes:32)\nMARK(R_D, "d", sync, complete)'
    )
    assert [region.moment.value for region in table.regions] == [
        "complete",
        "issue",
        "issue",
        "complete",
    ]
    assert [field.name for field in table[1].fields] == ["bytes"]
    with pytest.raises(RegionError, match="name:bits"):
        parse_regions('REGION(R_A, "a", recv, bytes:32, complete)')


def test_a_region_may_be_announced_at_its_start():
    plain = parse_regions('REGION(R_A, "a", compute, complete, step:8)')
    for words in ("announced, complete", "complete, announced"):
        assert parse_regions(f'REGION(R_A, "a", compute, {words}, step:8)') == plain
    assert parse_regions('REGION(R_A, "a", compute, announced)')[1].fields == ()
    with pytest.raises(RegionError, match="R_A has no length: only a REGION can be announced"):
        parse_regions('MARK(R_A, "a", compute, announced)')


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


@pytest.mark.slow
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


@pytest.mark.slow
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
