"""What the compilers make of the all-reduce: it links and loads, fences where it must, spills nothing."""

from __future__ import annotations

import ctypes
import re
import subprocess
from pathlib import Path

import pytest
from device_code import build_device_code

from kprof.devices.build import BuildOptions, build_library
from kprof.devices.targets import Target
from machine_code import (
    HIP_ARCHS,
    disassemble,
    linked_device_code,
    require,
    require_arch,
    tool,
)

pytestmark = pytest.mark.native

ALL_REDUCE = Path(__file__).parents[2] / "instrumented_kernels" / "all_reduce"
DEVICE_DIR = ALL_REDUCE.parent / "device"
# Seven variants for three element types.
NUM_KERNELS = 21
PACKET_KERNELS = ("oneshotI", "twoshot_packetsI")
BULK_KERNELS = ("oneshot_serialI", "oneshot_lockI", "oneshot_treeI", "twoshotI", "ringI")


def options(target: Target, arch: str = "", **defines: str) -> BuildOptions:
    return BuildOptions(target, arch, tuple(defines.items()), (DEVICE_DIR,), sanitizers=())


def machine_code(target: Target, **defines: str) -> dict[str, list[str]]:
    """Instructions by kernel, without the functions that it calls, for the default architecture."""
    require(target)
    build = build_device_code if defines else linked_device_code
    code = build(ALL_REDUCE / "kernel.hip", options(target, **defines))
    functions = disassemble(code, target)
    # A kernel's own copy of a function that it calls has both names, with a dollar sign between
    # them.
    return {
        name: body for name, body in functions.items() if "all_reduce" in name and "$" not in name
    }


def kernels_named(functions: dict[str, list[str]], *names: str) -> list[list[str]]:
    found = [
        body
        for name, body in functions.items()
        if any(re.search(rf"\d{kernel}", name) for kernel in names)
    ]
    assert len(found) == 3 * len(names)
    return found


@pytest.mark.sampled(2)
@pytest.mark.parametrize("arch", HIP_ARCHS)
def test_links_and_loads_for_amd(arch: str) -> None:
    require(Target.HIP)
    require_arch(arch)
    library = ctypes.CDLL(str(build_library(ALL_REDUCE / "kernel.hip", options(Target.HIP, arch))))
    assert library.kernel_num_variants() == NUM_KERNELS


def test_links_for_nvidia() -> None:
    require(Target.CUDA)
    assert build_library(ALL_REDUCE / "kernel.hip", options(Target.CUDA)).exists()


def test_spills_nothing_to_memory_on_amd() -> None:
    require(Target.HIP)
    code = linked_device_code(ALL_REDUCE / "kernel.hip", options(Target.HIP))
    command = [tool("llvm-readelf-19", "llvm-readelf"), "--notes", str(code)]
    notes = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    for key in ("vgpr_spill_count", "private_segment_fixed_size"):
        values = [int(value) for value in re.findall(rf"\.{key}:\s+(\d+)", notes)]
        assert len(values) == NUM_KERNELS
        assert not any(values), key


def test_blocks_of_512_threads_have_their_registers_on_nvidia() -> None:
    require(Target.CUDA)
    code = linked_device_code(ALL_REDUCE / "kernel.hip", options(Target.CUDA))
    command = [tool("cuobjdump"), "--dump-resource-usage", str(code)]
    usage = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    registers = [int(value) for value in re.findall(r"REG:(\d+)", usage)]
    assert len(registers) == NUM_KERNELS
    assert max(registers) <= 65536 // 512
    assert set(re.findall(r"STACK:(\d+)", usage)) == {"0"}


def test_amd_publishes_with_a_system_fence_before_each_flag() -> None:
    """In the plain build: recorded ones store what a flag holds for whoever looks, too."""
    for body in kernels_named(machine_code(Target.HIP, KPROF_ENABLED="0"), *BULK_KERNELS):
        flags = [
            i
            for i, line in enumerate(body)
            if re.match(r"(flat|global)_store_dword v.*sc0 sc1", line)
        ]
        fences = [i for i, line in enumerate(body) if line.startswith("buffer_wbl2 sc0 sc1")]
        assert flags
        assert fences
        assert min(fences) < min(flags)
        waits = [i for i, line in enumerate(body) if "vmcnt(0)" in line]
        assert any(min(fences) < i < min(flags) for i in waits)


def test_packets_are_sent_without_any_fence() -> None:
    amd, nvidia = machine_code(Target.HIP), machine_code(Target.CUDA)
    for body in kernels_named(amd, *PACKET_KERNELS):
        assert not [line for line in body if line.startswith("buffer_wbl2")]
        assert [line for line in body if re.match(r"(flat|global)_store_dwordx2 .*sc0 sc1", line)]
    for body in kernels_named(nvidia, *PACKET_KERNELS):
        assert not [line for line in body if "MEMBAR" in line]
        assert [line for line in body if re.search(r"\bSTG?\.E\.128\.STRONG\.SYS", line)]
        assert [line for line in body if re.search(r"\bLDG?\.E\.128\.STRONG\.SYS", line)]
    for body in kernels_named(nvidia, *BULK_KERNELS):
        assert [line for line in body if "MEMBAR" in line]
