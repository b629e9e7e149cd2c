"""Graphs that are being captured, on any thread.

What opens a recorder waits for the device, which CUDA forbids to every thread meanwhile, and what
loads a copy of a kernel is forbidden in its usual mode. The capture that fails is the program's.
"""

from __future__ import annotations

from functools import wraps
from typing import Any, Final
from weakref import WeakSet

_captured: WeakSet[Any] = WeakSet()
# An attribute of our functions.
_WATCHED: Final = "watched_by_kprof"


def watch(graphs: Any) -> None:
    """Know of all captures of this class, torch.cuda.CUDAGraph, that begin from now on."""
    begin, end = graphs.capture_begin, graphs.capture_end
    if hasattr(begin, _WATCHED):
        return

    @wraps(begin)
    def capture_begin(graph: Any, *args: Any, **kwargs: Any) -> None:
        begin(graph, *args, **kwargs)
        _captured.add(graph)

    @wraps(end)
    def capture_end(graph: Any) -> None:
        try:
            end(graph)
        finally:
            _captured.discard(graph)

    setattr(capture_begin, _WATCHED, True)
    graphs.capture_begin, graphs.capture_end = capture_begin, capture_end


def go_on() -> bool:
    """Whether a graph is being captured on any thread, as far as `watch` knows."""
    return bool(_captured)
