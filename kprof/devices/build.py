"""Compiles one kernel source for one target into a shared library with a C interface, and keeps it.

What was built serves again with the same flags, compiler and ABI version, as long as all files that
the compiler has read are as they were (kprof.devices.dependencies): nobody has to invalidate it.
Ranks that start together build once (a file lock).
"""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import os
import re
import subprocess
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from kprof.abi import ABI_VERSION
from kprof.devices import resources
from kprof.devices.cache import CACHE_VARIABLE, cache_dir
from kprof.devices.dependencies import KeptBuilds, kernels_of, needs_of
from kprof.devices.record import Flags
from kprof.devices.targets import (
    Compiler,
    Target,
    arch_of_device,
    archs_of_devices,
    find_compiler,
    record_of,
    require_target,
    target_of_device,
)
from kprof.errors import BuildError

SANITIZE_VARIABLE: Final = "KPROF_SANITIZE"
# `kprof verify` sets it (kprof.recording.launches.delays): kernels then take delays.
DELAYS_VARIABLE: Final = "KPROF_DELAYS"
_ERROR_LINES_SHOWN: Final = 12
_ERROR: Final = re.compile(r"\b(error|undefined (reference|symbol))\b", re.IGNORECASE)


def include_dir() -> Path:
    """The directory to pass to a compiler with -I so that `#include <kprof/kprof.h>` works."""
    return Path(__file__).parents[1] / "include"


def _sanitizers_of_environment() -> tuple[str, ...]:
    return tuple(filter(None, os.environ.get(SANITIZE_VARIABLE, "").split(",")))


@dataclass(frozen=True)
class BuildOptions:
    """How to compile a kernel source. `warp_width` and `sanitizers` matter on the CPU target only.

    `arch` names architectures, separated by commas; by default those of this machine's devices, or
    the target's default without devices.
    """

    target: Target = Target.CPU
    arch: str = ""
    defines: tuple[tuple[str, str], ...] = ()
    include_dirs: tuple[Path, ...] = ()
    warp_width: int = 64
    sanitizers: tuple[str, ...] = field(default_factory=_sanitizers_of_environment)

    @staticmethod
    def for_device(device: str) -> BuildOptions:
        """How to compile for "cpu" or a torch device such as "cuda:3": for its architecture."""
        return BuildOptions(target_of_device(device), arch_of_device(device))

    @property
    def archs(self) -> tuple[str, ...]:
        """The architectures that are compiled for."""
        return tuple(self.arch.split(",")) if self.arch else archs_of_devices(self.target)


def build_library(source: str | Path, options: BuildOptions) -> Path:
    """Compile `source` into a shared library and return its path.

    Raises BuildError with the compiler's first errors.
    """
    return build(Path(source), options, record_of(options.target).library_flags, "so")


def load_library(source: str | Path, options: BuildOptions) -> ctypes.CDLL:
    """Build and load. Calls release the interpreter lock, so ranks can be threads.

    Raises BuildError, and TargetError where the library cannot work in this process.
    """
    library = build_library(source, options)
    # Of launches that are recorded. With several architectures nobody knows which one runs.
    if ("KPROF_ENABLED", "0") not in options.defines and len(options.archs) == 1:
        for symbol, kernel in kernels_of(library).items():
            resources.note(symbol, kernel)
    if before_loading := record_of(options.target).before_loading:
        before_loading(library)
    return ctypes.CDLL(str(library))


def error_text(library: ctypes.CDLL, error: int) -> str:
    """What the runtime of a library of ours calls an error that a function of it has returned."""
    library.kprof_error_text.restype = ctypes.c_char_p
    return str(library.kprof_error_text(error).decode())


def _search_dirs(source: Path, options: BuildOptions) -> list[Path]:
    return [include_dir(), source.parent, *options.include_dirs]


def _common_flags(source: Path, options: BuildOptions) -> list[str]:
    # Sanitized code is for tests: with -O3 it takes several times as long to compile.
    flags = ["-std=c++17", *(["-Og", "-g1"] if options.sanitizers else ["-O3"])]
    flags += [f"-I{path}" for path in _search_dirs(source, options)]
    takes_delays = ["-DKPROF_DELAYS=1"] if os.environ.get(DELAYS_VARIABLE) else []
    return flags + [f"-D{name}={value}" for name, value in options.defines] + takes_delays


def build(source: Path, options: BuildOptions, flags_of: Flags, suffix: str) -> Path:
    """Compile with these flags and the usual ones; returns what was built, or is kept.

    Raises BuildError.
    """
    compiler = find_compiler(options.target) or require_target(options.target)
    source = source.absolute()
    if not source.is_file():
        raise BuildError(f"cannot read {source}; check the path")
    flags = _common_flags(source, options) + flags_of(options, compiler)
    folder = cache_dir()
    how = f"{ABI_VERSION} {compiler.path} {compiler.version} {flags} {source}"
    key = hashlib.sha256(how.encode(errors="surrogateescape")).hexdigest()[:20]
    name = f"{source.parent.name}-{source.stem}-{options.target.value}-{key}"
    kept = KeptBuilds(folder, name, suffix)
    if (found := kept.current()) is not None:
        return found
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            return kept.current() or _compile(source, options, compiler, flags, kept)
    except OSError as error:
        raise BuildError(
            f"cannot write the build cache {folder}: {error.strerror}; set {CACHE_VARIABLE} "
            "to a directory that can be written"
        ) from error


def _errors_in(output: str) -> list[str]:
    """What a compiler says from its first error on: warnings may come before."""
    lines = output.strip().splitlines()
    first = next((i for i, line in enumerate(lines) if _ERROR.search(line)), 0)
    return lines[first : first + _ERROR_LINES_SHOWN]


def _compile(
    source: Path, options: BuildOptions, compiler: Compiler, flags: list[str], kept: KeptBuilds
) -> Path:
    with tempfile.TemporaryDirectory(dir=kept.folder) as scratch:
        built, rules = Path(scratch) / f"{kept.name}.{kept.suffix}", Path(scratch) / "rules"
        # Libraries (-l) must come after the source that needs them.
        late = [flag for flag in flags if flag.startswith("-l")]
        early = [flag for flag in flags if not flag.startswith("-l")]
        listing = ["-MMD", "-MF", str(rules)]
        command = [compiler.path, *early, *listing, str(source), "-o", str(built), *late]
        environment = os.environ | dict(record_of(options.target).compiler_environment)
        # The runtime of a sanitizer is for this process: compilers take twice as long with it.
        environment.pop("LD_PRELOAD", None)
        result = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=False
        )
        if result.returncode != 0:
            lines = _errors_in(result.stderr or result.stdout)
            raise BuildError(
                f"{source.name} does not compile with {compiler.path}:\n  " + "\n  ".join(lines)
            )
        text = rules.read_text(errors="surrogateescape")
        kernels = resources.said_of_kernels(result.stderr)
        return kept.keep(built, needs_of(text, _search_dirs(source, options), kernels))
