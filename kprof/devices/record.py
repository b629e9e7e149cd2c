"""What a target is: a record of everything that differs between targets, except its header.

cpu.py, cuda.py and hip.py each make one. docs/extending.md says how to add a target.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Protocol


class Target(str, Enum):
    """Where a kernel runs."""

    CPU = "cpu"
    CUDA = "cuda"
    HIP = "hip"


@dataclass(frozen=True)
class Compiler:
    """A compiler for one target.

    Clang needs `device_library_dir` to find AMD's bitcode libraries.
    """

    path: str
    version: str
    device_library_dir: Path | None = None


@dataclass(frozen=True)
class Devices:
    """The devices of one target on this machine: an architecture each, "" where it has no name.

    `unusable` has a sentence for each device that this process must not use.
    """

    archs: tuple[str, ...]
    unusable: tuple[str, ...] = ()


class Build(Protocol):
    """What flags depend on; kprof.devices.build.BuildOptions says what each means."""

    @property
    def target(self) -> Target: ...  # noqa: D102
    @property
    def archs(self) -> tuple[str, ...]: ...  # noqa: D102
    @property
    def warp_width(self) -> int: ...  # noqa: D102
    @property
    def sanitizers(self) -> tuple[str, ...]: ...  # noqa: D102


# Flags for a compiler, from how and with which compiler to build.
Flags = Callable[[Build, Compiler], list[str]]


@dataclass(frozen=True)
class TargetRecord:
    """Everything about one target."""

    target: Target
    default_arch: str  # built for where no device says otherwise
    clock: str  # what the target calls the clock that all its processors share
    build_remedy: str
    find_compiler: Callable[[], Compiler | None]
    find_devices: Callable[[], Devices]
    arch_of: Callable[[Any], str]  # from torch's properties of a device
    library_flags: Flags  # for a shared library, with the host's side
    compiler_environment: tuple[tuple[str, str], ...] = ()
    # Called with each library before it is loaded; raises TargetError if it cannot work here.
    before_loading: Callable[[Path], None] | None = None

    @property
    def is_gpu(self) -> bool:
        """Whether kernels run on a device of its own, not on the cores of the host."""
        return self.target is not Target.CPU


def first_working(candidates: Iterable[str | Path]) -> Compiler | None:
    """The first compiler that exists and answers --version."""
    for candidate in candidates:
        path = shutil.which(str(candidate)) if candidate else None
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
