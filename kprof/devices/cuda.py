"""NVIDIA: nvcc, the driver's devices."""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path
from typing import Final

from kprof.devices.record import Build, Compiler, Devices, Target, TargetRecord, first_working
from kprof.devices.resources import PTXAS_FLAGS

_MAJOR, _MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR


def _find_compiler() -> Compiler | None:
    homes = [os.environ.get("CUDA_HOME", ""), os.environ.get("CUDA_PATH", ""), "/usr/local/cuda"]
    wheels = Path(sys.prefix).glob("lib/python*/site-packages/nvidia/cu*/bin/nvcc")
    return first_working(["nvcc", *(f"{home}/bin/nvcc" for home in homes if home), *wheels])


def _find_devices() -> Devices:
    """Asks the driver; needs no torch."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return Devices(())
    count = ctypes.c_int(0)
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return Devices(())
    return Devices(tuple(_arch_of_number(driver, device) for device in range(count.value)))


def _arch_of_number(driver: ctypes.CDLL, device: int) -> str:
    numbers = []
    for attribute in (_MAJOR, _MINOR):
        number = ctypes.c_int(0)
        driver.cuDeviceGetAttribute(ctypes.byref(number), attribute, device)
        numbers.append(number.value)
    return f"sm_{numbers[0]}{numbers[1]}"


def _arch_flags(options: Build) -> list[str]:
    if len(options.archs) == 1:
        return [f"-arch={options.archs[0]}"]
    numbers = [arch.removeprefix("sm_") for arch in options.archs]
    return [f"-gencode=arch=compute_{number},code=sm_{number}" for number in numbers]


def link_flags(compiler: Compiler) -> list[str]:
    """Where the runtime is: nvcc of a Python package looks in `lib64`, which it does not have."""
    libraries = Path(compiler.path).resolve().parents[1] / "lib"
    return [f"-L{libraries}"] if (libraries / "libcudart_static.a").exists() else []


def _library_flags(options: Build, compiler: Compiler) -> list[str]:
    flags = ["-x", "cu", *_arch_flags(options), "-shared", "-Xcompiler", "-fPIC,-Wall,-Wextra"]
    return [*flags, *PTXAS_FLAGS, *link_flags(compiler)]


RECORD: Final = TargetRecord(
    target=Target.CUDA,
    default_arch="sm_90",
    clock="%globaltimer",
    build_remedy="install the CUDA toolkit or `pip install nvidia-cuda-nvcc`, or set CUDA_HOME",
    find_compiler=_find_compiler,
    find_devices=_find_devices,
    arch_of=lambda properties: f"sm_{properties.major}{properties.minor}",
    library_flags=_library_flags,
)
