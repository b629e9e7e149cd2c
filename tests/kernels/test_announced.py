"""Regions that are announced: what blocks are doing while a kernel does not end."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from kprof.devices.build import BuildOptions, load_library
from kprof.devices.targets import Target
from kprof.hangs.asking import Answers, moved
from kprof.hangs.diagnosis import diagnose
from kprof.hangs.evidence import read_run
from kprof.hangs.report import lines_of, make_report
from kprof.hangs.state import RunState
from kprof.recording.rank.recorder import Recorder
from sharing import sharing_memory
from tiles_kernel import FOLDER, THREADS, Arguments

NUM_BLOCKS = 3
STANDS = 2
IN_GEMM = [("tile", 1), ("gemm", 1)]


class Tiles:
    """A rank whose second launch stands in block 2 until it is let go."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._library = load_library(FOLDER / "kernel.hip", BuildOptions(Target.CPU))
        self._words = np.zeros(2, np.uint32)
        self.recorder = Recorder(
            folder, rank=0, world_size=1, regions=FOLDER / "regions.h", arena_bytes=1 << 19
        )
        self._thread: threading.Thread | None = None

    def launch(self, *, stands: bool, is_per_block: bool, num_tiles: int = 4) -> None:
        """Returns when the launch has ended, or stands."""
        block = STANDS if stands else NUM_BLOCKS
        arguments = Arguments(self._words.ctypes.data, block, num_tiles, is_per_block)
        buffer = self.recorder.launch("tiles", num_blocks=NUM_BLOCKS, threads_per_block=THREADS)
        call = ctypes.byref(arguments), NUM_BLOCKS, THREADS, buffer.packed()
        if not stands:
            assert self._library.run_tiles_kernel(*call) == 0
            return
        self._thread = threading.Thread(target=self._library.run_tiles_kernel, args=call)
        self._thread.start()
        while not self._words[0]:
            time.sleep(0.001)

    def let_go(self) -> None:
        self._words[1] = 1
        if self._thread is not None:
            self._thread.join()

    def look(self) -> RunState:
        self.recorder.save()
        return read_run(self.folder)


@pytest.fixture
def tiles(tmp_path: Path) -> Iterator[Tiles]:
    with sharing_memory(tmp_path):
        found = Tiles(tmp_path)
        try:
            yield found
        finally:
            found.let_go()
            found.recorder.abandon()


def of_the_track(run: RunState) -> list[tuple[str, int]]:
    """The regions and payloads of the track that stands, the outermost first."""
    spans = [span for span in run.ranks[0].spans if span.track.block == STANDS]
    return [(span.region, span.payload) for span in spans if span.track.warp <= 0]


@pytest.mark.parametrize(
    "is_per_block", [pytest.param(True, marks=pytest.mark.amd), False], ids=["block", "warp"]
)
def test_what_a_track_is_in_is_shown_until_it_ends(tiles: Tiles, is_per_block: bool) -> None:
    tiles.launch(stands=False, is_per_block=is_per_block)
    assert tiles.look().ranks[0].spans == ()
    tiles.launch(stands=True, is_per_block=is_per_block)
    run = tiles.look()
    assert of_the_track(run) == IN_GEMM
    tile, gemm = [s for s in run.ranks[0].spans if s.track.block == STANDS and s.track.warp <= 0]
    assert str(tile.call) == str(gemm.call) == "call 1 of tiles"
    assert tile.track.warp == gemm.track.warp == (-1 if is_per_block else 0)
    assert tile.start_ticks < gemm.start_ticks
    warp = "" if is_per_block else " warp 0"
    line = f"  rank 0 block 2{warp} is in gemm (inside tile) (call 1 of tiles)"
    assert line in lines_of(make_report(run, diagnose(run), 60.0))
    tiles.let_go()
    assert tiles.look().ranks[0].spans == ()


def test_of_a_track_that_drops_events_nothing_is_said(tiles: Tiles) -> None:
    """What it has ended is not on record either."""
    tiles.launch(stands=False, is_per_block=False, num_tiles=2000)
    tiles.launch(stands=True, is_per_block=False)
    assert of_the_track(tiles.look()) == []


def test_a_rank_that_begins_other_spans_moves() -> None:
    before = Answers(num_events={0: 5, 1: 5}, spans={0: b"tile", 1: b"tile"})
    now = Answers(num_events={0: 5, 1: 5}, spans={0: b"tile", 1: b"gemm"})
    assert moved(before, now) == {1}
