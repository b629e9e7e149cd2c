"""Records in processes that end by SIGKILL, for test_killed_ranks.py.

until_killed.py LIBRARY     reads a case as JSON in each line, and answers with the steps that it finished

Every case is a fork of this process, which never reads a capture: the threads that do that do not survive a fork.
"""

from __future__ import annotations

import ctypes
import errno
import json
import mmap
import os
import random
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from drained import ARENA_BYTES, DRAIN, RING, look, steps
from kprof.capture.parts import PartWriter
from kprof.recording.arenas import ledger
from kprof.recording.arenas.arena import Arena
from kprof.recording.arenas.turns import Turns
from kprof.recording.launches.launch_log import LaunchLog
from kprof.recording.rank.recorder import Recorder
from kprof.recording.retention.drainer import Drainer
from kprof.recording.retention.retention import EVERYTHING_THAT_FITS, Retention
from replayed import new_buffer, run_kernel

RETENTIONS: Final = {
    "flush": EVERYTHING_THAT_FITS,
    "drain": DRAIN,
    "ring": RING,
    "slowest": Retention(keep_slowest=2),
}
# The nth call of a method ends the process, before it does its work, half way, or after.
MOMENTS: Final[dict[str, tuple[type, str, str, int] | None]] = {
    "between two launches": None,
    "before a part is written": (PartWriter, "save", "before", 3),
    "when it has its name": (PartWriter, "save", "after", 3),
    "before its launches are forgotten": (LaunchLog, "forget", "before", 3),
    "before the arena is emptied": (LaunchLog, "forget", "after", 3),
    "while the arena is reset": (Arena, "reset", "half", 3),
    "when the arena was reset": (Arena, "reset", "after", 3),
    "while the arena is wiped": (Arena, "wipe", "half", 3),
    "when the arena was wiped": (Arena, "wipe", "after", 3),
    "when another arena is free": (Turns, "wipe", "after", 3),
}
TABLES: Final = (["mark", "place"], ["other", "place"], ["mark", "third"])


def sizes(num_steps: int) -> list[int]:
    """How many records each track of `steps` writes."""
    source = random.Random(7)
    return [source.randrange(1, 61) for _ in range(num_steps)]


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def kill_at(owner: type, name: str, when: str, nth: int) -> None:
    method = getattr(owner, name)
    calls = iter(range(nth))

    def call(self: Any, *arguments: Any) -> Any:
        is_last = next(calls) == nth - 1
        if is_last and when == "half":
            self._memory.clear(0, self._memory.size_bytes // 2)
        if is_last and when != "after":
            kill()
        result = method(self, *arguments)
        if is_last:
            kill()
        return result

    setattr(owner, name, call)


def take_steps(
    library: ctypes.CDLL, recorder: Recorder, case: dict[str, Any], count: Callable[[], None]
) -> None:
    """Steps after each of which the arenas are emptied, as far as that is due."""
    if moment := MOMENTS[case["moment"]]:
        kill_at(*moment)
    for _ in steps(library, recorder, case["num_steps"], case["is_graph"]):
        count()
        if case["retention"] == "flush":
            recorder.flush()
            continue
        look(recorder)
        if case["retention"] == "ring":
            look(recorder)
            # Graphs change arenas here only, and the next replay may not fit any more.
            recorder.step()


def launch_with_tables(library: ctypes.CDLL, recorder: Recorder) -> None:
    """Launches with several region tables, the first of them in a part; saves after each."""
    for table in TABLES:
        buffer = recorder.launch("run_places", table, num_blocks=3, tracks_per_block=1)
        run_kernel(library, "run_places", buffer, 5, seed=1)
        recorder.note(f"launched with {table[0]}")
        if table is TABLES[0]:
            recorder.flush()
        recorder.save()


def launch_in_a_call(library: ctypes.CDLL, recorder: Recorder) -> None:
    """Calls that have ended, and the first launch of the next one."""
    for _ in steps(library, recorder, 100, is_graph=False):
        look(recorder)
    run_kernel(library, "run_marks", new_buffer(recorder, "run_marks"), 5, seed=1)


def launch_without_room(library: ctypes.CDLL, recorder: Recorder) -> None:
    """A launch in a part and one that is not."""
    run_kernel(library, "run_marks", new_buffer(recorder, "run_marks"), 5, seed=1)
    recorder.flush()
    run_kernel(library, "run_marks", new_buffer(recorder, "run_marks"), 5, seed=1)


def refuse_room() -> None:
    def refuse(path: Path, size_bytes: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    ledger.SharedFile = refuse  # type: ignore[assignment, misc]


def run(library: ctypes.CDLL, case: dict[str, Any], count: Callable[[], None]) -> None:
    """One case, in a process of its own."""
    if case["workload"] == "without room":
        refuse_room()
    recorder = Recorder(
        Path(case["directory"]),
        rank=0,
        world_size=1,
        retention=RETENTIONS[case.get("retention", "flush")],
        arena_bytes=ARENA_BYTES,
    )
    if case["workload"] == "steps":
        take_steps(library, recorder, case, count)
    elif case["workload"] == "tables":
        launch_with_tables(library, recorder)
    elif case["workload"] == "calls":
        launch_in_a_call(library, recorder)
    elif case["workload"] == "without room":
        launch_without_room(library, recorder)
    kill()


def main(library: ctypes.CDLL) -> None:
    # Nobody looks but the workload.
    Drainer.start = lambda self: None  # type: ignore[method-assign]
    for line in sys.stdin:
        num_done = mmap.mmap(-1, 1)

        def count(counted: mmap.mmap = num_done) -> None:
            counted[0] += 1

        child = os.fork()
        if child == 0:
            try:
                run(library, json.loads(line), count)
            finally:
                sys.stderr.flush()
                os._exit(1)
        _, status = os.waitpid(child, 0)
        answer = num_done[0] if os.WIFSIGNALED(status) and os.WTERMSIG(status) == 9 else -1
        print(answer, flush=True)


if __name__ == "__main__":
    main(ctypes.CDLL(sys.argv[1]))
