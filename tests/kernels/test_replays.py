"""What a graph does to a launch: one buffer goes to many runs, and every run is a launch of its own in the capture."""

from __future__ import annotations

import ctypes
import gc
from pathlib import Path

import pytest

import kprof
from kprof import abi
from kprof.capture.directory import Capture
from kprof.recording.launcher.record import session
from kprof.recording.rank.recorder import Recorder
from kprof.recording.retention.retention import Retention
from kprof.trace import Trace
from replayed import (
    CONTENTS,
    KERNELS,
    TRACKS,
    WARPS,
    Graph,
    emitted,
    library,
    new_buffer,
    run_kernel,
)

__all__ = ["library"]
pytestmark = pytest.mark.amd


RUNS = (20, 10, 5, 61, 7)


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("flush_after", [(), (0,), (1, 3), (0, 1, 2, 3, 4)])
def test_replays_are_the_launches_that_eager_runs_are(
    library: ctypes.CDLL, tmp_path: Path, seed: int, flush_after: tuple[int, ...]
) -> None:
    captures = {}
    for name in ("eager", "graph"):
        with session(tmp_path / f"{name}.kprof") as directory:
            recorder = Recorder(directory, rank=0, world_size=1, arena_bytes=1 << 20)
            graph = Graph(library, recorder, *KERNELS) if name == "graph" else None
            for number, num_records in enumerate(RUNS):
                if graph:
                    graph.replay(num_records, seed + number)
                for kernel in () if graph else KERNELS:
                    run_kernel(
                        library, kernel, new_buffer(recorder, kernel), num_records, seed + number
                    )
                if number in flush_after:
                    recorder.flush()
            recorder.close()
        captures[name] = Capture.open(tmp_path / f"{name}.kprof")
    eager, replayed = Trace.open(captures["eager"]), Trace.open(captures["graph"])
    assert replayed.frame(CONTENTS).equals(eager.frame(CONTENTS))
    counts = captures["graph"].manifest.ranks[0].counts
    assert (counts.recorded, counts.dropped) == (emitted(KERNELS, RUNS), 0)
    assert (counts.unsplit_launches, counts.torn_chunks, counts.damaged_heads) == (0, 0, 0)
    launches = captures["graph"].manifest.ranks[0].launches
    assert len(launches) == len(RUNS) * len(KERNELS)
    assert [launch.replay for launch in launches] == [r for r in range(len(RUNS)) for _ in KERNELS]


def test_a_replay_without_records_is_a_launch_all_the_same(
    library: ctypes.CDLL, tmp_path: Path
) -> None:
    with kprof.session(tmp_path / "run.kprof", arena_bytes=1 << 20) as recorder:
        graph = Graph(library, recorder, "run_places")
        for num_records in (3, 0, 2):
            graph.replay(num_records)
    trace = Trace.open(tmp_path / "run.kprof")
    assert [launch.replay for launch in trace.ranks[0].launches] == [0, 1, 2]
    assert trace.frame("SELECT ordinal, count(*) AS n FROM events GROUP BY ALL ORDER BY ALL")[
        "ordinal"
    ].tolist() == [0, 2]


@pytest.mark.parametrize("kernel", ["run_marks", "run_places"])
@pytest.mark.parametrize("num_runs", [30, 400])
def test_overflow_is_counted_and_nothing_is_guessed(
    library: ctypes.CDLL, tmp_path: Path, kernel: str, num_runs: int
) -> None:
    with session(tmp_path / "run.kprof") as directory:
        arena_bytes = abi.CHUNKS_OFFSET + 100 * abi.CHUNK_BYTES
        recorder = Recorder(directory, rank=0, world_size=1, arena_bytes=arena_bytes)
        graph = Graph(library, recorder, kernel)
        for number in range(num_runs):
            graph.replay(30, seed=number + 1)
        recorder.flush()
        graph.replay(30)
        recorder.close()
    info = Capture.open(tmp_path / "run.kprof").manifest.ranks[0]
    assert info.counts.recorded + info.counts.dropped == emitted([kernel], [30] * (num_runs + 1))
    assert (info.counts.dropped > 0) == (3 * TRACKS[kernel] * num_runs > 96)
    assert info.counts.unsplit_launches == 0
    tracks = (
        Trace.open(tmp_path / "run.kprof")
        .frame(
            "SELECT launch, block, warp, count(*) AS n, count(DISTINCT payload) AS m FROM events GROUP BY ALL"
        )
        .to_dict("list")
    )
    assert tracks["n"] == tracks["m"], "no launch holds the records of two replays"
    # How many replays were lost is not known, so the one after the flush does not claim to be the next.
    assert {launch.stretch for launch in info.launches} == ({0, 1} if info.counts.dropped else {0})


