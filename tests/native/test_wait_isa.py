"""What the compilers make of the lines of waits: stores that the host sees while the kernel spins."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from device_code import build_device_code

from kprof.devices.build import BuildOptions
from kprof.devices.targets import Target
from machine_code import disassemble, require, require_arch

pytestmark = pytest.mark.native

KERNEL = Path(__file__).parents[1] / "support" / "planted_hangs" / "kernel.hip"
# still_waiting in the loops of `wait` and `meet`.
NUM_WAITS = 2
# Of a line: the start, the track, its flag, what that should hold, and last of all the region, which
# makes it valid.
LINE = [0x0, 0x10, 0x18, 0x20, 0x8]


def exchange(target: Target, arch: str = "") -> dict[str, list[str]]:
    require(target)
    return disassemble(build_device_code(KERNEL, BuildOptions(target, arch, sanitizers=())), target)


@pytest.mark.parametrize("arch", ["gfx942", "gfx950"])
def test_amd_writes_a_line_past_all_caches(arch: str) -> None:
    """`sc0 sc1` is system scope: otherwise the line stays in the L2 cache of its die."""
    require(Target.HIP)
    require_arch(arch)
    store = re.compile(r"flat_store_dwordx2 v\[\d+:\d+\], v\[\d+:\d+\](?: offset:(\d+))? sc0 sc1")
    (body,) = (code for name, code in exchange(Target.HIP, arch).items() if "exchange" in name)
    # Every 8-byte store of this kernel is of a line, or of the header of a chunk.
    offsets = [int(found[1] or 0) for found in map(store.fullmatch, body) if found]
    others = [line for line in body if "store_dwordx2" in line and not store.fullmatch(line)]
    assert all(line.startswith("global_") and line.endswith("sc0 sc1") for line in others)
    # Each wait has its end, which stores a zero over the region, somewhere behind its line.
    starts = [at for at in range(len(offsets)) if offsets[at : at + 2] == [0, 16]]
    opened = [offsets[at : at + len(LINE)] for at in starts]
    assert opened == [LINE] * NUM_WAITS
    assert len(offsets) == (len(LINE) + 1) * NUM_WAITS


def test_nvidia_writes_a_line_for_the_whole_system() -> None:
    functions = exchange(Target.CUDA)
    store = re.compile(
        r"(?:@!?P\d )?STG?\.E\.64\.STRONG\.SYS .*\[R\d+\.64(?:\+0x([0-9a-f]+))?\], (\w+)"
    )
    stores = {
        name.rpartition("$")[2]: [found for found in map(store.fullmatch, body) if found]
        for name, body in functions.items()
    }
    (line,) = (found for name, found in stores.items() if "open_wait_line" in name)
    assert [int(each[1] or "0", 16) for each in line] == LINE
    (end,) = (found for name, found in stores.items() if "close_wait_line" in name)
    assert [(each[1], each[2]) for each in end] == [(None, "RZ")]
    (kernel,) = (found for name, found in stores.items() if name.startswith("_Z8exchange"))
    assert kernel == []
