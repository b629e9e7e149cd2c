"""Region tables: what the X-macro file means, what is refused, and that names never drift from ids."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from kprof.abi import MAX_REGION_ID
from kprof.errors import RegionError
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