def test_what_cannot_be_told_apart_stays_whole_and_is_counted(
    library: ctypes.CDLL, tmp_path: Path
) -> None:
    """Block 0 opens no track in the second replay: its third opening could be the second replay's."""
    with kprof.session(tmp_path / "run.kprof", arena_bytes=1 << 20) as recorder:
        graph = Graph(library, recorder, "run_marks", "run_places")
        for first_block in (0, 1, 0):
            graph.replay(5, first_block=first_block)
    capture = Capture.open(tmp_path / "run.kprof")
    info = capture.manifest.ranks[0]
    assert info.counts.unsplit_launches == 1
    assert [(each.kernel, each.replay) for each in info.launches if each.captured < 0] == [
        ("run_marks", 0)
    ]
    assert [each.replay for each in info.launches if each.kernel == "run_places"] == [0, 1, 2]
    recorded = Trace.open(capture).num_events()
    assert recorded == emitted(["run_marks", "run_places"], [5, 5, 5]) - WARPS * 5


def test_eager_launches_and_replays_are_numbered_in_the_order_of_time(
    library: ctypes.CDLL, tmp_path: Path
) -> None:
    with kprof.session(tmp_path / "run.kprof", arena_bytes=1 << 20) as recorder:
        graph = Graph(library, recorder, "run_marks")
        for num_records in (1, 3, 5):
            graph.replay(num_records)
            eager = new_buffer(recorder, "run_marks")
            run_kernel(library, "run_marks", eager, num_records + 1, seed=0)
    marks = Trace.open(tmp_path / "run.kprof").frame(
        "SELECT ordinal, count(*) AS n FROM events WHERE block = 0 GROUP BY ALL ORDER BY ALL"
    )
    assert marks["n"].tolist() == [WARPS * n for n in (1, 2, 3, 4, 5, 6)]
    assert marks["ordinal"].tolist() == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("drain", [False, True])
def test_a_graph_that_outlives_its_recorder_writes_nothing(
    library: ctypes.CDLL, tmp_path: Path, drain: bool
) -> None:
    with session(tmp_path / "run.kprof") as directory:
        recorder = Recorder(
            directory, rank=0, world_size=1, arena_bytes=1 << 20, retention=Retention(drain)
        )
        graph = Graph(library, recorder, *KERNELS)
        graph.replay(7)
        turns = recorder._turns
        recorder.close()
    del recorder
    gc.collect()
    graph.replay(50)
    for arena in turns.arenas:
        assert arena.state().num_used_chunks == 0
    assert Trace.open(tmp_path / "run.kprof").num_events() == emitted(KERNELS, [7])


def test_recording_goes_on_and_off_between_replays(library: ctypes.CDLL, tmp_path: Path) -> None:
    """A graph that was captured during a pause is recorded after it, without being captured again."""
    with kprof.session(tmp_path / "run.kprof", arena_bytes=1 << 20) as recorder:
        recorder.pause()
        graph = Graph(library, recorder, *KERNELS)
        assert new_buffer(recorder, "run_marks").arena == 0
        graph.replay(50)
        recorder.resume()
        graph.replay(7)
        recorder.pause()
        graph.replay(50)
        recorder.flush()
        graph.replay(50)
        recorder.resume()
        graph.replay(9)
    info = Capture.open(tmp_path / "run.kprof").manifest.ranks[0]
    assert (info.counts.recorded, info.counts.dropped) == (emitted(KERNELS, [7, 9]), 0)
    assert info.counts.damaged_heads == 0
    assert [launch.replay for launch in info.launches] == [0] * 3 + [1] * 3
