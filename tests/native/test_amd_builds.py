"""What is built for AMD beside the kernels' own code: architectures, where a wave runs, memory that peers write, and the fp8
matrix products against the instructions as they are defined (no emulator has the sparse one). What compiles, is right on
every other target, and wrong in gfx9 machine code is looked for in all kernels."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from device_code import build_device_code

from kept_sources import kept_source
from kprof.devices.build import BuildOptions, build_library, include_dir
from kprof.devices.targets import Target
from kprof.errors import BuildError
from machine_code import (
    HIP_ARCHS,
    PINGPONG,
    disassemble,
    linked_device_code,
    only_kernel,
    probe,
    require,
    require_arch,
    tool,
)

pytestmark = pytest.mark.native


# A span around loads that each lane makes for itself, and around one that is the same for all
# lanes.
COMPLETE = """
#include <kprof/kprof.h>
#define KPROF_REGIONS "regions.h"
#include <kprof/declare_regions.h>
__global__ void probe(const float* __restrict__ all, const float* __restrict__ own, float* out, unsigned n,
                      kprof::Buffer prof) {
  kprof::Track track = kprof::open_track(prof, kprof::per_warp);
  const kprof::Span span = kprof::profile_start(track);
  const float loaded = own[kprof::platform::thread_id()];
  const float uniform = all[n];
  kprof::profile_stop(track, span, R_STEP);
  out[kprof::platform::thread_id()] = loaded + uniform;
}
"""
# A HIP runtime that refuses what the environment names, and writes down the flags that it is asked
# for.
RUNTIME = """
#include <stdio.h>
#include <stdlib.h>
static unsigned kind;
static int refuses(const char* variable) {
  const char* value = getenv(variable);
  return value && (unsigned)atoi(value) == kind;
}
int hipExtMallocWithFlags(void** memory, size_t bytes, unsigned flags) {
  kind = flags;
  printf("allocate %u\\n", kind);
  if (refuses("REFUSED_KIND")) return 1;
  *memory = calloc(1, bytes);
  return 0;
}
int hipFree(void* memory) { printf("free %u\\n", kind); free(memory); return 0; }
int hipIpcGetMemHandle(void* handle, void* memory) { return refuses("KIND_WITHOUT_HANDLE") ? 1 : 0; }
int hipMemset(void* memory, int value, size_t bytes) { return 0; }
int hipDeviceSynchronize(void) { return 0; }
int hipGetLastError(void) { return 0; }
"""
ALLOCATE = """
import ctypes
from kprof.devices.groups import SoloGroup
from kprof.devices.symmetric import _PeerMemory
from kprof.devices.targets import Target
print("took", _PeerMemory(SoloGroup(), 4096, Target.HIP).kind)
ctypes.CDLL(None).fflush(None)
"""
SECOND_CHOICE = (
    "kprof: memory that peers write is fine-grained, which is cached: this runtime has no uncached memory "
    "that other processes can open"
)
UNCACHED, FINE_GRAINED = 3, 1


def allocations(folder: Path, **environment: str) -> list[str]:
    """What an allocation asks of the runtime, in order; which memory it took, and what it says about that."""
    require(Target.HIP)
    (folder / "runtime.c").write_text(RUNTIME)
    runtime = folder / "runtime.so"
    compile_runtime = ["cc", "-shared", "-fPIC", "-w", str(folder / "runtime.c"), "-o"]
    subprocess.run([*compile_runtime, str(runtime)], check=True)
    answer = subprocess.run(
        [sys.executable, "-c", ALLOCATE],
        env=os.environ | {"LD_PRELOAD": str(runtime)} | environment,
        capture_output=True,
        text=True,
        check=True,
    )
    asked = sorted(answer.stdout.splitlines(), key=lambda line: line.startswith("took"))
    return [*asked, *answer.stderr.splitlines()]


def test_memory_that_peers_write_is_uncached(tmp_path: Path) -> None:
    assert allocations(tmp_path) == [f"allocate {UNCACHED}", "took uncached"]


def test_a_runtime_without_uncached_memory_gives_fine_grained(tmp_path: Path) -> None:
    assert allocations(tmp_path, REFUSED_KIND=str(UNCACHED)) == [
        f"allocate {UNCACHED}",
        f"allocate {FINE_GRAINED}",
        "took fine-grained",
        SECOND_CHOICE,
    ]


def test_memory_that_no_other_process_can_open_is_not_used(tmp_path: Path) -> None:
    assert allocations(tmp_path, KIND_WITHOUT_HANDLE=str(UNCACHED)) == [
        f"allocate {UNCACHED}",
        f"free {UNCACHED}",
        f"allocate {FINE_GRAINED}",
        "took fine-grained",
        SECOND_CHOICE,
    ]


def test_a_library_holds_code_for_every_architecture_that_is_named() -> None:
    require(Target.HIP)
    options = BuildOptions(Target.HIP, "gfx90a,gfx942", sanitizers=())
    code = build_library(PINGPONG, options).read_bytes()
    assert b"amdgcn-amd-amdhsa--gfx90a" in code
    assert b"amdgcn-amd-amdhsa--gfx942" in code


@pytest.mark.parametrize(
    ("arch", "registers"),
    [
        ("gfx90a", ["hwreg(HW_REG_HW_ID, 8, 8)"]),
        ("gfx942", ["hwreg(HW_REG_HW_ID, 8, 8)", "hwreg(HW_REG_XCC_ID, 0, 4)"]),
        ("gfx950", ["hwreg(HW_REG_HW_ID, 8, 8)", "hwreg(HW_REG_XCC_ID, 0, 4)"]),
    ],
)
def test_a_track_says_on_which_compute_unit_it_ran(arch: str, registers: list[str]) -> None:
    """Bits 0 to 7 of HW_ID are the wave's own: its slot, SIMD and pipe."""
    require(Target.HIP)
    require_arch(arch)
    body = only_kernel(disassemble(probe(Target.HIP, 0, arch=arch), Target.HIP))
    read = [line.split(", ", 1)[1] for line in body if line.startswith("s_getreg_b32")]
    # Twice where a track may begin in a chunk of its own or in one that it claims.
    assert list(dict.fromkeys(read)) == registers


