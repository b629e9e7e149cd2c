"""What kprof says of a compiled kernel is what its machine code says, and occupancy what the vendors' own sums say."""

from __future__ import annotations

import itertools
import re
import subprocess
from pathlib import Path

import pytest
from device_code import build_device_code, flags_of

from kept_sources import kept_source
from kprof.analysis.occupancy import PROCESSORS, blocks_that_fit
from kprof.devices.build import BuildOptions, include_dir
from kprof.devices.dependencies import kernels_of
from kprof.devices.resources import Resources
from kprof.devices.targets import Target, find_compiler
from machine_code import require, tool

pytestmark = pytest.mark.native

SOURCE = """
#include <kprof/kprof.h>
__global__ void plain(int* out, int num) { out[kprof::platform::thread_id()] = num; }
template <int kNum>
__global__ void shares(int* out) {
  __shared__ int held[256 * kNum];
  held[kprof::platform::thread_id()] = out[kprof::platform::thread_id()];
  __syncthreads();
  out[kprof::platform::thread_id()] = held[255 * kNum - kprof::platform::thread_id()];
}
// More than fits the registers of a thread that it may have.
__global__ void __launch_bounds__(1024) spills(const float* in, float* out) {
  float held[200];
  for (int i = 0; i < 200; ++i) held[i] = in[i * 1024 + kprof::platform::thread_id()];
  for (int k = 0; k < 100; ++k) {
    for (int i = 0; i < 200; ++i) held[i] = held[i] * held[(i * 7 + 1) % 200] + 1.0f;
  }
  for (int i = 0; i < 200; ++i) out[i * 1024 + kprof::platform::thread_id()] = held[i];
}
template __global__ void shares<1>(int*);
template __global__ void shares<4>(int*);
"""


def built(target: Target, arch: str) -> tuple[Path, dict[str, Resources]]:
    require(target)
    code = build_device_code(kept_source(SOURCE), BuildOptions(target, arch, sanitizers=()))
    return code, kernels_of(code)


def test_nvccs_kernels_take_what_cuobjdump_says() -> None:
    code, kernels = built(Target.CUDA, "sm_90")
    command = [tool("cuobjdump"), "--dump-resource-usage", str(code)]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.findall(r"Function (\w+):\s+REG:(\d+) STACK:\d+ SHARED:(\d+)", text)
    # Its shared memory is with what the system takes of each block that has some.
    reserved = PROCESSORS["sm_90"].shared_reserved
    assert {name: (int(registers), int(shared)) for name, registers, shared in found} == {
        name: (kernel.registers, kernel.shared_bytes + (reserved if kernel.shared_bytes else 0))
        for name, kernel in kernels.items()
    }
    assert {kernel.shared_bytes for kernel in kernels.values()} == {0, 1024, 4096}
    assert [name for name, kernel in kernels.items() if kernel.spill_bytes] == [
        name for name in kernels if "spills" in name
    ]


@pytest.mark.parametrize("arch", ["gfx90a", "gfx942"])
def test_clangs_kernels_take_what_their_code_object_says(arch: str) -> None:
    code, kernels = built(Target.HIP, arch)
    command = [tool("llvm-readelf-19", "llvm-readelf"), "--notes", str(code)]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    noted = {}
    for part in text.split("- .agpr_count:")[1:]:
        fields = dict(re.findall(r"\.(\w+): +(\w+)", part))
        numbers = (fields[name] for name in ("vgpr_count", "group_segment_fixed_size"))
        noted[fields["name"]] = (*map(int, numbers), 4 * int(fields["vgpr_spill_count"]))
    assert noted == {
        name: (kernel.registers, kernel.shared_bytes, kernel.spill_bytes)
        for name, kernel in kernels.items()
    }
    assert {kernel.shared_bytes for kernel in kernels.values()} == {0, 1024, 4096}


