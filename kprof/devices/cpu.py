"""The CPU target: threads of a GPU are fibers (include/kprof/simt/)."""

from __future__ import annotations

import os
from typing import Any, Final

from kprof.devices.record import Build, Compiler, Devices, Target, TargetRecord, first_working


def _find_compiler() -> Compiler | None:
    return first_working([os.environ.get("CXX", ""), "g++", "clang++", "c++"])


def _library_flags(options: Build, compiler: Compiler) -> list[str]:
    # Kernels run here to be tried and tested, not for their speed: -O3 takes three times as long to
    # compile as -Og.
    flags = ["-x", "c++", "-Og", "-fPIC", "-shared", "-Wall", "-Wextra", "-U_FORTIFY_SOURCE"]
    if "clang" not in compiler.version:
        # Libraries of different warp widths in one process must not share statics of inline
        # functions.
        flags.append("-fno-gnu-unique")
    flags.append(f"-DKPROF_CPU_WARP_WIDTH={options.warp_width}")
    if options.sanitizers:
        flags += [f"-fsanitize={','.join(options.sanitizers)}", "-fno-omit-frame-pointer"]
        flags += ["-fno-sanitize-recover=undefined"] if "undefined" in options.sanitizers else []
    return flags


def _arch_of(properties: Any) -> str:
    raise AssertionError(f"torch has no properties of the CPU: {properties}")


RECORD: Final = TargetRecord(
    target=Target.CPU,
    default_arch="",
    clock="CLOCK_MONOTONIC",
    build_remedy="install a C++17 compiler (Debian: apt-get install g++) or set CXX",
    find_compiler=_find_compiler,
    find_devices=lambda: Devices(("",)),
    arch_of=_arch_of,
    library_flags=_library_flags,
)
