"""Steps of kernels for recorders that drain, and a drainer that looks when a test says so."""

from __future__ import annotations

import contextlib
import ctypes
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

import kprof
from kprof import abi
from kprof.recording.retention.drainer import Drainer
from kprof.recording.retention.retention import Retention
from replayed import KERNELS, Graph, new_buffer, run_kernel

# Two halves of 64 chunks: the three kernels of a step take up to 15 of them.
DRAIN = Retention(drain=True)
ARENA_BYTES = 2 * (abi.CHUNKS_OFFSET + 64 * abi.CHUNK_BYTES)

# Arenas of 64 chunks, of which a step takes 15 to 30.
RING = Retention(ring_bytes=8 * (abi.CHUNKS_OFFSET + 64 * abi.CHUNK_BYTES))


def draining(output: Path) -> contextlib.AbstractContextManager[kprof.Recorder]:
    """A recording that drains a small arena."""
    return kprof.session(output, retention=DRAIN, arena_bytes=ARENA_BYTES)


@pytest.fixture
def by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody looks but the test."""
    monkeypatch.setattr(Drainer, "start", lambda self: None)


def look(recorder: kprof.Recorder) -> None:
    assert recorder._drainer is not None
    recorder._drainer.look()


def steps(
    library: ctypes.CDLL, recorder: kprof.Recorder, num_steps: int, is_graph: bool
) -> Iterator[int]:
    """Runs the kernels of a step, yields how many records each of their tracks wrote."""
    sizes = random.Random(7)
    graph = Graph(library, recorder, *KERNELS) if is_graph else None
    for step in range(num_steps):
        num_records = sizes.randrange(1, 61)
        if graph:
            graph.replay(num_records, seed=step + 1)
        for kernel in () if graph else KERNELS:
            run_kernel(library, kernel, new_buffer(recorder, kernel), num_records, seed=step + 1)
        recorder.step()
        yield num_records
