"""What the compilers make of the device API: nothing is run, the machine code is read.

gfx942 needs clang-19 with the HIP headers, sm_90 needs nvcc and nvdisasm; without them the tests
are skipped by name.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from kprof.devices.build import BuildOptions, build_library
from kprof.devices.targets import Target
from machine_code import (
    HIP_ARCHS,
    PINGPONG,
    count,
    disassemble,
    only_kernel,
    probe,
    require,
    require_arch,
    tool,
)

pytestmark = pytest.mark.native


def test_clock_pingpong_builds_for_nvidia() -> None:
    """For AMD test_amd_builds.py builds it."""
    require(Target.CUDA)
    assert build_library(PINGPONG, BuildOptions(Target.CUDA, sanitizers=())).exists()


def test_amd_reads_the_clock_twice_per_event_and_needs_no_scratch() -> None:
    require(Target.HIP)
    without = only_kernel(disassemble(probe(Target.HIP, 0), Target.HIP))
    with_site = only_kernel(disassemble(probe(Target.HIP, 1), Target.HIP))
    # A header for a reserved chunk, one for a claimed one, and one more where the refill is
    # inlined. Each reads the clock once.
    headers = count(without, r"^s_memtime")
    assert headers == 2
    assert count(with_site, r"^s_memtime") == 3
    assert count(without, r"^s_memrealtime") == 2
    assert count(with_site, r"^s_memrealtime") == 2 + 3
    assert count(with_site, r"^scratch_|^buffer_store") == 0


@pytest.mark.parametrize("arch", HIP_ARCHS)
def test_amd_hot_path_is_one_sixteen_byte_store_without_atomic(arch: str) -> None:
    """The first branch behind the store of the record is the only one. Where it is taken, the next event begins."""
    require(Target.HIP)
    require_arch(arch)
    instructions = listing(probe(Target.HIP, 1, arch=arch))
    loop_begin, loop_end = largest_loop(instructions)
    in_loop = [entry for entry in instructions if loop_begin <= entry[0] <= loop_end]
    (record,) = [
        address
        for address, name, operands in in_loop
        if name == "global_store_dwordx4" and "offset" not in operands
    ]
    check, next_event = next(
        (address, branch_target(address, operands))
        for address, name, operands in in_loop
        if name.startswith("s_cbranch") and address > record
    )
    assert next_event < record, "a branch back: the refill is not jumped over but left out"
    hot_path = [name for address, name, _ in instructions if next_event <= address <= check]
    assert hot_path.count("s_memrealtime") == 2
    assert not [name for name in hot_path if "atomic" in name or name.startswith("flat_")]
    assert [name for _, name, _ in in_loop if "atomic" in name]


def listing(code: Path) -> list[tuple[int, str, str]]:
    """Address, name and operands of every instruction."""
    command = [tool("llvm-objdump-19", "llvm-objdump"), "-d", str(code)]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.findall(r"^\s+(\S+)([^/\n]*)//\s*([0-9A-F]+):", text, flags=re.MULTILINE)
    return [(int(address, 16), name, operands.strip()) for name, operands, address in found]


def largest_loop(instructions: list[tuple[int, str, str]]) -> tuple[int, int]:
    """The widest backward branch: the loop over events."""
    loops = [
        (branch_target(address, operands), address)
        for address, name, operands in instructions
        if name.startswith(("s_cbranch", "s_branch")) and branch_target(address, operands) < address
    ]
    return max(loops, key=lambda loop: loop[1] - loop[0])


def branch_target(address: int, operands: str) -> int:
    """Branches count in words from the next instruction. The operand is an unsigned 16-bit number."""
    words = int(operands.split()[0])
    return address + 4 + 4 * (words - 0x10000 if words >= 0x8000 else words)


def test_nvidia_record_is_one_vector_store_without_atomic() -> None:
    require(Target.CUDA)
    without = only_kernel(disassemble(probe(Target.CUDA, 0), Target.CUDA))
    with_site = only_kernel(disassemble(probe(Target.CUDA, 1), Target.CUDA))
    atomic = r"\b(ATOM|ATOMG|RED|REDG)\b"
    assert count(with_site, atomic) == count(without, atomic)
    last_clock = max(i for i, line in enumerate(with_site) if "SR_GLOBALTIMER" in line)
    stores = [line for line in with_site[last_clock:] if re.search(r"\bSTG?\.", line)]
    assert len(stores) == 1, stores
    assert ".128" in stores[0]
    assert count(with_site, r"SR_GLOBALTIMER") == count(
        without, r"SR_GLOBALTIMER"
    ) + 2 * readings_per_clock(without)
    assert count(with_site, r"\b(STL|LDL)\b") == 0


def test_nvidia_finds_lanes_and_warps_without_a_division() -> None:
    """A reciprocal is how a GPU divides by a number that its compiler did not know."""
    require(Target.CUDA)
    kernel = only_kernel(disassemble(probe(Target.CUDA, 1), Target.CUDA))
    assert count(kernel, r"MUFU\.RCP") == 0


def test_nvidia_refill_is_one_function_for_all_events_of_a_kernel() -> None:
    require(Target.CUDA)
    called = disassemble(probe(Target.CUDA, 1), Target.CUDA)
    refills = [body for name, body in called.items() if "handle_rare" in name]
    assert len(refills) == 1
    assert count(refills[0], r"\bATOMG") > 0
    kernel = only_kernel(called)
    # The other call claims the first chunk of a track where none was reserved: the way in is
    # straight.
    assert count(kernel, r"^CALL") == 2
    assert count(kernel, r"\bATOMG") == 0
    inlined = probe(Target.CUDA, 1, ("KPROF_INLINE_REFILL", "1"))
    assert len(only_kernel(disassemble(inlined, Target.CUDA))) > len(kernel)


def readings_per_clock(without: list[str]) -> int:
    """How many special-register reads one reading of the 64-bit timer takes: the header holds exactly one reading."""
    readings = count(without, r"SR_GLOBALTIMER")
    assert readings > 0
    return readings
