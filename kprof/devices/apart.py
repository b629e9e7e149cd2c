"""Calls torch on a thread of its own.

What a workload has set for torch is set for its thread: a default device, FakeTensor and other
modes, inference mode, the stream, and the memory pool of a graph. What kprof allocates must be
plain memory, whatever the workload is doing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from threading import Thread
from typing import TypeVar

from kprof.devices import gpu

_Result = TypeVar("_Result")


def apart(device: str, call: Callable[[], _Result]) -> _Result:
    """What `call` returns on a new thread whose current GPU is `device`; on "cpu" it is just
    called. Raises what it raises."""
    if device == "cpu":
        return call()
    results: list[_Result] = []
    errors: list[BaseException] = []
    number = gpu.with_number(device)

    def run() -> None:
        try:
            # Another thread may capture a graph.
            gpu.ignore_captures()
            # A device that is not there is what `call` has a sentence for.
            with contextlib.suppress(Exception):
                gpu.make_current(number)
            results.append(call())
        except BaseException as error:
            errors.append(error)

    thread = Thread(target=run, name="kprof opens a recorder")
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]
