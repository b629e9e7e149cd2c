"""The device side of a kernel alone, for disassembly: a cubin for CUDA, a code object for HIP."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from kprof.devices.build import BuildOptions, build
from kprof.devices.record import Compiler
from kprof.devices.targets import Target, record_of

OF_LIBRARIES = {"-shared", "-fPIC", "-lamdhip64", "-Xcompiler", "-fPIC,-Wall,-Wextra"}
OF_DEVICE_CODE = {
    Target.CUDA: ["-cubin"],
    Target.HIP: ["--offload-device-only", "--no-gpu-bundle-output"],
}


def build_device_code(source: Path, options: BuildOptions) -> Path:
    """Compile the device side; needs no device. For one architecture: the first, where this machine's devices have
    several."""
    return build(source, replace(options, arch=options.archs[0]), flags_of, "device")


def flags_of(options: BuildOptions, compiler: Compiler) -> list[str]:
    """Those of a library, without the host's."""
    flags = record_of(options.target).library_flags(options, compiler)
    kept = [flag for flag in flags if flag not in OF_LIBRARIES]
    return kept + OF_DEVICE_CODE[options.target]
