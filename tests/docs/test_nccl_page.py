"""The page about NCCL, on a recording of a host that plays NCCL."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
from pages import DOCS, Reader, blocks_of

sys.path.append(str(Path(__file__).parents[1] / "native"))
from nccl_host import build_driver, build_host, record


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler, cc")
def test_what_the_page_says_can_be_done(tmp_path):
    host, driver = build_host(tmp_path), build_driver(tmp_path)
    options = ("ranks=4", "calls=20", "late=1", "delay=50000")
    run = record(host, tmp_path / "run.kprof", *options, driver=driver)
    assert run.returncode == 0, run.stderr
    reader = Reader(tmp_path, lambda need: need == "a recording of NCCL")
    reader.follow(blocks_of(DOCS / "nccl.md"))
    assert [block.needs for block in reader.left_out] == ["a gpu with NCCL", "kernels beside NCCL"]


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler, cc")
def test_the_sentence_of_a_hang_is_as_on_the_page(tmp_path):
    host = build_host(tmp_path)
    run = record(host, tmp_path / "run.kprof", "ranks=3", "calls=1408", "channels=1", "stuck=2")
    (quoted,) = [
        line.strip()
        for line in (DOCS / "nccl.md").read_text().splitlines()
        if "never ended:" in line
    ]
    assert quoted in run.stderr
