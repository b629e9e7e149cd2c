"""Lines of waits, where more tracks want one place: every wait keeps its line, and one that finds none is missed aloud."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

import numpy as np
import pytest

from kprof.abi import WAIT_LINE
from kprof.capture.shared_memory import memory_of
from kprof.devices.build import BuildOptions, load_library
from kprof.devices.targets import Target
from kprof.hangs import lines
from kprof.hangs.diagnosis import diagnose
from kprof.hangs.evidence import read_run
from kprof.hangs.report import lines_of, make_report
from kprof.hangs.state import RankState
from kprof.rank_memory import LINES_OFFSET
from kprof.recording.rank import waits
from kprof.recording.rank.recorder import Recorder
from sharing import sharing_memory

FOLDER = Path(__file__).parents[1] / "support" / "wait_lines"
# Of which the last is nobody's.
NUM_LINES = 4
# kLetGo of the kernel.
LET_GO = 2
# What every word of every kernel ends it with.
ALL_ENDS = 1 << 20
NUM_WAITS, NUM_TURNS = 300, 20

pytestmark = pytest.mark.amd


class Waiters:
    """A launch of a kernel whose blocks wait until they are let go.

    `number` is the kernel's: how many blocks, waits or turns.
    """

    def __init__(self, folder: Path, num_blocks: int, kernel: str, number: int) -> None:
        self.folder = folder
        self.words = np.zeros(4 + num_blocks, np.uint32)
        self.recorder = Recorder(
            folder, rank=0, world_size=1, regions=FOLDER / "regions.h", arena_bytes=1 << 19
        )
        self._kernel, self._num_blocks, self._number = kernel, num_blocks, number
        self.launch()

    def launch(self) -> None:
        self.words[:] = 0
        buffer = self.recorder.launch("waiters", num_blocks=self._num_blocks, threads_per_block=1)
        run = getattr(load_library(FOLDER / "kernel.hip", BuildOptions(Target.CPU)), self._kernel)
        call = ctypes.c_void_p(self.words.ctypes.data), self._number, buffer.packed()
        self._thread = threading.Thread(target=run, args=call)
        self._thread.start()

    def until(self, is_right: Callable[[RankState], bool]) -> RankState:
        """The rank, once that is right."""
        while not is_right(rank := read_run(self.folder).ranks[0]):
            time.sleep(0.001)
        return rank

    def first_line(self) -> np.ndarray:
        """Its words of 64 bits, as they change."""
        memory = memory_of(self.folder)
        assert memory is not None
        lines = np.memmap(memory / "rank-00000", np.uint64, "r", LINES_OFFSET)
        return lines[: WAIT_LINE.itemsize // 8]

    def let_go(self) -> None:
        self.words[:] = ALL_ENDS
        self._thread.join()

    def end(self) -> None:
        self.let_go()
        self.recorder.abandon()


class Make(Protocol):
    """Of waiters: one for each block, by default."""

    def __call__(
        self, num_blocks: int, kernel: str = "run", number: int = 0, num_lines: int = NUM_LINES
    ) -> Waiters: ...


@pytest.fixture
def waiters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    made: list[Waiters] = []

    def make(
        num_blocks: int, kernel: str = "run", number: int = 0, num_lines: int = NUM_LINES
    ) -> Waiters:
        for module in (lines, waits):
            monkeypatch.setattr(module, "NUM_LINES", num_lines)
        made.append(Waiters(tmp_path, num_blocks, kernel, number or num_blocks))
        return made[-1]

    with sharing_memory(tmp_path):
        yield make
        made[0].end()


def slots_of(rank: RankState) -> list[int | None]:
    return [wait.slot for wait in rank.waits]


def test_a_wait_that_ends_leaves_the_line_of_another_one(
    waiters: Make,
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


def test_a_wait_without_a_line_is_missed_aloud(waiters: Make) -> None:
    here = waiters(5)
    here.until(lambda rank: rank.misses_waits and len(rank.waits) == NUM_LINES - 1)
    run = read_run(here.folder)
    text = "; more waits than kprof has room for: some are not listed"
    assert lines_of(make_report(run, diagnose(run), 60.0))[-1].endswith(text)


def test_a_line_is_given_back(waiters: Make) -> None:
    """As many waits as there are lines, launch after launch."""
    here = waiters(NUM_LINES - 1)
    for _ in range(3):
        here.until(lambda rank: slots_of(rank) == [0, 1, 2])
        here.let_go()
        here.launch()
    assert not here.until(lambda rank: slots_of(rank) == [0, 1, 2]).misses_waits


def test_a_change_of_the_flag_is_told_while_it_is_waited_for(
    waiters: Make,
) -> None:
    here = waiters(1)
    (wait,) = here.until(lambda rank: bool(rank.waits)).waits
    assert (wait.held, wait.wanted) == (0, LET_GO)
    here.words[0] = LET_GO - 1
    here.until(lambda rank: rank.waits[0].held == LET_GO - 1)


def test_a_line_with_a_region_is_whole(waiters: Make) -> None:
    """Looked at all the time, while one wait after the other has it."""
    here = waiters(1, "run_often", NUM_WAITS, num_lines=2)
    line = here.first_line()
    number = 0
    while number < NUM_WAITS:
        word = int(line[1])
        number, held, wanted = word >> 32, int(line[3]) >> 32, int(line[4])
        # Else the wait has ended meanwhile, and another one may write.
        if word and int(line[1]) == word:
            assert (held, wanted) == (number, number)


def test_the_end_of_a_wait_does_not_close_the_line_of_the_next_one(waiters: Make) -> None:
    here = waiters(2, "run_turns", NUM_TURNS, num_lines=2)
    line = here.first_line()
    for turn in range(1, NUM_TURNS + 1):
        while here.words[2] < turn:
            time.sleep(0.0001)
        assert int(line[1]) != 0, turn
        assert int(line[2]) >> 32 == 1
        here.words[3] = turn