@pytest.mark.parametrize("arch", HIP_ARCHS)
def test_a_complete_region_ends_when_vector_and_scalar_loads_have_arrived(arch: str) -> None:
    """Vector memory counts in vmcnt. A load that is the same for all lanes is scalar and counts in lgkmcnt."""
    require(Target.HIP)
    require_arch(arch)
    source = kept_source(COMPLETE, 'REGION(R_STEP, "step", recv, complete)\n')
    code = build_device_code(source, BuildOptions(Target.HIP, arch, sanitizers=()))
    body = only_kernel(disassemble(code, Target.HIP))
    (record,) = [i for i, line in enumerate(body) if is_record(line)]
    (*_, end) = [i for i, line in enumerate(body[:record]) if line.startswith("s_memrealtime")]
    loads = [i for i, line in enumerate(body[:end]) if re.match(r"(global|flat)_load", line)]
    assert loads, "the span is around a load"
    waits = [line for line in body[loads[-1] : end] if line.startswith("s_waitcnt")]
    assert any("vmcnt(0)" in line and "lgkmcnt(0)" in line for line in waits), waits


def is_record(line: str) -> bool:
    return line.startswith("global_store_dwordx4") and "offset" not in line


@pytest.mark.parametrize("is_enabled", [0, 1])
def test_headers_have_no_warnings(is_enabled: int) -> None:
    """Whoever compiles for AMD sees their own first."""
    require(Target.HIP)
    source = kept_source(
        f"""
#pragma clang diagnostic error "-Wextra"
#define KPROF_ENABLED {is_enabled}
#include <kprof/late_wait.h>
#include <kprof/short_track.h>
__global__ void probe(kprof::Buffer prof) {{
  const kprof::EarlyTrack early = kprof::ask_for_short_track(prof, 2u);
  [[maybe_unused]] const kprof::ShortTrack track = kprof::open_short_track(prof, 2u, early);
}}
"""
    )
    assert build_device_code(source, BuildOptions(Target.HIP, sanitizers=())).exists()


CLOCK = """
#include <kprof/platform.h>
__global__ void probe(unsigned long long* out) { out[kprof::platform::warp_id()] = kprof::platform::kRealtimeTicksPerSecond; }
"""


@pytest.mark.parametrize(("arch", "rate"), [("gfx90a", 0x17D7840), ("gfx942", 0x5F5E100)])
def test_device_code_knows_the_clock_and_the_wave_of_its_gpu(arch: str, rate: int) -> None:
    """The clock of MI200 has a quarter of the rate; nothing is divided by a width that every gfx9 has."""
    require(Target.HIP)
    code = build_device_code(kept_source(CLOCK), BuildOptions(Target.HIP, arch, sanitizers=()))
    body = "\n".join(only_kernel(disassemble(code, Target.HIP)))
    assert f"{rate:#x}" in body
    assert "v_rcp" not in body


