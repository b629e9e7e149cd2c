"""What the compilers make of the device API, of announced regions, delays, and lines of waits: nothing is run, the machine code
is read.

gfx942 needs clang-19 with the HIP headers, sm_90 needs nvcc and nvdisasm; without them the tests
are skipped by name.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from device_code import build_device_code

from kept_sources import kept_files, kept_source
from kprof.devices import build
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


# The same spans, of a region that is announced or is not.
ANNOUNCED_REGIONS = 'REGION(R_GEMM, "gemm", compute, WORDstep:8)\n'
ANNOUNCED = """
#include <kprof/kprof.h>
#define KPROF_REGIONS "regions.h"
#include <kprof/declare_regions.h>

__global__ void loop(uint32_t* out, uint32_t count, kprof::Buffer prof) {
  kprof::Track track = kprof::open_track(prof, kprof::per_warp);
  KPROF_UNROLL(1)
  for (uint32_t step = 0; step < count; ++step) {
    const kprof::Span span = START;
    out[step * kprof::platform::num_threads() + kprof::platform::thread_id()] = step;
    kprof::profile_stop(track, span, R_GEMM, kprof::payload<R_GEMM>(step));
  }
}
"""
PLAIN = "kprof::profile_start(track)"
WITH_REGION = "kprof::profile_start(track, R_GEMM, kprof::payload<R_GEMM>(step))"


def announced_code(target: Target, word: str, start: str) -> list[str]:
    """The instructions of the kernel."""
    require(target)
    regions = ANNOUNCED_REGIONS.replace("WORD", word and f"{word}, ")
    source = kept_source(ANNOUNCED.replace("START", start), regions)
    options = BuildOptions(target, "gfx942" if target is Target.HIP else "", sanitizers=())
    found = disassemble(build_device_code(source, options), target)
    return [
        line for name, body in found.items() if "loop" in name and "$" not in name for line in body
    ]


@pytest.mark.parametrize("target", [Target.HIP, Target.CUDA])
def test_a_region_that_is_not_announced_costs_nothing(target: Target) -> None:
    if target is Target.HIP:
        require_arch("gfx942")
    plain = announced_code(target, "", PLAIN)
    assert plain
    assert announced_code(target, "", WITH_REGION) == plain


def test_amd_announces_past_all_caches_and_takes_it_back() -> None:
    require_arch("gfx942")
    store = re.compile(r"(?:flat|global)_store_dwordx2 .* sc0 sc1")
    plain = announced_code(Target.HIP, "", PLAIN)
    announced = announced_code(Target.HIP, "announced", WITH_REGION)
    # Headers, of 48 bytes: for a reserved chunk, a claimed one, and the next one of the track.
    num_in_headers = 3 * 6
    assert sum(bool(store.match(line)) for line in plain) == num_in_headers
    # The line is 16 bytes, and its end 8.
    assert sum(bool(store.match(line)) for line in announced) == num_in_headers + 3


def test_nvidia_announces_with_one_store() -> None:
    store = re.compile(r"(?:@!?U?P\d )?STG\.E\.128 ")
    plain = announced_code(Target.CUDA, "", PLAIN)
    announced = announced_code(Target.CUDA, "announced", WITH_REGION)
    counts = [sum(bool(store.match(line)) for line in body) for body in (plain, announced)]
    assert counts[1] == counts[0] + 1


ARCHS = {Target.CUDA: "sm_90", Target.HIP: "gfx942"}
CLOCK = {Target.CUDA: r"GLOBALTIMER", Target.HIP: r"s_memrealtime"}
BRANCHES = (
    r"#if KPROF_DELAYS\n(?:(?!#if|#endif)[^\n]*\n)*?(?:#else\n((?:(?!#endif)[^\n]*\n)*))?#endif\n"
)


def require_compiler(target: Target) -> None:
    require(target)
    if target is Target.HIP:
        require_arch(ARCHS[target])


def headers_without_delays() -> Path:
    include = build.include_dir()
    files = {str(path.relative_to(include)): path.read_text() for path in include.rglob("*.h")}
    text = re.sub(r"#ifndef KPROF_DELAYS\n.*?#endif\n", "", files["kprof/kprof.h"], flags=re.DOTALL)
    text = re.sub(BRANCHES, lambda found: found[1] or "", text)
    text = re.sub(r"\n[^\n]*delay_end\([^\n]*", "", text)
    assert "delay" not in text.split("#pragma once")[1]
    return kept_files(files | {"kprof/kprof.h": text}).parent


@pytest.mark.parametrize("target", [Target.HIP, Target.CUDA])
def test_without_delays_the_code_is_as_if_there_were_none(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_compiler(target)
    found = disassemble(probe(target, 1, arch=ARCHS[target]), target)
    include = headers_without_delays()
    monkeypatch.setattr(build, "include_dir", lambda: include)
    assert disassemble(probe(target, 1, arch=ARCHS[target]), target) == found


@pytest.mark.parametrize("target", [Target.HIP, Target.CUDA])
def test_with_delays_a_span_ends_with_a_loop_on_the_clock(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_compiler(target)
    plain = only_kernel(disassemble(probe(target, 1, arch=ARCHS[target]), target))
    monkeypatch.setenv(build.DELAYS_VARIABLE, "{}")
    delayed = only_kernel(disassemble(probe(target, 1, arch=ARCHS[target]), target))
    assert count(delayed, CLOCK[target]) >= count(plain, CLOCK[target]) + 2


HANGING = Path(__file__).parents[1] / "support" / "planted_hangs" / "kernel.hip"
# still_waiting in the loops of `wait` and `meet`.
NUM_WAITS = 2
# Of a line: the start, the track, its flag, what that should hold, and last of all the region, which
# makes it valid.
LINE = [0x0, 0x10, 0x18, 0x20, 0x8]


def exchange(target: Target, arch: str = "") -> dict[str, list[str]]:
    require(target)
    return disassemble(
        build_device_code(HANGING, BuildOptions(target, arch, sanitizers=())), target
    )


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
