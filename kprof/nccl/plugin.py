"""The profiler plugin for NCCL and RCCL: how it is built, and how a workload is made to load it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from kprof.devices.build import BuildOptions, build
from kprof.devices.record import Build, Compiler
from kprof.devices.targets import Target, record_of

SOURCE: Final = Path(__file__).parent / "plugin.cpp"
PLUGIN_VARIABLE: Final = "NCCL_PROFILER_PLUGIN"
# Where the plugin makes its rings; KPROF_RECORD_DIR where that is not on its host.
DIR_VARIABLE: Final = "KPROF_NCCL_DIR"
RING_BYTES_VARIABLE: Final = "KPROF_NCCL_RING_BYTES"
NOT_LOADED: Final = (
    "no communicator of NCCL or RCCL has loaded the plugin: that takes NCCL 2.26 or later, and a "
    "workload that makes a communicator; NCCL_DEBUG=INFO says what NCCL tried"
)


def build_plugin(sanitizers: tuple[str, ...] = ()) -> Path:
    """The compiled plugin, of the cache where it can. Needs no NCCL; raises BuildError."""
    options = BuildOptions(Target.CPU, sanitizers=sanitizers)
    return build(SOURCE, options, _flags, "so")


def _flags(options: Build, compiler: Compiler) -> list[str]:
    # NCCL closes the library with its last communicator, while threads of it may still call.
    mine = ["-fvisibility=hidden", "-pthread", "-Wl,-z,nodelete", "-ldl"]
    return record_of(options.target).library_flags(options, compiler) + mine


def environment_for(
    plugin: Path,
    memory: Path,
    ring_bytes: int,
    *,
    sample: int = 1,
    keeps_latest: bool = False,
    keep_slowest: int = 0,
) -> dict[str, str]:
    """What makes NCCL load the plugin, and the plugin record into `memory`: one call in `sample`.

    With `keeps_latest`, events that later ones have overwritten are no loss. With `keep_slowest`,
    a capture gets so many of the slowest calls (kprof.nccl.keeping), and the others are no loss.
    """
    return {
        PLUGIN_VARIABLE: str(plugin),
        DIR_VARIABLE: str(memory),
        RING_BYTES_VARIABLE: str(ring_bytes),
        "KPROF_NCCL_SAMPLE": str(max(sample, 1)),
        "KPROF_NCCL_KEEPS_LATEST": str(int(keeps_latest or keep_slowest > 0)),
        "KPROF_NCCL_KEEP_SLOWEST": str(keep_slowest),
    }


def replaced_plugin(environment: Mapping[str, str] = os.environ) -> str:
    """A sentence about the user's own plugin, which does not run meanwhile; empty without one."""
    other = environment.get(PLUGIN_VARIABLE, "")
    if not other:
        return ""
    return (
        f"{PLUGIN_VARIABLE}={other} is not used in this run: NCCL loads one profiler plugin, "
        "and --nccl is kprof's"
    )
