"""Sessions that cannot begin, or begin again: nothing that was recorded is lost, and nothing stays behind."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import pytest
from test_replays import _buffer, _run, emitted, library

import kprof
from kprof.capture.directory import Capture
from kprof.errors import ArenaError, KprofError, TargetError
from kprof.recording.null_recorder import NullRecorder

__all__ = ["library"]


def call(library: ctypes.CDLL) -> None:
    _run(library, "run_marks", _buffer(kprof.recorder(), "run_marks"), 4, seed=1)


def num_calls(path: Path) -> float:
    (info,) = Capture.open(path).manifest.ranks
    return info.counts.recorded / emitted(["run_marks"], [4])


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def _raising(step: int) -> bool:
    raise ZeroDivisionError(step)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"arena_bytes": 0}, ArenaError),
        ({"device": "cuda:99"}, TargetError),
        ({"schedule": _raising}, ZeroDivisionError),
        ({"regions": ["twice", "twice"]}, KprofError),
    ],
    ids=str,
)
def test_a_session_that_cannot_begin_leaves_nothing(
    library: ctypes.CDLL, tmp_path: Path, options: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error), kprof.session(tmp_path / "run.kprof", **options):
        raise AssertionError("it began")
    assert names(tmp_path) == []
    assert isinstance(kprof.recorder(), NullRecorder)
    with kprof.session(tmp_path / "run.kprof"):
        call(library)
    assert num_calls(tmp_path / "run.kprof") == 1
