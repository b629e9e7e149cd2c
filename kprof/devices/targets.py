"""Which targets there are, which this machine can build for and run on, and with which compiler."""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
import subprocess
import sys
from dataclasses import dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Final

from kprof.errors import TargetError


class Target(str, Enum):
    """Where a kernel runs."""

    CPU = "cpu"
    CUDA = "cuda"
    HIP = "hip"


DEFAULT_ARCH: Final = {Target.CPU: "", Target.CUDA: "sm_90", Target.HIP: "gfx942"}
_SYSTEM_CLANG: Final = ("clang++-19", "clang++-20", "clang++-18", "clang++")
_DEVICE_LIBRARY_DIRS: Final = (
    Path("/usr/lib/x86_64-linux-gnu/amdgcn/bitcode"),
    Path("/usr/lib/aarch64-linux-gnu/amdgcn/bitcode"),
)


def target_of_device(device: str) -> Target:
    """The target behind "cpu" or a torch device such as "cuda:3" (which is what ROCm's torch calls its devices too)."""
    if device == "cpu":
        return Target.CPU
    import torch

    return Target.HIP if torch.version.hip else Target.CUDA


@dataclass(frozen=True)
class Compiler:
    """A compiler for one target. `device_library_dir` is set where clang must be told about AMD's bitcode libraries."""

    path: str
    version: str
    device_library_dir: Path | None = None


@dataclass(frozen=True)
class TargetStatus:
    """What `kprof doctor` says about one target."""

    target: Target
    can_build: bool
    can_run: bool
    compiler: str
    detail: str
    remedy: str

    @property
    def is_usable(self) -> bool:
        """Whether kernels can be built and run here."""
        return self.can_build and self.can_run


def probe() -> list[TargetStatus]:
    """The state of every target on this machine. Asks drivers and compilers for their versions, nothing else."""
    return [_status(target) for target in Target]


def best_target() -> Target:
    """The target that `kprof demo` uses: a GPU when one can be built for and run on, else the CPU."""
    for target in (Target.CUDA, Target.HIP):
        if count_devices(target) > 0 and find_compiler(target) is not None:
            return target
    return Target.CPU


def require_target(target: Target) -> Compiler:
    """The compiler for a target that must run here; raises TargetError."""
    status = _status(target)
    compiler = find_compiler(target)
    if compiler is None or not status.can_run:
        raise TargetError(
            f"the target {target.value} cannot be used here: {status.detail}; {status.remedy}"
        )
    return compiler


@cache
def find_compiler(target: Target) -> Compiler | None:
    """The compiler for a target, or None. CXX, CUDA_HOME and ROCM_PATH are honoured."""
    finders = {Target.CPU: _find_cpu, Target.CUDA: _find_cuda, Target.HIP: _find_hip}
    return finders[target]()


@dataclass(frozen=True)
class DeviceDescription:
    """What a recording says of the device it was made on; `num_processors` are a GPU's SMs or CUs, 0 for the CPU."""

    target: Target
    name: str
    arch: str
    num_processors: int = 0


def describe_device(device: str) -> DeviceDescription:
    """The device behind "cpu" or a torch device such as "cuda:3"."""
    target = target_of_device(device)
    if target is Target.CPU:
        machine = platform.machine()
        return DeviceDescription(target, f"CPU {machine}", machine)
    import torch

    properties = torch.cuda.get_device_properties(device)
    arch = f"sm_{properties.major}{properties.minor}"
    if target is Target.HIP:
        arch = properties.gcnArchName
    return DeviceDescription(target, properties.name, arch, properties.multi_processor_count)


def count_cores() -> int:
    """What a container or a launcher leaves of the host's cores, where the system can say so."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 0


def count_devices(target: Target) -> int:
    """How many devices of a target this machine has (1 for the CPU). Needs no torch."""
    if target is Target.CPU:
        return 1
    if target is Target.HIP:
        return _count_kfd()
    return _count_cuda()


def _count_cuda() -> int:
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    count = ctypes.c_int(0)
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return 0
    return count.value


def _count_kfd() -> int:
    """GPU nodes of AMD's kernel driver: CPU nodes have simd_count 0."""
    count = 0
    for properties in Path("/sys/class/kfd/kfd/topology/nodes").glob("*/properties"):
        lines = properties.read_text().splitlines()
        count += any(line.startswith("simd_count ") and line != "simd_count 0" for line in lines)
    return count


def _find_cpu() -> Compiler | None:
    return _first_working([os.environ.get("CXX", ""), "g++", "clang++", "c++"])


def _find_cuda() -> Compiler | None:
    homes = [os.environ.get("CUDA_HOME", ""), os.environ.get("CUDA_PATH", ""), "/usr/local/cuda"]
    wheels = [
        str(path) for path in Path(sys.prefix).glob("lib/python*/site-packages/nvidia/cu*/bin/nvcc")
    ]
    return _first_working(["nvcc", *(f"{home}/bin/nvcc" for home in homes if home), *wheels])


def _find_hip() -> Compiler | None:
    rocm = os.environ.get("ROCM_PATH", "/opt/rocm")
    if Path(f"{rocm}/bin/hipcc").exists():
        return _first_working([f"{rocm}/bin/hipcc"])
    libraries = next((path for path in _DEVICE_LIBRARY_DIRS if path.is_dir()), None)
    if libraries is None or not Path("/usr/include/hip/hip_runtime.h").exists():
        return None
    clang = _first_working(list(_SYSTEM_CLANG))
    return Compiler(clang.path, clang.version, libraries) if clang else None


def _first_working(candidates: list[str]) -> Compiler | None:
    for candidate in filter(None, candidates):
        path = shutil.which(candidate)
        if path is None:
            continue
        answer = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)
        if answer.returncode == 0:
            return Compiler(path, _version_line(answer.stdout))
    return None


def _version_line(text: str) -> str:
    """nvcc names its release on the fourth line, the others on the first."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return next(
        (line for line in lines if "release" in line), lines[0] if lines else "unknown version"
    )


_BUILD_REMEDY: Final = {
    Target.CPU: "install a C++17 compiler (Debian: apt-get install g++) or set CXX",
    Target.CUDA: "install the CUDA toolkit or `pip install nvidia-cuda-nvcc`, or set CUDA_HOME",
    Target.HIP: (
        "install ROCm, or on Debian for building only: "
        "apt-get install clang-19 lld-19 llvm-19 libamdhip64-dev rocm-device-libs"
    ),
}


def _status(target: Target) -> TargetStatus:
    compiler = find_compiler(target)
    num_devices = count_devices(target)
    version = f"{compiler.path} ({compiler.version})" if compiler else ""
    if compiler is None:
        return TargetStatus(
            target, False, num_devices > 0, "", "no compiler found", _BUILD_REMEDY[target]
        )
    if num_devices == 0:
        detail = "builds, but this machine has no such device"
        return TargetStatus(
            target, True, False, version, detail, "run on a machine with one, or use --target cpu"
        )
    noun = "device" if num_devices == 1 else "devices"
    return TargetStatus(target, True, True, version, f"{num_devices} {noun}", "")
