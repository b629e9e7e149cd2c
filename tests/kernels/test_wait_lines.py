"""Lines of waits, where more tracks want one place: every wait keeps its line, and one that finds none is missed aloud."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from kprof.devices.build import BuildOptions, load_library
from kprof.devices.targets import Target
from kprof.hangs import lines
from kprof.hangs.diagnosis import diagnose
from kprof.hangs.evidence import read_run
from kprof.hangs.report import lines_of, make_report
from kprof.hangs.state import RankState
from kprof.recording.rank import waits
from kprof.recording.rank.recorder import Recorder
from sharing import sharing_memory

FOLDER = Path(__file__).parents[1] / "support" / "wait_lines"
# Of which the last is nobody's.
NUM_LINES = 4
# Two of them have waits.
NUM_WATCHED = 18
# kLetGo of the kernel.
LET_GO = 2

pytestmark = pytest.mark.amd


def load_kernels() -> ctypes.CDLL:
    return load_library(FOLDER / "kernel.hip", BuildOptions(Target.CPU))


def make_recorder(folder: Path) -> Recorder:
    return Recorder(folder, rank=0, world_size=1, regions=FOLDER / "regions.h", arena_bytes=1 << 19)


class Waiters:
    """A launch whose blocks wait until they are let go, in NUM_LINES lines."""

    def __init__(self, folder: Path, num_blocks: int) -> None:
        self.folder = folder
        self.words = np.zeros(num_blocks, np.uint32)
        self.recorder = make_recorder(folder)
        self.launch()

    def launch(self) -> None:
        num_blocks = len(self.words)
        self.words[:] = 0
        buffer = self.recorder.launch("waiters", num_blocks=num_blocks, threads_per_block=1)
        run = load_kernels().run
        call = ctypes.c_void_p(self.words.ctypes.data), num_blocks, buffer.packed()
        self._thread = threading.Thread(target=run, args=call)
        self._thread.start()

    def until(self, is_right: Callable[[RankState], bool]) -> RankState:
        """The rank, once that is right."""
        while not is_right(rank := read_run(self.folder).ranks[0]):
            time.sleep(0.001)
        return rank

    def let_go(self) -> None:
        self.words[:] = LET_GO
        self._thread.join()

    def end(self) -> None:
        self.let_go()
        self.recorder.abandon()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    for module in (lines, waits):
        monkeypatch.setattr(module, "NUM_LINES", NUM_LINES)
    with sharing_memory(tmp_path):
        yield tmp_path


@pytest.fixture
def waiters(folder: Path) -> Iterator[Callable[[int], Waiters]]:
    made: list[Waiters] = []

    def make(num_blocks: int) -> Waiters:
        made.append(Waiters(folder, num_blocks))
        return made[-1]

    yield make
    made[0].end()


def slots_of(rank: RankState) -> list[int | None]:
    return [wait.slot for wait in rank.waits]


def test_a_wait_that_ends_leaves_the_line_of_another_one(
    waiters: Callable[[int], Waiters],
) -> None:
    """Blocks 0 and 2 want the same place."""
    here = waiters(3)
    here.until(lambda rank: slots_of(rank) == [0, 1, 2])
    here.words[2] = LET_GO
    here.until(lambda rank: slots_of(rank) != [0, 1, 2])
    here.words[1] = LET_GO
    rank = here.until(lambda rank: 1 not in slots_of(rank))
    assert slots_of(rank) == [0]
    assert not rank.misses_waits


def test_a_wait_without_a_line_is_missed_aloud(waiters: Callable[[int], Waiters]) -> None:
    here = waiters(5)
    here.until(lambda rank: rank.misses_waits and len(rank.waits) == NUM_LINES - 1)
    run = read_run(here.folder)
    text = "; more waits than kprof has room for: some are not listed"
    assert lines_of(make_report(run, diagnose(run), 60.0))[-1].endswith(text)


def test_a_line_is_given_back(waiters: Callable[[int], Waiters]) -> None:
    """As many waits as there are lines, launch after launch."""
    here = waiters(NUM_LINES - 1)
    for _ in range(3):
        here.until(lambda rank: slots_of(rank) == [0, 1, 2])
        here.let_go()
        here.launch()
    assert not here.until(lambda rank: slots_of(rank) == [0, 1, 2]).misses_waits


def test_a_change_of_the_flag_is_told_while_it_is_waited_for(
    waiters: Callable[[int], Waiters],
) -> None:
    here = waiters(1)
    (wait,) = here.until(lambda rank: bool(rank.waits)).waits
    assert (wait.held, wait.wanted) == (0, LET_GO)
    here.words[0] = LET_GO - 1
    here.until(lambda rank: rank.waits[0].held == LET_GO - 1)


def test_a_line_shows_one_wait_whenever_it_is_looked_at(folder: Path) -> None:
    """Words of a new wait beside words of the one before would name the wrong block."""
    recorder = make_recorder(folder)
    counts = np.zeros(4, np.uint32)
    buffer = recorder.launch("watched", num_blocks=NUM_WATCHED, threads_per_block=1)
    address = ctypes.c_void_p(counts.ctypes.data)
    assert load_kernels().run_watched(address, NUM_WATCHED, buffer.packed()) == 0
    recorder.abandon()
    num_seen, num_joined, num_lost, _ = counts
    assert num_seen > 0, counts
    assert (num_joined, num_lost) == (0, 0)
