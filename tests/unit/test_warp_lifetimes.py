"""Kernels of which only the lifetimes of warps are known: what is planted in them is found."""

from __future__ import annotations

import gzip
import io
import json
import random
from collections import defaultdict
from pathlib import Path
from statistics import median, median_low
from typing import Any

import pytest
from rich.console import Console

import kprof
from benchmarks.any_kernel.cases import Case, Shape, judge
from foreign_files import DATA
from kprof import analysis, report
from kprof.analysis.lifetimes import warp_lifetimes
from kprof.importers import import_events
from kprof.trace import Trace

NUM_SMS = 16


def rows_of(file: Path, tmp_path: Path) -> list[dict[str, Any]]:
    path = import_events(None, [file], tmp_path / "run.kprof").path
    return warp_lifetimes(analysis.Summary.of(kprof.open(path).trace)).to_dict("records")


def test_of_a_real_trace_as_counted_by_hand(tmp_path: Path) -> None:
    file = DATA / "iket_warp_trace.json.gz"
    trace = json.loads(gzip.decompress(file.read_bytes()))
    found = rows_of(file, tmp_path)
    for launch, row in zip(trace["launches"], found, strict=True):
        blocks: dict[int, list[int]] = {}
        sms: dict[int, list[tuple[int, int]]] = defaultdict(list)
        where = {}
        for life in launch["warpLifetimes"]:
            at = trace["locationTable"][life["locIdx"]]
            block = at["ctaId"][0]
            begin, end = blocks.get(block, (life["startTs"], life["endTs"]))
            blocks[block] = [min(begin, life["startTs"]), max(end, life["endTs"])]
            where[block] = at["smId"]
        for block, (begin, end) in blocks.items():
            sms[where[block]].append((begin, end))
        lengths = {block: end - begin for block, (begin, end) in blocks.items()}
        first_end, last = min(b[1] for b in blocks.values()), max(b[1] for b in blocks.values())
        assert row["kernel"] == launch["kernelName"]
        assert row["blocks"] == len(blocks)
        assert row["first_wave"] == sum(begin < first_end for begin, _ in blocks.values())
        assert row["processors"] == len(sms)
        assert row["slowest_block"] == max(lengths, key=lambda b: (lengths[b], -b))
        assert row["slowest_ns"] == max(lengths.values())
        assert row["median_ns"] == pytest.approx(median(lengths.values()), abs=1)
        ends = median_low(max(end for _, end in of_sm) for of_sm in sms.values())
        assert row["tail_ns"] == last - ends
        busy = [sum(end - begin for begin, end in of_sm) for of_sm in sms.values()]
        assert row["imbalance"] == pytest.approx(max(busy) / (sum(busy) / len(busy)))
    assert [row["slowest_block"] for row in found[:2]] == [77, 77]


def planted(path: Path, kind: str, seed: int) -> tuple[Path, int]:
    """Six launches of a kernel of 64 blocks on 16 SMs, and the block or SM that is 8 times as slow. Of kind
    uneven, the last block is, and others are in the order of their numbers; of kind tail, there are 18 blocks,
    and none is slow."""
    draw = random.Random(seed)
    culprit = {"uneven": 63, "tail": -1}.get(
        kind, draw.randrange(64 if kind == "block" else NUM_SMS)
    )
    num_blocks = 18 if kind == "tail" else 64
    table, launches, clock = [], [], 10**9
    for block in range(num_blocks):
        table.append(
            {"smId": block % NUM_SMS, "tpcId": 0, "gpcId": 0, "ctaId": [block, 0, 0], "warpId": 0}
        )
    for number in range(6):
        lives, free = [], [clock] * NUM_SMS
        for block in range(num_blocks):
            sm = block % NUM_SMS
            is_slow = culprit == (sm if kind == "sm" else block)
            factor = 1 + 7 * block / 63 if kind == "uneven" else 8 if is_slow else 1
            length = int(32 * draw.randrange(300, 310) * factor)
            lives.append({"startTs": free[sm], "endTs": free[sm] + length, "locIdx": block})
            free[sm] += length
        launches.append(
            {"contextId": 1, "gridId": number, "kernelName": "mm", "gridDimX": num_blocks, "gridDimY": 1, "gridDimZ": 1,
             "blockDimX": 32, "blockDimY": 1, "blockDimZ": 1, "ranges": [], "markers": [], "warpLifetimes": lives}
        )  # fmt: skip
        clock = max(free) + 4000
    path.write_text(json.dumps({"stringTable": [], "locationTable": table, "launches": launches}))
    return path, culprit


@pytest.mark.parametrize("seed", range(2))
def test_a_planted_block_is_the_headline(seed: int, tmp_path: Path) -> None:
    file, block = planted(tmp_path / "t.json", "block", seed)
    path = import_events(None, [file], tmp_path / "run.kprof").path
    text = report.render_markdown(report.build(kprof.open(path).trace))
    assert f"Block {block} of rank 0 runs warp of mm" in text


def printed(trace: Trace) -> str:
    console = Console(width=300, file=io.StringIO())
    console.print(report.render_terminal(report.build(trace)))
    return console.file.getvalue()


def judged(kind: str, tmp_path: Path, plant: str) -> bool:
    """Whether the benchmark finds what `plant` says in a report of launches that have `kind`."""
    file, place = planted(tmp_path / "t.json", kind, 3)
    trace = kprof.open(import_events(None, [file], tmp_path / "run.kprof").path).trace
    case = Case(kind, "torch", "*", plant, place, Shape(grid=(64, 1)))
    rows = warp_lifetimes(analysis.Summary.of(trace)).to_dict("records")
    return judge(case, rows, printed(trace), "")["is_named"]


PLANTS = {"block": "block", "sm": "processor", "uneven": "uneven", "tail": "tail"}


@pytest.mark.parametrize("kind", PLANTS)
def test_the_table_names_what_was_planted(kind: str, tmp_path: Path) -> None:
    assert judged(kind, tmp_path, PLANTS[kind])


@pytest.mark.parametrize(
    ("kind", "plant"),
    [("block", "tail"), ("sm", "block"), ("tail", "uneven"), ("tail", "processor")],
)
def test_what_was_not_planted_is_not_named(kind: str, plant: str, tmp_path: Path) -> None:
    assert not judged(kind, tmp_path, plant)


def test_where_no_block_stands_out_none_is_named(tmp_path: Path) -> None:
    file, _ = planted(tmp_path / "t.json", "tail", 3)
    trace = kprof.open(import_events(None, [file], tmp_path / "run.kprof").path).trace
    assert "none stands out" in printed(trace)


def test_gaps_between_launches_and_their_waves(tmp_path: Path) -> None:
    file, _ = planted(tmp_path / "t.json", "block", 1)
    rows = rows_of(file, tmp_path)
    assert [row["gap_ns"] for row in rows[1:]] == [4000] * 5
    assert {row["waves"] for row in rows} == {4}


def test_other_captures_have_no_lifetimes(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("rank,block,region,start_ns,end_ns\n0,0,a,10,25\n")
    assert rows_of(tmp_path / "t.csv", tmp_path) == []
