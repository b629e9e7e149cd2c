"""kprof shows what happens inside multi-GPU kernels: which threadblock waited for which rank, how
long, and why.

    import kprof
    trace = kprof.open("run.kprof")        # all ranks on one clock
    trace.findings()                       # what stands out
    trace.select(rank=1).waits(by="peer")  # who was waited for

Importing kprof does no work; heavy parts load on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from pathlib import Path

    from kprof import analysis as analysis
    from kprof import errors as errors
    from kprof import export as export
    from kprof import report as report
    from kprof.devices.build import BuildOptions as BuildOptions
    from kprof.devices.build import include_dir as include_dir
    from kprof.devices.build import load_library as load_library
    from kprof.devices.groups import SoloGroup as SoloGroup
    from kprof.devices.groups import TorchGroup as TorchGroup
    from kprof.devices.symmetric import SymmetricHeap as SymmetricHeap
    from kprof.errors import KprofError as KprofError
    from kprof.recording.launcher.sessions import session as session
    from kprof.recording.launches.launch_buffer import LaunchBuffer as LaunchBuffer
    from kprof.recording.launches.wanted import Wanted as Wanted
    from kprof.recording.launches.wanted import schedule as schedule
    from kprof.recording.rank.process import recorder as recorder
    from kprof.recording.rank.recorder import Recorder as Recorder
    from kprof.recording.rank.torch_debug import torch_debug_handlers as torch_debug_handlers
    from kprof.recording.rank.watchdog import watchdog as watchdog
    from kprof.recording.retention.retention import Retention as Retention
    from kprof.regions import RegionTable as RegionTable
    from kprof.run import Run as Run
    from kprof.trace import Trace as Trace

_MODULES = ("analysis", "errors", "export", "report")
_LAZY = {
    "BuildOptions": "kprof.devices.build",
    "KprofError": "kprof.errors",
    "LaunchBuffer": "kprof.recording.launches.launch_buffer",
    "Recorder": "kprof.recording.rank.recorder",
    "RegionTable": "kprof.regions",
    "Retention": "kprof.recording.retention.retention",
    "Run": "kprof.run",
    "SoloGroup": "kprof.devices.groups",
    "SymmetricHeap": "kprof.devices.symmetric",
    "TorchGroup": "kprof.devices.groups",
    "Trace": "kprof.trace",
    "include_dir": "kprof.devices.build",
    "load_library": "kprof.devices.build",
    "recorder": "kprof.recording.rank.process",
    "schedule": "kprof.recording.launches.wanted",
    "session": "kprof.recording.launcher.sessions",
    "torch_debug_handlers": "kprof.recording.rank.torch_debug",
    "Wanted": "kprof.recording.launches.wanted",
    "watchdog": "kprof.recording.rank.watchdog",
}
__all__ = ["open", *_MODULES, *_LAZY]


def open(path: str | Path) -> Run:
    """Open a capture directory such as `run.kprof`.

    Raises a CaptureError with one clear sentence.
    """
    from kprof.run import Run

    return Run.open(path)


def __getattr__(name: str) -> Any:
    import importlib

    if name in _MODULES:
        return importlib.import_module(f"kprof.{name}")
    if name not in _LAZY:
        raise AttributeError(f"module 'kprof' has no attribute {name!r}")
    return getattr(importlib.import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    """All public names, loaded or not."""
    return [*__all__, "__version__"]
