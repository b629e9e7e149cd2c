"""What no launch can have is refused, and costs neither the launch before nor the one after."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kprof
from kprof.capture.manifest import MAX_TEXT
from kprof.errors import RecorderError, RegionError
from kprof.trace import Trace
from replayed import TRACKS, emitted, library, new_buffer, run_kernel

__all__ = ["library"]

MOST = (1 << 31) - 1

RETENTIONS = [
    kprof.Retention(),
    kprof.Retention(drain=True),
    kprof.Retention(ring_bytes=1 << 20),
    kprof.Retention(keep_slowest=2),
]


@pytest.mark.parametrize("retention", RETENTIONS, ids=repr)
def test_a_launch_that_is_refused_leaves_the_others_whole(
    library: ctypes.CDLL, tmp_path: Path, retention: kprof.Retention
) -> None:
    bad: list[dict[str, Any]] = [
        {"num_blocks": 1000 / 256},
        {"num_blocks": 4.0},
        {"num_blocks": None},
        {"num_blocks": -1},
        {"num_blocks": 1 << 31},
        {"num_blocks": 1 << 70},
        {"threads_per_block": "256"},
        {"threads_per_block": -1},
        {"threads_per_block": 1 << 40},
        {"num_blocks": 2, "tracks_per_block": -3},
        {"num_blocks": 2, "tracks_per_block": np.float64(1)},
    ]
    with kprof.session(tmp_path / "run.kprof", retention=retention) as recorder:
        for fields in bad:
            run_kernel(library, "run_marks", new_buffer(recorder, "run_marks"), 4, seed=1)
            name, value = list(fields.items())[-1]
            with pytest.raises(RecorderError, match=rf"'run_marks' with {name}=") as error:
                recorder.launch("run_marks", **fields)
            assert str(error.value).endswith(f"={value!r}: give a whole number, 0 to {MOST}")
            recorder.step()
    trace = Trace.open(tmp_path / "run.kprof")
    num_kept = retention.keep_slowest or len(bad)
    assert trace.num_events() == emitted(["run_marks"], [4] * num_kept)
    ordinals = [launch.ordinal for launch in trace.ranks[0].launches]
    assert len(ordinals) == num_kept
    assert set(ordinals) <= set(range(len(bad)))


def test_names_and_regions_that_cannot_be_are_refused_too(
    library: ctypes.CDLL, tmp_path: Path
) -> None:
    kernels: list[Any] = [None, 5, b"run_marks", "x" * (MAX_TEXT + 1)]
    with kprof.session(tmp_path / "run.kprof") as recorder:
        for kernel in kernels:
            with pytest.raises(RecorderError, match="the name of a kernel"):
                recorder.launch(kernel, num_blocks=1)
        with pytest.raises(RegionError):
            recorder.launch("run_marks", ["twice", "twice"])
        run_kernel(library, "run_marks", new_buffer(recorder, "run_marks"), 4, seed=1)
    (launch,) = Trace.open(tmp_path / "run.kprof").ranks[0].launches
    assert (launch.kernel, launch.ordinal) == ("run_marks", 0)


@pytest.mark.parametrize("retention", RETENTIONS, ids=repr)
def test_integers_and_text_of_any_kind_are_fine(
    library: ctypes.CDLL, tmp_path: Path, retention: kprof.Retention
) -> None:
    sizes: dict[str, Any] = {
        "num_blocks": np.int64(3),
        "threads_per_block": np.uint8(64),
        "tracks_per_block": np.int32(TRACKS["run_marks"]),
    }
    with kprof.session(tmp_path / "run.kprof", retention=retention) as recorder:
        buffer = recorder.launch(np.str_("run_marks"), ["mark", "place"], **sizes)
        run_kernel(library, "run_marks", buffer, 4, seed=1)
        recorder.step()
    trace = Trace.open(tmp_path / "run.kprof")
    assert trace.num_events() == emitted(["run_marks"], [4])
    (launch,) = trace.ranks[0].launches
    assert (launch.kernel, launch.num_blocks, launch.threads_per_block) == ("run_marks", 3, 64)


def test_the_largest_sizes_that_a_launch_may_have_are_kept(tmp_path: Path) -> None:
    with kprof.session(tmp_path / "run.kprof") as recorder:
        recorder.launch("flags", num_blocks=True, threads_per_block=False)
        recorder.launch("large", num_blocks=MOST, threads_per_block=MOST)
    launches = Trace.open(tmp_path / "run.kprof").ranks[0].launches
    assert [(launch.num_blocks, launch.threads_per_block) for launch in launches] == [
        (1, 0),
        (MOST, MOST),
    ]
