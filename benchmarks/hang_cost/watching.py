"""What watching costs the process that started a run: CPU time of a look every second."""

from __future__ import annotations

import statistics
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from benchmarks.harness import spread
from kprof.capture.claims import Claim
from kprof.capture.journal import Kernel, say
from kprof.capture.shared_memory import make_memory, remove_memory
from kprof.capture.started import announce_rank
from kprof.hangs.lines import NUM_LINES, WAIT_LINE, WaitsWriter
from kprof.hangs.watch import Directory, Watch
from kprof.rank_memory import NUM_RECENT, RECENT_BYTES, pack_recent
from kprof.regions import RegionTable

NUM_RANKS = 8
# Of a GPU of 132 SMs with 8 warps each.
NUM_TRACKS = 1056


class Run:
    """Eight ranks of this process; every track of each waits for long."""

    def __init__(self, directory: Path) -> None:
        self._claims = [Claim(directory, rank) for rank in range(NUM_RANKS)]
        self._writers = [WaitsWriter(directory, rank, NUM_RANKS) for rank in range(NUM_RANKS)]
        regions = RegionTable.from_header(Path(__file__).parent / "regions.h")
        for rank in range(NUM_RANKS):
            say(directory, rank, Kernel("exchange", regions))
            announce_rank(directory, rank, NUM_RANKS)
        self._num_launches = 0

    def launch(self) -> None:
        """The next launch of every rank, in which all tracks wait anew."""
        for claim, writer in zip(self._claims, self._writers, strict=True):
            claim.progress[0] += 1
            claim.progress[1] += 1
            number = self._num_launches
            place = number % NUM_RECENT * RECENT_BYTES
            pack_recent(writer.recent, place, 0, NUM_TRACKS, number, number + 1)
            writer.note_finished(number)
            writer.write_lines(self._lines())
        self._num_launches += 1

    def _lines(self) -> np.ndarray:
        lines = np.zeros(NUM_LINES, WAIT_LINE)
        lines["launch"][:NUM_TRACKS] = self._num_launches
        lines["block"][:NUM_TRACKS] = np.arange(NUM_TRACKS) // 8
        lines["warp"][:NUM_TRACKS] = np.arange(NUM_TRACKS) % 8
        lines["region"][:NUM_TRACKS] = 1
        return lines


def measure_watching(num_looks: int, interval_s: float = 1.0) -> dict[str, object]:
    """CPU time of a look, of a run that moves between two looks and of one that stands."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        make_memory(directory)
        stack.callback(remove_memory, directory)
        run = Run(directory)
        run.launch()
        # It never asks: that comes once in `after_s`, and ranks answer it.
        watch = Watch(Directory(directory), after_s=1e9)
        moving, standing = list[float](), list[float]()
        for k in range(2 * num_looks):
            if k % 2 == 0:
                run.launch()
            begin_s = time.thread_time()
            watch.step(k * interval_s)
            (standing if k % 2 else moving).append(1e3 * (time.thread_time() - begin_s))
    return {
        "ranks": NUM_RANKS,
        "tracks that wait, per rank": NUM_TRACKS,
        "looks": num_looks,
        "look at a run that moves, ms": spread(moving),
        "look at a run that stands, ms": spread(standing),
        "percent of a core, a look every second": round(
            statistics.mean(moving) / (10 * interval_s), 3
        ),
    }
