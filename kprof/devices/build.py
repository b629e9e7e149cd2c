"""Compiles one kernel source for one target into a shared library with a C interface, and keeps it.

The cache key covers the text of the source and of every header that it may include, all flags, the compiler's version
and the ABI version: there is nothing to invalidate by hand. Ranks that start together build once (a file lock).
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import hashlib
import os
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from kprof.abi import ABI_VERSION
from kprof.devices.targets import DEFAULT_ARCH, Compiler, Target, find_compiler, require_target
from kprof.errors import BuildError

CACHE_VARIABLE: Final = "KPROF_CACHE_DIR"
SANITIZE_VARIABLE: Final = "KPROF_SANITIZE"
_ERROR_LINES_SHOWN: Final = 12


def include_dir() -> Path:
    """The directory to pass to a compiler with -I so that `#include <kprof/kprof.h>` works."""
    return Path(__file__).parents[1] / "include"


def _sanitizers_of_environment() -> tuple[str, ...]:
    return tuple(filter(None, os.environ.get(SANITIZE_VARIABLE, "").split(",")))


@dataclass(frozen=True)
class BuildOptions:
    """How to compile a kernel source. `warp_width` and `sanitizers` matter on the CPU target only."""

    target: Target = Target.CPU
    arch: str = ""
    defines: tuple[tuple[str, str], ...] = ()
    include_dirs: tuple[Path, ...] = ()
    warp_width: int = 64
    sanitizers: tuple[str, ...] = field(default_factory=_sanitizers_of_environment)

    @property
    def arch_or_default(self) -> str:
        """The architecture that is compiled for."""
        return self.arch or DEFAULT_ARCH[self.target]


def build_library(source: Path, options: BuildOptions) -> Path:
    """Compile `source` into a shared library, return its path; raises BuildError with the compiler's first errors."""
    compiler = find_compiler(options.target) or require_target(options.target)
    flags = _common_flags(source, options) + _library_flags(options, compiler)
    return _build(source, options, compiler, flags, "so")


def build_device_code(source: Path, options: BuildOptions) -> Path:
    """Compile only the device side, for disassembly: a cubin for CUDA, a code object for HIP. No device is needed."""
    compiler = find_compiler(options.target) or require_target(options.target)
    if options.target is Target.CUDA:
        flags = [
            *_common_flags(source, options),
            "-x",
            "cu",
            f"-arch={options.arch_or_default}",
            "-cubin",
        ]
    elif options.target is Target.HIP:
        flags = [*_common_flags(source, options), *_hip_flags(options, compiler)]
        flags += ["--offload-device-only", "--no-gpu-bundle-output"]
    else:
        raise BuildError("the CPU target has no device code; build a library instead")
    return _build(source, options, compiler, flags, "device")


def load_library(source: Path, options: BuildOptions) -> ctypes.CDLL:
    """Build and load; calls release the interpreter lock, so ranks can be threads."""
    return ctypes.CDLL(str(build_library(source, options)))


def cache_dir() -> Path:
    """Where libraries are kept: KPROF_CACHE_DIR, else the user's cache directory."""
    default = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "kprof"
    return Path(os.environ.get(CACHE_VARIABLE, default))


def _common_flags(source: Path, options: BuildOptions) -> list[str]:
    dirs = [include_dir(), source.parent, *options.include_dirs]
    flags = ["-std=c++17", "-O3", *(["-g"] if options.sanitizers else [])]
    flags += [f"-I{path}" for path in dirs]
    return flags + [f"-D{name}={value}" for name, value in options.defines]


def _library_flags(options: BuildOptions, compiler: Compiler) -> list[str]:
    if options.target is Target.CUDA:
        return [
            "-x",
            "cu",
            f"-arch={options.arch_or_default}",
            "-shared",
            "-Xcompiler",
            "-fPIC,-Wall,-Wextra",
        ]
    if options.target is Target.HIP:
        return [*_hip_flags(options, compiler), "-fPIC", "-shared", "-lamdhip64"]
    flags = ["-x", "c++", "-fPIC", "-shared", "-Wall", "-Wextra", "-U_FORTIFY_SOURCE"]
    if "clang" not in compiler.version:
        # Statics of inline functions must not be shared between libraries of different warp widths in one process.
        flags.append("-fno-gnu-unique")
    flags.append(f"-DKPROF_CPU_WARP_WIDTH={options.warp_width}")
    if options.sanitizers:
        flags += [f"-fsanitize={','.join(options.sanitizers)}", "-fno-omit-frame-pointer"]
        flags += ["-fno-sanitize-recover=undefined"] if "undefined" in options.sanitizers else []
    return flags


def _hip_flags(options: BuildOptions, compiler: Compiler) -> list[str]:
    flags = ["-x", "hip", f"--offload-arch={options.arch_or_default}", "-Wall", "-Wextra"]
    if compiler.device_library_dir is None:
        return flags
    libraries = _device_libraries(compiler.device_library_dir)
    return [*flags, "--rocm-path=/usr", "--hip-version=6.2", f"--rocm-device-lib-path={libraries}"]


def _device_libraries(system_dir: Path) -> Path:
    """Debian's bitcode libraries plus aliases for the architectures they do not name yet.

    gfx942 and gfx950 have the instruction set of gfx940 as far as these libraries are concerned: each file only sets
    a constant with the version number.
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


def _build(
    source: Path, options: BuildOptions, compiler: Compiler, flags: list[str], suffix: str
) -> Path:
    key = _cache_key(source, options, compiler, flags)
    output = (
        cache_dir()
        / f"{source.parent.name}-{source.stem}-{options.target.value}-{key[:20]}.{suffix}"
    )
    if output.exists():
        return output
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        with _locked(output.with_suffix(".lock")):
            if not output.exists():
                _compile(source, compiler, flags, output)
    except OSError as error:
        raise BuildError(
            f"cannot write the build cache {output.parent}: {error.strerror}; set {CACHE_VARIABLE} to a "
            "directory that can be written"
        ) from error
    return output


def _compile(source: Path, compiler: Compiler, flags: list[str], output: Path) -> None:
    with tempfile.TemporaryDirectory(dir=output.parent) as scratch:
        built = Path(scratch) / output.name
        # Libraries (-l) must follow the source that needs them.
        late = [flag for flag in flags if flag.startswith("-l")]
        early = [flag for flag in flags if not flag.startswith("-l")]
        command = [compiler.path, *early, str(source), "-o", str(built), *late]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode != 0:
            lines = (result.stderr or result.stdout).strip().splitlines()[:_ERROR_LINES_SHOWN]
            raise BuildError(
                f"{source.name} does not compile with {compiler.path}:\n  " + "\n  ".join(lines)
            )
        built.replace(output)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _cache_key(source: Path, options: BuildOptions, compiler: Compiler, flags: list[str]) -> str:
    digest = hashlib.sha256(f"{ABI_VERSION} {compiler.path} {compiler.version} {flags}".encode())
    headers: set[Path] = set()
    for directory in (include_dir(), source.parent, *options.include_dirs):
        headers |= set(directory.rglob("*.h"))
    for file in [source, *sorted(headers)]:
        try:
            digest.update(file.read_bytes())
        except OSError as error:
            raise BuildError(f"cannot read {file}: {error.strerror}; check the path") from error
    return digest.hexdigest()