def test_a_gpu_of_another_family_is_refused_in_a_sentence() -> None:
    require(Target.HIP)
    with pytest.raises(BuildError, match=r"kprof is for gfx9 \(MI200, MI300, MI350\)"):
        build_device_code(kept_source(CLOCK), BuildOptions(Target.HIP, "gfx1030", sanitizers=()))


PRODUCTS = Path(__file__).with_name("matrix_products.cpp")


@pytest.mark.parametrize("num_tokens", [8, 16])
def test_every_sum_is_exact(num_tokens: int, tmp_path: Path) -> None:
    """That a warp's product has: of 8 tokens by the sparse instruction, of 16 by the dense one."""
    program = tmp_path / "products"
    flags = ["-std=c++17", "-O1", "-Werror", f"-I{include_dir()}"]
    command = [tool("clang++-19", "clang++"), *flags, str(PRODUCTS), "-o", str(program)]
    subprocess.run(command, check=True)
    run = subprocess.run([program, str(num_tokens)], capture_output=True, text=True, check=True)
    assert int(run.stdout) == 0


ROOT = Path(__file__).parents[2]
FOLDERS = ("instrumented_kernels", "kprof/kernels", "benchmarks")
# benchmarks/hosts sends through sockets: it is for the CPU target alone.
KERNELS = sorted(
    path
    for folder in FOLDERS
    for path in (ROOT / folder).rglob("*.hip")
    if path.parent.name != "hosts"
)
# The CPU target's own headers: memcpy is the C library's there.
FOR_THE_CPU = {"cpu.h", "compute_cpu.h", "fibers.h", "kernel_calls.h", "launch.h"}
HEADERS = sorted(
    path
    for folder in (*FOLDERS, "kprof/include")
    for path in (ROOT / folder).rglob("*.h")
    if path.name not in FOR_THE_CPU
)
PACKED_SHIFT = re.compile(r"v_pk_(?:lshl|lshr|ash)rev_[biu]16(?:_e64)? v\d+, ([^,]+),")


@pytest.mark.parametrize("source", [*KERNELS, *HEADERS], ids=lambda path: path.name)
def test_device_code_does_not_call_memcpy(source: Path) -> None:
    """HIP's memcpy for device code copies byte by byte: see copy_bits() in platform.h."""
    code = re.sub(r"//.*", "", source.read_text())
    assert not re.search(r"(?<!__builtin_)\bmem(cpy|set|move)\(", code)


def wrong_shifts(body: list[str]) -> list[str]:
    """Packed 16-bit shifts by anything but one constant below 16."""
    shifts = [(line, found[1]) for line in body if (found := PACKED_SHIFT.match(line))]
    return [line for line, by in shifts if not by.isdigit() or int(by) > 15]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("arch", HIP_ARCHS)
@pytest.mark.parametrize("source", KERNELS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_no_kernel_shifts_a_pair_of_halves_by_two_different_amounts(
    source: Path, arch: str
) -> None:
    """The all-reduce in bf16 was wrong with three ranks and more: 0x800ff shifted one half by 8, the other by 15."""
    require(Target.HIP)
    require_arch(arch)
    include_dirs = (ROOT / "instrumented_kernels" / "device",)
    # These are linked for the same architectures by other tests.
    is_linked = source.is_relative_to(ROOT / "instrumented_kernels")
    build = linked_device_code if is_linked else build_device_code
    code = build(source, BuildOptions(Target.HIP, arch, include_dirs=include_dirs, sanitizers=()))
    wrong = {name: wrong_shifts(body) for name, body in disassemble(code, Target.HIP).items()}
    assert {name: lines for name, lines in wrong.items() if lines} == {}


def test_the_wrong_shift_is_recognised() -> None:
    lines = [
        "v_pk_lshrrev_b16 v3, 8, v4 op_sel_hi:[0,1]",
        "v_pk_lshrrev_b16 v3, s82, v4",
        "v_pk_lshrrev_b16 v3, 0x800ff, v4",
        "v_pk_lshlrev_b16 v3, v1, v4",
    ]
    assert wrong_shifts(lines) == lines[1:]
