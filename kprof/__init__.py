"""kprof shows what happens inside multi-GPU kernels: which threadblock waited for which rank, how long, and why.

    import kprof
    trace = kprof.open("run.kprof")        # all ranks on one clock
    trace.to_pandas()                      # one row per event

Importing kprof does no work; the heavy parts load when they are used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from pathlib import Path

    from kprof.devices.build import include_dir as include_dir
    from kprof.errors import KprofError as KprofError
    from kprof.recording.process import recorder as recorder
    from kprof.recording.recorder import Recorder as Recorder
    from kprof.regions import RegionTable as RegionTable
    from kprof.trace import Trace as Trace

__all__ = ["KprofError", "Recorder", "RegionTable", "Trace", "include_dir", "open", "recorder"]

_LAZY = {
    "include_dir": "kprof.devices.build",
    "KprofError": "kprof.errors",
    "Recorder": "kprof.recording.recorder",
    "recorder": "kprof.recording.process",
    "RegionTable": "kprof.regions",
    "Trace": "kprof.trace",
}


def open(path: str | Path) -> Trace:
    """Open a capture directory such as `run.kprof`; raises a CaptureError with one clear sentence."""
    from kprof.trace import Trace

    return Trace.open(path)


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'kprof' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_LAZY[name]), name)
