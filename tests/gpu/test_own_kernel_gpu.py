"""docs/own_kernel.md, followed literally on GPUs: on one, on two, with torch's symmetric memory, and with CMake."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from pages import DOCS, Reader, blocks_of

import kprof
from kprof.devices.targets import Target, count_devices, find_compiler

pytestmark = pytest.mark.gpu

NUM_ROWS, NUM_CALLS = 16, 8


def _has(what: str) -> bool:
    return all(_has_part(part) for part in what.split(" and "))


def _has_part(what: str) -> bool:
    num_gpus = count_devices(Target.CUDA)
    if "gpu" in what:
        return num_gpus >= (2 if what.startswith("2") else 1)
    if what == "nvcc":
        return find_compiler(Target.CUDA) is not None
    return what != "hipcc" and shutil.which(what) is not None


def check(path: Path, num_ranks: int) -> None:
    run = kprof.open(path)
    assert {info.target for info in run.ranks} == {"cuda"}
    assert len(run.flows()) == NUM_CALLS * NUM_ROWS * num_ranks**2
    late = run.frame("SELECT count(*) AS n FROM flows WHERE wait_end_ns < send_start_ns")
    assert late["n"].tolist() == [0]
    tiles = run.frame(
        "SELECT rank, count(*) AS n FROM events WHERE region = 'add' GROUP BY ALL ORDER BY rank"
    )
    assert tiles["n"].tolist() == [NUM_CALLS * NUM_ROWS * n for n in (64, 16)[:num_ranks]]


def test_the_page_on_one_gpu(tmp_path: Path, require_gpus: Callable[[int], None]) -> None:
    require_gpus(1)
    blocks = [
        block
        for block in blocks_of(DOCS / "own_kernel.md")
        if block.title in ("kernel.hip", "regions.h", "workload.py") or block.needs == "gpu"
    ]
    reader = Reader(tmp_path, _has)
    reader.follow(blocks)
    check(reader.folder / "one.kprof", 1)


def test_the_whole_page_on_two_gpus(tmp_path: Path, require_gpus: Callable[[int], None]) -> None:
    require_gpus(2)
    reader = Reader(tmp_path, _has)
    # What the page prints is of two ranks on one core.
    reader.follow(
        [block for block in blocks_of(DOCS / "own_kernel.md") if block.language != "text"]
    )
    assert {block.needs for block in reader.left_out} <= {
        "hipcc",
        "ninja",
        "cmake",
        "gpu and cmake",
    }
    check(reader.folder / "one.kprof", 1)
    for name in ("run.kprof", "two.kprof", "symm_mem.kprof"):
        check(reader.folder / name, 2)
