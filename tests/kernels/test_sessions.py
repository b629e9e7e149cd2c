"""Sessions that cannot begin, or begin again: nothing that was recorded is lost, and nothing stays behind."""

from __future__ import annotations

import asyncio
import ctypes
import os
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import kprof
from kprof.capture.directory import Capture
from kprof.errors import ArenaError, KprofError, OutputExistsError, RecorderError, TargetError
from kprof.recording.rank.null_recorder import NullRecorder
from replayed import emitted, library, new_buffer, run_kernel

__all__ = ["library"]


def call(library: ctypes.CDLL) -> None:
    run_kernel(library, "run_marks", new_buffer(kprof.recorder(), "run_marks"), 4, seed=1)


def num_calls(path: Path) -> float:
    (info,) = Capture.open(path).manifest.ranks
    return info.counts.recorded / emitted(["run_marks"], [4])


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_refused_session_leaves_the_capture_that_it_was_to_replace(
    library: ctypes.CDLL, tmp_path: Path
) -> None:
    with kprof.session(tmp_path / "good.kprof"):
        call(library)
    (tmp_path / "cut.kprof.unfinished").mkdir()
    (tmp_path / "cut.kprof.unfinished" / "rank-00000.parquet").touch()
    with kprof.session(tmp_path / "outer.kprof"):
        for name in ("good.kprof", "cut.kprof", "outer.kprof", "new.kprof"):
            with pytest.raises(RecorderError, match="a session is open already"):
                kprof.session(tmp_path / name, force=True).__enter__()
        call(library)
    assert names(tmp_path) == ["cut.kprof.unfinished", "good.kprof", "outer.kprof"]
    assert [num_calls(tmp_path / name) for name in ("good.kprof", "outer.kprof")] == [1, 1]


def _raising(step: int) -> bool:
    raise ZeroDivisionError(step)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"arena_bytes": 0}, ArenaError),
        ({"arena_bytes": -1}, ArenaError),
        ({"arena_bytes": 64e6}, RecorderError),
        ({"device": "cuda:99"}, TargetError),
        ({"schedule": _raising}, ZeroDivisionError),
        ({"regions": ["twice", "twice"]}, KprofError),
    ],
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


def test_a_session_can_be_entered_again_and_not_inside_itself(
    library: ctypes.CDLL, tmp_path: Path
) -> None:
    session = kprof.session(tmp_path / "run.kprof", force=True)
    for num in (1, 2):
        with session:
            for _ in range(num):
                call(library)
            with pytest.raises(RecorderError, match="a session is open already"), session:
                pass
        assert num_calls(tmp_path / "run.kprof") == num


def test_each_call_of_a_decorated_function_is_a_session(
    library: ctypes.CDLL, tmp_path: Path
) -> None:
    @kprof.session(tmp_path / "once.kprof")
    def once() -> None:
        call(library)

    @kprof.session(tmp_path / "often.kprof", force=True)
    def often(num: int) -> int:
        for _ in range(num):
            call(library)
        return num

    once()
    with pytest.raises(OutputExistsError, match=r"\(in Python force=True\)"):
        once()
    assert [often(num) for num in (3, 2)] == [3, 2]
    assert num_calls(tmp_path / "often.kprof") == 2


async def _coroutine() -> None:
    await asyncio.sleep(0)


def _generator() -> Iterator[int]:
    yield 1


async def _async_generator() -> AsyncIterator[int]:
    yield 1


@pytest.mark.parametrize("function", [_coroutine, _generator, _async_generator])
def test_a_function_whose_body_runs_later_is_not_decorated(
    tmp_path: Path, function: Callable[[], object]
) -> None:
    with pytest.raises(RecorderError, match=rf"{function.__name__} is async or a generator: "):
        kprof.session(tmp_path / "run.kprof")(function)
    assert names(tmp_path) == []


def test_a_forked_child_is_told_to_open_a_session_and_can(
    library: ctypes.CDLL, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with kprof.session(tmp_path / "run.kprof"):
        call(library)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                kprof.recorder(rank=1, world_size=2).launch("run_marks")
                with kprof.session(tmp_path / "child.kprof"):
                    for _ in range(3):
                        call(library)
                code = 0
            finally:
                os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
        call(library)
    assert num_calls(tmp_path / "run.kprof") == 2
    assert num_calls(tmp_path / "child.kprof") == 3
    said = capfd.readouterr().err
    assert "inside kprof.session, open a session into another output there" in said
