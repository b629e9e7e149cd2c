"""What the compilers make of the kernels for one GPU: they link, spill nothing, and can be without kprof."""

from __future__ import annotations

import ctypes
import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from device_code import build_device_code

from kprof.devices.build import BuildOptions, build_library
from kprof.devices.targets import Target
from machine_code import disassemble, linked_device_code, require, tool

pytestmark = pytest.mark.native

KERNELS = Path(__file__).parents[2] / "instrumented_kernels"
DEVICE_DIR = KERNELS / "device"
# Variants, and kernels in the device code.
SOURCES = {
    "moe_align_sort": (8, 11),
    "rms_norm_fp8": (18, 18),
    "swiglu_fp8": (8, 8),
    "skinny_gemm": (29, 26),
}


# Recorded, which is the default, and compiled out.
BUILDS: list[dict[str, str]] = [{}, {"KPROF_ENABLED": "0"}]
# What kernels are compiled for on a Hopper GPU.
ARCHS = {Target.CUDA: "sm_90a", Target.HIP: ""}


def options(target: Target, **defines: str) -> BuildOptions:
    return BuildOptions(target, ARCHS[target], tuple(defines.items()), (DEVICE_DIR,), sanitizers=())


def device_code(source: str, target: Target, **defines: str) -> Path:
    require(target)
    # For NVIDIA another architecture is linked.
    build = linked_device_code if target is Target.HIP and not defines else build_device_code
    return build(KERNELS / source / "kernel.hip", options(target, **defines))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("source", SOURCES)
def test_links_and_loads_for_amd(source: str) -> None:
    require(Target.HIP)
    library = ctypes.CDLL(str(build_library(KERNELS / source / "kernel.hip", options(Target.HIP))))
    assert library.kernel_num_variants() == SOURCES[source][0]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("source", SOURCES)
def test_links_for_nvidia(source: str) -> None:
    """For sm_90; the tests below compile for sm_90a."""
    require(Target.CUDA)
    how = replace(options(Target.CUDA), arch="sm_90")
    assert build_library(KERNELS / source / "kernel.hip", how).exists()


@pytest.mark.parametrize("source", SOURCES)
def test_spills_nothing_to_memory_on_amd(source: str) -> None:
    code = device_code(source, Target.HIP)
    command = [tool("llvm-readelf-19", "llvm-readelf"), "--notes", str(code)]
    notes = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    for key in ("vgpr_spill_count", "private_segment_fixed_size"):
        values = [int(value) for value in re.findall(rf"\.{key}:\s+(\d+)", notes)]
        assert len(values) == SOURCES[source][1]
        assert not any(values), key


@pytest.mark.parametrize("source", SOURCES)
def test_finds_its_registers_at_compile_time_on_amd(source: str) -> None:
    """A loop over an array in registers that is not unrolled looks each of them up, one lane after the other."""
    for name, body in instructions(source, Target.HIP).items():
        assert not [line for line in body if re.match(r"s_set_gpr_idx|v_movrel", line)], name


@pytest.mark.sampled(3)
@pytest.mark.parametrize("defines", BUILDS)
@pytest.mark.parametrize("source", SOURCES)
def test_spills_nothing_to_memory_on_nvidia(source: str, defines: dict[str, str]) -> None:
    code = device_code(source, Target.CUDA, **defines)
    command = [tool("cuobjdump"), "--dump-resource-usage", str(code)]
    usage = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    stacks = re.findall(r"Function \w+:\s+REG:\d+ STACK:(\d+)", usage)
    assert len(stacks) == SOURCES[source][1]
    # What is recorded calls a function of kprof once in 61 events. It keeps its return address and
    # a clock reading in memory, and may cost a kernel at its limit of registers one of its own:
    # rms_norm_fp8's variant with 64 does so in fp16, one store and one load a thread.
    assert max(map(int, stacks)) <= (0 if defines else 16)


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


def instructions(source: str, target: Target, **defines: str) -> dict[str, list[str]]:
    """By kernel, without the functions that it calls."""
    functions = disassemble(device_code(source, target, **defines), target)
    kernels = {name: body for name, body in functions.items() if source in name and "$" not in name}
    assert len(kernels) == SOURCES[source][1]
    return kernels
