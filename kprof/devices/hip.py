"""AMD: ROCm's hipcc or Debian's clang, the kernel driver's devices, the HIP runtime of torch."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from kprof.devices.cache import cache_dir
from kprof.devices.record import Build, Compiler, Devices, Target, TargetRecord, first_working
from kprof.devices.resources import CLANG_FLAGS
from kprof.errors import TargetError

_OPT: Final = Path("/opt")
_SYSTEM_HIPCC: Final = Path("/usr/bin/hipcc")
_SYSTEM_CLANG: Final = ("clang++-19", "clang++-20", "clang++-18", "clang++")
_SYSTEM_HEADER: Final = Path("/usr/include/hip/hip_runtime.h")
_DEVICE_LIBRARY_DIRS: Final = (
    Path("/usr/lib/x86_64-linux-gnu/amdgcn/bitcode"),
    Path("/usr/lib/aarch64-linux-gnu/amdgcn/bitcode"),
)
_FAMILY: Final = "gfx9"
_NOT_GFX9: Final = "kernels with kprof are for gfx9 (MI200, MI300, MI350), with waves of 64 lanes"
_KFD_NODES: Final = Path("/sys/class/kfd/kfd/topology/nodes")


def _find_compiler() -> Compiler | None:
    """ROCm's hipcc, else Debian's clang, which has to be told where AMD's libraries are."""
    if hipcc := first_working(_places_of_hipcc()):
        return hipcc
    libraries = next((path for path in _DEVICE_LIBRARY_DIRS if path.is_dir()), None)
    if libraries is None or not _SYSTEM_HEADER.exists():
        return first_working([_SYSTEM_HIPCC])
    clang = first_working(_SYSTEM_CLANG)
    return Compiler(clang.path, clang.version, libraries) if clang else None


def _places_of_hipcc() -> Iterator[Path]:
    """Where ROCm may be, in order of preference; of several in /opt the newest first."""
    for variable in ("ROCM_PATH", "HIP_PATH"):
        if root := os.environ.get(variable):
            yield Path(root) / "bin" / "hipcc"
    in_path = shutil.which("hipcc")
    # Debian's hipcc is too old for gfx942, but its libraries work with a newer clang.
    if in_path and Path(in_path).resolve() != _SYSTEM_HIPCC.resolve():
        yield Path(in_path)
    yield _OPT / "rocm" / "bin" / "hipcc"
    for rocm in sorted(_OPT.glob("rocm-*"), key=_version_of, reverse=True):
        yield rocm / "bin" / "hipcc"


def _version_of(root: Path) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", root.name)]


def _find_devices() -> Devices:
    """The GPUs that AMD's kernel driver shows to this process; needs no torch."""
    archs, unusable = [], []
    for node in sorted(_KFD_NODES.glob("*"), key=lambda path: int(path.name)):
        try:
            properties = _properties_of(node)
        except OSError as error:
            # The driver's answer for GPUs outside of the container's device cgroup.
            unusable.append(f"the GPU of KFD node {node.name} is not ours: {error.strerror}")
            continue
        if properties.get("simd_count", 0) == 0:  # a node of CPUs
            continue
        arch = _arch_of_version(properties.get("gfx_target_version", 0))
        if arch.startswith(_FAMILY):
            archs.append(arch)
        else:
            unusable.append(f"the GPU of KFD node {node.name} is a {arch}: {_NOT_GFX9}")
    return Devices(tuple(archs), tuple(unusable))


def _properties_of(node: Path) -> dict[str, int]:
    fields = [line.split() for line in (node / "properties").read_text().splitlines()]
    return {field[0]: int(field[1]) for field in fields if len(field) == 2 and field[1].isdigit()}


def _arch_of_version(version: int) -> str:
    """90010 is gfx90a, 90402 is gfx942: decimal in the driver, hexadecimal digits in the name."""
    major, minor, step = version // 10_000, version // 100 % 100, version % 100
    return f"gfx{major}{minor:x}{step:x}" if version else ""


def _library_flags(options: Build, compiler: Compiler) -> list[str]:
    archs = [f"--offload-arch={arch}" for arch in options.archs]
    flags = ["-x", "hip", *archs, "-Wall", "-Wextra"]
    if compiler.device_library_dir is not None:
        libraries = _device_libraries(compiler.device_library_dir)
        flags += ["--rocm-path=/usr", "--hip-version=6.2", f"--rocm-device-lib-path={libraries}"]
    return [*flags, *CLANG_FLAGS, "-fPIC", "-shared", "-lamdhip64"]


def _device_libraries(system_dir: Path) -> Path:
    """Debian's bitcode libraries plus aliases for the architectures that they do not name yet.

    For these libraries, gfx942 and gfx950 have the instruction set of gfx940: each file only sets a
    constant with the version number.
    """
    aliased = cache_dir() / "amdgcn-bitcode"
    aliased.mkdir(parents=True, exist_ok=True)
    links = {file.name: file for file in system_dir.glob("*.bc")}
    for arch in ("942", "950"):
        links.setdefault(f"oclc_isa_version_{arch}.bc", system_dir / "oclc_isa_version_940.bc")
    for name, file in links.items():
        with contextlib.suppress(FileExistsError):
            (aliased / name).symlink_to(file)
    return aliased


def _share_runtime(library: Path) -> None:
    """Make a library use the HIP runtime of this process, usually torch's.

    A second runtime would not see its memory. Raises TargetError where the library was built for
    another major version.
    """
    loaded = _loaded_runtime()
    if loaded is None:
        return
    wanted, found = _wanted_major(library), _major_of(loaded)
    if wanted and found and wanted != found:
        raise TargetError(
            f"kernels are built with HIP {wanted} here, and this process has loaded HIP {found} "
            f"({loaded}); set ROCM_PATH to a ROCm {found}, or install a torch for ROCm {wanted}"
        )
    ctypes.CDLL(str(loaded), mode=ctypes.RTLD_GLOBAL)


def _loaded_runtime() -> Path | None:
    maps = Path("/proc/self/maps")
    text = maps.read_text() if maps.exists() else ""
    found = re.search(r"(/\S*/libamdhip64[^/\s]*\.so[.\d]*)$", text, flags=re.MULTILINE)
    return Path(found[1]) if found else None


def _wanted_major(library: Path) -> int:
    """From the name of the runtime that the library asks for; 0 where it has no number."""
    found = re.search(rb"libamdhip64\.so\.(\d+)", library.read_bytes())
    return int(found[1]) if found else 0


def _major_of(runtime: Path) -> int:
    """From the file's name. Torch's copy has no number in its name, but torch knows it."""
    if found := re.search(r"\.so\.(\d+)", runtime.name):
        return int(found[1])
    version = getattr(getattr(sys.modules.get("torch"), "version", None), "hip", None)
    return int(version.split(".")[0]) if version else 0


RECORD: Final = TargetRecord(
    target=Target.HIP,
    default_arch="gfx942",
    clock="s_memrealtime",
    build_remedy=(
        "install ROCm, or on Debian for building only: "
        "apt-get install clang-19 lld-19 llvm-19 libamdhip64-dev rocm-device-libs"
    ),
    find_compiler=_find_compiler,
    find_devices=_find_devices,
    arch_of=lambda properties: str(properties.gcnArchName),
    library_flags=_library_flags,
    # hipcc builds for NVIDIA where it finds nvcc.
    compiler_environment=(("HIP_PLATFORM", "amd"),),
    before_loading=_share_runtime,
)
