"""What the compilers make of our kernels: they link and load, spill nothing, fence where they must, and can be without
kprof."""

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
    count,
    disassemble,
    linked_device_code,
    require,
    require_arch,
    tool,
)

pytestmark = pytest.mark.native

KERNELS = Path(__file__).parents[2] / "instrumented_kernels"
DEVICE_DIR = KERNELS / "device"
# Variants, and kernels in the device code.
OF_RANKS = {
    # Seven variants for three element types.
    "all_reduce": (21, 21),
    # dispatch_send, 2 dispatch_recv, expert, 3 combine_send, 2 combine_recv; 6 of rank_flags;
    # pipelined, gather_expert_rows, count_call
    "all_to_all": (7, 18),
}
OF_ONE_GPU = {
    "moe_align_sort": (8, 11),
    "rms_norm_fp8": (18, 18),
    "swiglu_fp8": (8, 8),
    "skinny_gemm": (29, 26),
}
SOURCES = OF_RANKS | OF_ONE_GPU
# Recorded, which is the default, and compiled out.
BUILDS: list[dict[str, str]] = [{}, {"KPROF_ENABLED": "0"}]
# A store that all GPUs of the host see: a flag.
SYSTEM_STORE = re.compile(r"(flat|global)_store_dword(x2)? .*sc0 sc1")
PACKET_KERNELS = ("oneshotI", "twoshot_packetsI")
BULK_KERNELS = ("oneshot_serialI", "oneshot_lockI", "oneshot_treeI", "twoshotI", "ringI")


def options(source: str, target: Target, arch: str = "", **defines: str) -> BuildOptions:
    # What kernels for one GPU are compiled for on a Hopper GPU.
    if target is Target.CUDA and source in OF_ONE_GPU and not arch:
        arch = "sm_90a"
    return BuildOptions(target, arch, tuple(defines.items()), (DEVICE_DIR,), sanitizers=())


def device_code(source: str, target: Target, **defines: str) -> Path:
    require(target)
    # For NVIDIA those for one GPU are linked for another architecture.
    is_linked = (target is Target.HIP or source in OF_RANKS) and not defines
    build = linked_device_code if is_linked else build_device_code
    return build(KERNELS / source / "kernel.hip", options(source, target, **defines))


def said_of(code: Path, *command: str) -> str:
    """What a tool prints of compiled code."""
    return subprocess.run([*command, str(code)], capture_output=True, text=True, check=True).stdout


def instructions(source: str, target: Target, **defines: str) -> dict[str, list[str]]:
    """By kernel, without the functions that it calls."""
    functions = disassemble(device_code(source, target, **defines), target)
    # A kernel's own copy of a function that it calls has both names, with a dollar sign between
    # them.
    kernels = {name: body for name, body in functions.items() if source in name and "$" not in name}
    assert len(kernels) >= SOURCES[source][1]
    return kernels


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("source", "arch"),
    [
        *((source, arch) for source in OF_RANKS for arch in HIP_ARCHS),
        *((source, "") for source in OF_ONE_GPU),
    ],
)
def test_links_and_loads_for_amd(source: str, arch: str) -> None:
    require(Target.HIP)
    if arch:
        require_arch(arch)
    how = options(source, Target.HIP, arch)
    library = ctypes.CDLL(str(build_library(KERNELS / source / "kernel.hip", how)))
    assert library.kernel_num_variants() == SOURCES[source][0]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("source", SOURCES)
def test_links_for_nvidia(source: str) -> None:
    """For sm_90; tests below compile for sm_90a, too."""
    require(Target.CUDA)
    how = options(source, Target.CUDA, "sm_90" if source in OF_ONE_GPU else "")
    assert build_library(KERNELS / source / "kernel.hip", how).exists()


@pytest.mark.parametrize("source", SOURCES)
def test_spills_nothing_to_memory_on_amd(source: str) -> None:
    """Scalar registers may go to lanes of a vector register: that is neither memory nor a wait."""
    code = device_code(source, Target.HIP)
    notes = said_of(code, tool("llvm-readelf-19", "llvm-readelf"), "--notes")
    for key in ("vgpr_spill_count", "private_segment_fixed_size"):
        values = [int(value) for value in re.findall(rf"\.{key}:\s+(\d+)", notes)]
        assert len(values) == SOURCES[source][1]
        assert not any(values), key
    if source == "all_to_all":
        # 512 registers per SIMD lane, four SIMDs: 16 waves per CU, the two blocks of eight that a
        # plan takes by default.
        assert max(int(value) for value in re.findall(r"\.vgpr_count:\s+(\d+)", notes)) <= 128


@pytest.mark.parametrize("source", OF_ONE_GPU)
def test_finds_its_registers_at_compile_time_on_amd(source: str) -> None:
    """A loop over an array in registers that is not unrolled looks each of them up, one lane after the other."""
    for name, body in instructions(source, Target.HIP).items():
        assert not [line for line in body if re.match(r"s_set_gpr_idx|v_movrel", line)], name


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("source", "defines"),
    [
        *((source, BUILDS[0]) for source in OF_RANKS),
        *((source, defines) for source in OF_ONE_GPU for defines in BUILDS),
    ],
)
def test_spills_nothing_to_memory_on_nvidia(source: str, defines: dict[str, str]) -> None:
    code = device_code(source, Target.CUDA, **defines)
    usage = said_of(code, tool("cuobjdump"), "--dump-resource-usage")
    found = re.findall(r"Function \w+:\s+REG:(\d+) STACK:(\d+)", usage)
    assert len(found) == SOURCES[source][1]
    registers, stacks = (list(map(int, column)) for column in zip(*found, strict=True))
    # What is recorded calls a function of kprof once in 61 events. It keeps its return address and
    # a clock reading in memory, and may cost a kernel at its limit of registers one of its own:
    # rms_norm_fp8's variant with 64 does so in fp16, one store and one load a thread.
    assert max(stacks) <= (0 if defines or source in OF_RANKS else 16)
    # 65536 per SM: two blocks of eight warps, or one of sixteen.
    assert source in OF_ONE_GPU or max(registers) <= 128