# Lines of threads, registers, bytes of shared memory, and how many blocks CUDA's own sum puts on an SM of an H200.
OCCUPANCY = """
#include <cstdio>
#include <climits>
#include "cuda_occupancy.h"
int main() {
  cudaOccDeviceProp device;
  device.computeMajor = 9, device.computeMinor = 0, device.maxThreadsPerBlock = 1024;
  device.maxThreadsPerMultiprocessor = 2048, device.regsPerBlock = device.regsPerMultiprocessor = 65536;
  device.warpSize = 32, device.sharedMemPerBlock = 49152, device.sharedMemPerMultiprocessor = 233472;
  device.numSms = 132, device.sharedMemPerBlockOptin = 232448, device.reservedSharedMemPerBlock = 1024;
  cudaOccDeviceState state;
  int threads, registers, shared;
  while (std::scanf("%d %d %d", &threads, &registers, &shared) == 3) {
    cudaOccFuncAttributes kernel;
    kernel.maxThreadsPerBlock = INT_MAX, kernel.numRegs = registers, kernel.sharedSizeBytes = 0;
    kernel.shmemLimitConfig = FUNC_SHMEM_LIMIT_OPTIN, kernel.maxDynamicSharedSizeBytes = 231424;
    cudaOccResult result;
    const cudaOccError error = cudaOccMaxActiveBlocksPerMultiprocessor(&result, &device, &kernel, &state, threads, shared);
    std::printf("%d\\n", error == CUDA_OCC_SUCCESS ? result.activeBlocksPerMultiprocessor : -1);
  }
}
"""


def test_blocks_that_fit_an_sm_are_those_of_cudas_occupancy(tmp_path: Path) -> None:
    (tmp_path / "occupancy.cpp").write_text(OCCUPANCY)
    program = tmp_path / "occupancy"
    # It knows where its headers are.
    command = [tool("nvcc"), "-cudart", "none", str(tmp_path / "occupancy.cpp"), "-o", str(program)]
    subprocess.run(command, check=True)
    shapes = list(
        itertools.product(
            (1, 32, 33, 64, 96, 128, 160, 256, 384, 512, 768, 1024),
            (1, 16, 24, 32, 33, 40, 64, 65, 96, 128, 168, 255),
            (0, 1, 128, 1024, 4096, 16384, 49152, 100000, 231424),
        )
    )
    asked = "".join(f"{threads} {registers} {shared}\n" for threads, registers, shared in shapes)
    said = subprocess.run([str(program)], input=asked, capture_output=True, text=True, check=True)
    ours = [min(blocks_that_fit(PROCESSORS["sm_90"], *shape).values()) for shape in shapes]
    # A block that needs more registers than a processor has fits none, ours and CUDA's.
    assert ours == [int(line) for line in said.stdout.split()]


@pytest.mark.parametrize("least", [1, 4, 8])
def test_waves_that_fit_a_cu_are_those_of_llvm(least: int, tmp_path: Path) -> None:
    """Asked for so many waves, clang spills: it says how many its registers leave."""
    require(Target.HIP)
    source = kept_source(SOURCE.replace("(1024) spills", f"(256, {least}) spills"))
    options = BuildOptions(Target.HIP, "gfx942", sanitizers=())
    code = build_device_code(source, options)
    (kernel,) = (each for name, each in kernels_of(code).items() if "spills" in name)
    by_registers = blocks_that_fit(PROCESSORS["gfx942"], 64, kernel.registers, 0)["registers"]
    compiler = find_compiler(Target.HIP)
    assert compiler
    flags = [flag for flag in flags_of(options, compiler) if not flag.startswith("-l")]
    again = [compiler.path, "-std=c++17", "-O3", f"-I{include_dir()}", *flags, str(source)]
    said = subprocess.run(
        [*again, "-o", str(tmp_path / "code")], capture_output=True, text=True, check=True
    )
    part = next(part for part in said.stderr.split("Function Name: ") if "spills" in part)
    occupancy = re.search(r"Occupancy \[waves/SIMD\]: (\d+)", part)
    assert occupancy
    assert min(by_registers // 4, 8) == int(occupancy[1])
