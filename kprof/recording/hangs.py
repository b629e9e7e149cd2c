"""A run that stands still: which rank the others wait for, as far as hosts can tell.

    every rank   counts its calls of the recorder in rank-00003.live, which outlives it, and opens
                 rank-00003.stack, into which faulthandler writes its Python stacks when it gets
                 STACKS_SIGNAL: also while it waits for a kernel or holds the interpreter lock
    kprof        looks at the counts; when none has changed for `--hang-after` seconds it asks for
                 the stacks, says which rank is behind and keeps all of it in hang.json

Replays of graphs are no calls of the recorder; `recorder.step()` is one.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import re
import signal
import socket
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Final

import msgspec

from kprof.capture.claims import num_calls_of, ranks_in_use
from kprof.capture.directory import read_ranks_started, writing
from kprof.capture.losses import name_ranks
from kprof.recording.stopping import Say, signal_all

HANG_NAME: Final = "hang.json"
# No library takes the last real-time signals. Only processes that have opened their file get it.
STACKS_SIGNAL: Final = signal.SIGRTMAX - 2
_POLL_S: Final = 0.25
_STACKS_TIMEOUT_S: Final = 2.0
# A rank that is stopped does not answer.
_MAX_TRIES: Final = 10
_FRAME: Final = re.compile(r'File "(.*)", line (\d+) in (.*)')


class RankState(msgspec.Struct, frozen=True):
    """How far a rank came.

    `stack` is its main thread's, `path:line in function`, innermost first.
    """

    rank: int
    num_calls: int
    is_running: bool
    stack: tuple[str, ...] = ()


class Hang(msgspec.Struct, frozen=True):
    """A run in which no rank has called its recorder for `idle_s`."""

    idle_s: float
    diagnosis: str
    ranks: tuple[RankState, ...]


def diagnose(states: Sequence[RankState]) -> str:
    """Whom the others wait for, in a sentence; `states` are those of all ranks with a recorder."""
    ended = [state.rank for state in states if not state.is_running]
    running = [state for state in states if state.is_running]
    if ended and running:
        return f"{name_ranks(ended)} ended, {name_ranks([s.rank for s in running])} did not"
    most = max((state.num_calls for state in running), default=0)
    behind = [state for state in running if state.num_calls < most]
    if behind:
        least = min(behind, key=lambda state: state.num_calls)
        return (
            f"rank {least.rank} has made {least.num_calls} of the {most} launches and steps that "
            f"others have made{_place(least)}"
        )
    where = {state.stack[:1] for state in running}
    place = _place(running[0]) if len(where) == 1 and running else ""
    return (
        f"all ranks have made {most} launches and steps: a kernel does not end, or their hosts "
        f"wait for something else{place}"
    )


def _place(state: RankState) -> str:
    return f"; its Python stack stands at {state.stack[0]}" if state.stack else ""


def open_stacks(directory: Path, rank: int) -> IO[bytes] | None:
    """Let `kprof record` ask this process for its stacks; None where the disk refuses.

    The caller keeps the file open.
    """
    try:
        file = _stacks_path(directory, rank).open("wb")
    except OSError:
        return None
    faulthandler.register(STACKS_SIGNAL, file=file, all_threads=True)
    return file


class HangWatch:
    """Watches a recording from a thread of the process that started it, until it is closed."""

    def __init__(self, directory: Path, after_s: float, say: Say) -> None:
        self._directory, self._after_s, self._say = directory, after_s, say
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="kprof hangs", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop watching."""
        self._end.set()
        self._thread.join()

    def _watch(self) -> None:
        seen: dict[int, int] = {}
        changed_s, tries = time.monotonic(), 0
        while not self._end.wait(_POLL_S):
            counts = num_calls_of(self._directory)
            if counts != seen:
                seen, changed_s, tries = counts, time.monotonic(), 0
            idle_s = time.monotonic() - changed_s
            if any(seen.values()) and tries < _MAX_TRIES and idle_s >= self._after_s:
                tries = _MAX_TRIES if self._tell(idle_s, is_first=not tries) else tries + 1

    def _tell(self, idle_s: float, *, is_first: bool) -> bool:
        """Write what is known; returns whether there is nothing more to learn."""
        running = ranks_in_use(self._directory)
        if not running:
            return True
        stacks = self._stacks(running)
        states = tuple(
            RankState(rank, count, rank in running, stacks.get(rank, ()))
            for rank, count in sorted(num_calls_of(self._directory).items())
        )
        hang = Hang(round(idle_s, 1), diagnose(states), states)
        path = self._directory / HANG_NAME
        with contextlib.suppress(Exception), writing(path):
            temporary = path.with_suffix(".tmp")
            temporary.write_bytes(msgspec.json.format(msgspec.json.encode(hang), indent=1))
            temporary.replace(path)
        if is_first:
            self._say(
                f"no launch or step for {idle_s:.0f} s: {hang.diagnosis} ({HANG_NAME} has all)"
            )
        return len(stacks) == len(running)

    def _stacks(self, ranks: Sequence[int]) -> dict[int, tuple[str, ...]]:
        """The stacks of the ranks on this host that answer."""
        host = socket.gethostname()
        paths = {
            entry.rank: (entry.pid, _stacks_path(self._directory, entry.rank))
            for entry in read_ranks_started(self._directory)
            if entry.rank in ranks and entry.host == host
        }
        asked = {rank: path for rank, (pid, path) in paths.items() if path.exists() and pid}
        before = {rank: path.stat().st_size for rank, path in asked.items()}
        signal_all([paths[rank][0] for rank in asked], STACKS_SIGNAL)
        end_s = time.monotonic() + _STACKS_TIMEOUT_S
        answers: dict[int, tuple[str, ...]] = {}
        while len(answers) < len(asked) and time.monotonic() < end_s:
            time.sleep(0.02)
            for rank, path in asked.items():
                stack = parse_stack(path.read_bytes()[before[rank] :].decode(errors="replace"))
                if stack:
                    answers[rank] = stack
        return answers


def parse_stack(text: str) -> tuple[str, ...]:
    """The frames of the main thread in what faulthandler writes: the last of the threads."""
    last = text.rpartition("hread 0x")[2]
    return tuple(f"{path}:{line} in {name}" for path, line, name in _FRAME.findall(last))


def _stacks_path(directory: Path, rank: int) -> Path:
    return directory / f"rank-{rank:05d}.stack"


def hang_after_of(environment: dict[str, str] | os._Environ[str]) -> float:
    """What `kprof record --hang-after` was given; 0 where it was not."""
    try:
        return float(environment.get(HANG_AFTER_VARIABLE, "0"))
    except ValueError:
        return 0.0


# Set by `kprof record` for the workload, so that recorders open their files.
HANG_AFTER_VARIABLE: Final = "KPROF_HANG_AFTER"