def test_skinny_gemm_multiplies_in_the_matrix_units() -> None:
    """On AMD up to 8 tokens by the sparse instruction; sm_90 has fp8 only in wgmma, so elsewhere ptxas unpacks to fp16."""
    amd = instructions("skinny_gemm", Target.HIP)
    for name, body in amd.items():
        is_few = "ILj8E" in name
        wanted = "v_smfmac_f32_16x16x64_fp8_fp8" if is_few else "v_mfma_f32_16x16x32_fp8_fp8"
        found = {word for line in body for word in re.findall(r"v_s?mfmac?_\w+", line)}
        assert found == {wanted}, name
    for name, body in instructions("skinny_gemm", Target.CUDA).items():
        wanted = r"QGMMA\.64x\d+x32\.F32\.E4M3\.E4M3" if "groups" in name else r"HMMA\.\d+\.F32"
        assert [line for line in body if re.search(wanted, line)], name


@pytest.mark.parametrize("defines", BUILDS)
def test_skinny_gemm_multiplies_when_all_its_loads_are_on_their_way(
    defines: dict[str, str],
) -> None:
    """Without the warp's barrier ptxas puts loads between the products: most wait for memory one by one."""
    kernels = instructions("skinny_gemm", Target.CUDA, **defines)
    direct = {
        name: body for name, body in kernels.items() if re.search(r"splitILj\d+ELj[24]E", name)
    }
    assert len(direct) == 3
    for name, body in direct.items():
        found = re.findall(r"\b(LDG|HMMA)\.", "\n".join(body))
        begin = found.index("HMMA")
        assert "LDG" not in found[begin : begin + found.count("HMMA")], name


def test_moe_align_sort_votes_as_often_when_it_is_recorded() -> None:
    """Behind a call in an event ptxas no longer knows that the lanes of a warp are together."""
    votes = [
        {
            name: len(re.findall(r"\b(?:VOTE|WARPSYNC)\.", "\n".join(body)))
            for name, body in instructions("moe_align_sort", Target.CUDA, **defines).items()
            if "placeI" in name
        }
        for defines in BUILDS
    ]
    assert votes[0] == votes[1]
    assert len(votes[0]) == 4


def kernels_named(functions: dict[str, list[str]], *names: str) -> list[list[str]]:
    found = [
        body
        for name, body in functions.items()
        if any(re.search(rf"\d{kernel}", name) for kernel in names)
    ]
    assert len(found) == 3 * len(names)
    return found


def test_amd_publishes_with_a_system_fence_before_each_flag() -> None:
    """In the plain build: recorded ones store what a flag holds for whoever looks, too."""
    for body in kernels_named(
        instructions("all_reduce", Target.HIP, KPROF_ENABLED="0"), *BULK_KERNELS
    ):
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
    amd, nvidia = (instructions("all_reduce", target) for target in (Target.HIP, Target.CUDA))
    for body in kernels_named(amd, *PACKET_KERNELS):
        assert not [line for line in body if line.startswith("buffer_wbl2")]
        assert [line for line in body if re.match(r"(flat|global)_store_dwordx2 .*sc0 sc1", line)]
    for body in kernels_named(nvidia, *PACKET_KERNELS):
        assert not [line for line in body if "MEMBAR" in line]
        assert [line for line in body if re.search(r"\bSTG?\.E\.128\.STRONG\.SYS", line)]
        assert [line for line in body if re.search(r"\bLDG?\.E\.128\.STRONG\.SYS", line)]
    for body in kernels_named(nvidia, *BULK_KERNELS):
        assert [line for line in body if "MEMBAR" in line]


@pytest.mark.parametrize("kernel", ["dispatch_send", "combine_send", "dispatch_flag", "pipelined"])
def test_all_to_all_publishes_with_a_system_fence_before_the_flag(kernel: str) -> None:
    code = device_code("all_to_all", Target.HIP)
    bodies = [
        body
        for name, body in disassemble(code, Target.HIP).items()
        if re.search(rf"\d{kernel}(?!_)", name)
    ]
    assert bodies
    for body in bodies:
        flags = [i for i, line in enumerate(body) if SYSTEM_STORE.match(line)]
        assert flags
        # The flag that follows data is the last one: counts and empty tokens need no fence.
        before = body[: flags[-1]]
        writebacks = [i for i, line in enumerate(before) if line.startswith("buffer_wbl2 sc0 sc1")]
        assert writebacks, "the L2 is written back to the system"
        assert any("vmcnt(0)" in line for line in before[writebacks[-1] :]), (
            "and waited for, before the flag is stored"
        )


def test_rows_move_as_global_memory_on_amd() -> None:
    """A flat store also counts as one of LDS, and clang 19 waits for each before the next."""
    code = device_code("all_to_all", Target.HIP)
    stores = [line for body in disassemble(code, Target.HIP).values() for line in body]
    assert count(stores, r"^global_store_dwordx4") > 0
    assert count(stores, r"^flat_store_dwordx4") == 0
