"""The fp8 matrix products of AMD against the instructions as they are defined, on the host.

No emulator has the sparse instruction.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import kprof
from machine_code import tool

pytestmark = pytest.mark.native

INCLUDE = Path(kprof.__file__).parent / "include"
SOURCE = Path(__file__).with_name("matrix_products.cpp")


def num_wrong(num_tokens: int, include: Path, folder: Path) -> int:
    """Of the sums that a warp's product of so many tokens has."""
    program = folder / "products"
    compiler = tool("clang++-19", "clang++")
    command = [compiler, "-std=c++17", "-O1", "-Werror", f"-I{include}", str(SOURCE)]
    subprocess.run([*command, "-o", str(program)], check=True)
    run = subprocess.run([program, str(num_tokens)], capture_output=True, text=True, check=True)
    return int(run.stdout)


@pytest.mark.parametrize("num_tokens", [8, 16])
def test_every_sum_is_exact(num_tokens: int, tmp_path: Path) -> None:
    """8 tokens by the sparse instruction, 16 by the dense one."""
    assert num_wrong(num_tokens, INCLUDE, tmp_path) == 0


@pytest.mark.parametrize(
    "fault", [("0xeeee : 0x4444", "0x4444 : 0xeeee"), ("lane_id() % 16 / 2 :", "lane_id() % 8 :")]
)
def test_wrong_packing_is_seen(fault: tuple[str, str], tmp_path: Path) -> None:
    """With the indices of even and odd rows exchanged, and with each token in rows 8 apart."""
    header = Path("kprof") / "platform" / "compute_hip.h"
    (tmp_path / header).parent.mkdir(parents=True)
    source = (INCLUDE / header).read_text()
    assert source.count(fault[0]) == 1
    (tmp_path / header).write_text(source.replace(*fault))
    for name in ("bits.h", "fp8.h"):
        included = header.with_name(name)
        (tmp_path / included).write_text((INCLUDE / included).read_text())
    assert num_wrong(8, tmp_path, tmp_path) > 0
