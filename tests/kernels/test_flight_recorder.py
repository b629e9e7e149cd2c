"""A ring of arenas: what stays in it, who writes it and when, and what the capture says about it."""

from __future__ import annotations

import ctypes
import os
import re
import signal
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec
import numpy as np
import pytest

import kprof
from drained import RING, by_hand, look, steps
from kprof import abi
from kprof.capture.journal import Begun, Dump, said
from kprof.capture.parts import recover_rank
from kprof.errors import RecorderError
from kprof.recording.endings import lifetime
from kprof.recording.finishing.finishing import make_manifest
from kprof.recording.launcher import record
from kprof.recording.rank.recorder import Recorder
from kprof.recording.retention.call_lengths import CallsOfAny, SlowCalls
from kprof.recording.retention.retention import Retention
from kprof.trace import Trace
from replayed import KERNELS, TRACKS, emitted, library, new_buffer, run_kernel

__all__ = ["by_hand", "library"]

LEAST_CHUNKS_PER_STEP = 3 * sum(TRACKS[kernel] for kernel in KERNELS)


def run(
    library: ctypes.CDLL, recorder: Recorder, num_steps: int, is_graph: bool = False
) -> list[int]:
    sizes = []
    for num_records in steps(library, recorder, num_steps, is_graph):
        sizes.append(num_records)
        look(recorder)
        look(recorder)
        if is_graph:
            # Graphs change arenas here only, and the next replay may not fit any more.
            recorder.step()
    return sizes


def kept_steps(trace: Trace) -> list[int]:
    """The steps whose three launches are there, each whole."""
    launches = trace.ranks[0].launches
    assert len(launches) % len(KERNELS) == 0
    return [launch.ordinal for launch in launches if launch.kernel == "run_places"]


def test_the_last_steps_stay(library: ctypes.CDLL, tmp_path: Path, by_hand: None) -> None:
    with kprof.session(tmp_path / "run.kprof", retention=RING) as recorder:
        sizes = run(library, recorder, 100)
        assert recorder._turns.arenas[0].geometry.num_chunks == 64
    trace = Trace.open(tmp_path / "run.kprof")
    kept = kept_steps(trace)
    assert kept == list(range(100 - len(kept), 100))
    assert len(kept) < 80
    assert len(kept) * 2 * LEAST_CHUNKS_PER_STEP * abi.CHUNK_BYTES >= RING.ring_bytes
    counts = trace.ranks[0].counts
    assert (counts.recorded, counts.dropped) == (emitted(KERNELS, sizes[-len(kept) :]), 0)
    (note,) = trace.ranks[0].notes
    assert note.startswith("the end of the run: from ")
    assert note.endswith("what came before was overwritten")


def test_replays_of_a_graph_stay_too(library: ctypes.CDLL, tmp_path: Path, by_hand: None) -> None:
    with kprof.session(tmp_path / "run.kprof", retention=RING) as recorder:
        sizes = run(library, recorder, 100, is_graph=True)
    info = Trace.open(tmp_path / "run.kprof").ranks[0]
    num_kept = len(info.launches) // len(KERNELS)
    assert info.counts.recorded == emitted(KERNELS, sizes[-num_kept:])
    assert (info.counts.dropped, info.counts.unsplit_launches) == (0, 0)
    # Nobody knows how many replays were overwritten, so none claims to be the first of all.
    assert {launch.stretch for launch in info.launches} != {0}


@pytest.mark.parametrize("tracks_per_block", [0, TRACKS["run_marks"]])
def test_launches_say_when_to_look(
    library: ctypes.CDLL, tmp_path: Path, by_hand: None, tracks_per_block: int
) -> None:
    """A few of them fill an arena, long before the look that comes every 50 ms."""
    num_launches, num_looks = 200, 0
    with kprof.session(tmp_path / "run.kprof", retention=RING) as recorder:
        drainer = recorder._drainer
        assert drainer is not None
        for seed in range(num_launches):
            buffer = recorder.launch(
                "run_marks", ["mark", "place"], num_blocks=3, tracks_per_block=tracks_per_block
            )
            run_kernel(library, "run_marks", buffer, 20, seed)
            if drainer._wake.hear(0):
                num_looks += 1
                while drainer.look():
                    pass
    info = Trace.open(tmp_path / "run.kprof").ranks[0]
    assert info.counts.dropped == 0
    assert info.counts.recorded == emitted(["run_marks"], [20] * len(info.launches))
    assert num_looks < num_launches


def test_launches_take_no_lock_that_a_signal_handler_could_find_held(
    library: ctypes.CDLL, tmp_path: Path, by_hand: None
) -> None:
    """A handler that launches would wait for it for ever, and one that raises leave it held."""
    called = set[str]()

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_filename == threading.__file__:
            called.add(frame.f_code.co_qualname)

    with kprof.session(tmp_path / "run.kprof", retention=RING) as recorder:
        first = recorder._turns.active
        sys.setprofile(note)
        try:
            for _ in steps(library, recorder, 20, is_graph=False):
                recorder._drainer.is_due = True  # type: ignore[union-attr]
        finally:
            sys.setprofile(None)
        assert recorder._turns.active is not first
    assert called == set()


def test_a_ring_that_is_too_small_says_so(
    library: ctypes.CDLL, tmp_path: Path, by_hand: None
) -> None:
    """An --arena-size would not help."""
    with kprof.session(tmp_path / "run.kprof", retention=RING) as recorder:
        for _ in steps(library, recorder, 100, is_graph=True):
            pass
    info = Trace.open(tmp_path / "run.kprof").ranks[0]
    assert info.counts.dropped > 0
    assert info.arena.needed_bytes == 0
    assert info.notes[-1] == (
        f"{info.counts.dropped:,} events came faster than the ring was emptied, or a launch needs "
        "more than 1/32 of it; a larger --ring has room for more of them at once"
    )


def test_launches_that_do_not_fit_the_ring_did_not_come_too_fast(
    library: ctypes.CDLL, tmp_path: Path, by_hand: None
) -> None:
    """Arenas of two chunks, launches of three tracks."""
    retention = Retention(ring_bytes=8 * (abi.CHUNKS_OFFSET + 2 * abi.CHUNK_BYTES))
    with kprof.session(tmp_path / "run.kprof", retention=retention) as recorder:
        run_kernel(library, "run_places", new_buffer(recorder, "run_places"), 10, seed=1)
    info = Trace.open(tmp_path / "run.kprof").ranks[0]
    assert "a launch of run_places opens 3 tracks, and only 2 fit" in info.notes[0]
    assert info.notes[-1] == (
        f"{info.counts.dropped:,} events had no room in their part of the ring; "
        "a larger --ring has room for more of them at once"
    )


def test_a_dump_without_a_ring_says_so_once(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with kprof.session(tmp_path / "run.kprof") as recorder:
        recorder.dump("it looked wrong")
        recorder.dump("again")
    (line,) = capfd.readouterr().err.splitlines()
    assert "rank 0: dump('it looked wrong') writes nothing: this recording has no ring" in line


def test_a_dump_keeps_what_came_before_it_on_all_ranks(
    library: ctypes.CDLL, tmp_path: Path, by_hand: None
) -> None:
    with record.session(tmp_path / "run.kprof") as directory:
        recorders = [Recorder(directory, rank=k, world_size=2, retention=RING) for k in (0, 1)]
        sizes = [run(library, recorder, 50) for recorder in recorders]
        recorders[0].dump("it looked wrong")
        for recorder in recorders:
            for _ in range(20):
                look(recorder)
                recorder.step()
            run(library, recorder, 100)
            recorder.close()
    trace = Trace.open(tmp_path / "run.kprof")
    for info in trace.ranks:
        dump, end = info.notes
        assert dump.startswith("dump 0 of rank 0 (it looked wrong): ")
        assert end.startswith("the end of the run: ")
        ordinals = [launch.ordinal for launch in info.launches if launch.kernel == "run_places"]
        dumped = [ordinal for ordinal in ordinals if ordinal < 50]
        assert len(dumped) > 10
        assert dumped == list(range(50 - len(dumped), 50))
        assert "): from " in dump
        assert max(ordinals) == 149
    assert all(len(each) == 50 for each in sizes)


def test_a_dump_just_before_the_end_says_why(
    library: ctypes.CDLL, tmp_path: Path, by_hand: None
) -> None:
    """The end of the run writes the ring."""
    with kprof.session(tmp_path / "run.kprof", retention=RING) as recorder:
        run(library, recorder, 5)
        recorder.dump("loss is NaN")
        recorder.step()
        look(recorder)
        recorder.dump("again")
    first, second, end = Trace.open(tmp_path / "run.kprof").ranks[0].notes
    assert first == "dump 0 of rank 0 (loss is NaN): just before the end of the run"
    assert second == "dump 1 of rank 0 (again): just before the end of the run"
    assert end.startswith("the end of the run: ")


def test_a_rank_that_makes_no_calls_saves_what_it_has(
    library: ctypes.CDLL, tmp_path: Path, by_hand: None
) -> None:
    """Its process is killed later: what it saved is there."""
    with record.session(tmp_path / "run.kprof") as directory:
        recorder = Recorder(directory, rank=0, world_size=1, retention=RING)
        sizes = run(library, recorder, 5)
        recorder.dump("hung")
        for _ in range(60):
            look(recorder)
        info = recover_rank(directory, 0)
        assert info is not None
        assert info.counts.recorded == emitted(KERNELS, sizes)
        assert "it was saved while it did not answer" in info.cut_short
        (note,) = info.notes
        assert note.startswith("dump 0 of rank 0 (hung): from ")


def test_what_a_killed_rank_had_dumped_remains(
    library: ctypes.CDLL, tmp_path: Path, by_hand: None
) -> None:
    directory = tmp_path / "run.kprof.unfinished"
    directory.mkdir()
    recorder = Recorder(directory, rank=0, world_size=1, retention=RING)
    run(library, recorder, 50)
    recorder.dump("first")
    look(recorder)
    recorder.step()
    for _ in range(20):
        look(recorder)
    run(library, recorder, 4)
    recorder.abandon()
    lifetime.discard(directory, 0)
    (info,) = make_manifest(directory, Begun(("run",), "2026", 1), None).ranks
    ordinals = [launch.ordinal for launch in info.launches if launch.kernel == "run_places"]
    # Of the 12 launches after the dump, it goes by the scheduler how soon they fill a ring's arena.
    assert ordinals == list(range(ordinals[0], ordinals[-1] + 1))
    assert ordinals[-1] >= 49
    lost = re.search(r"; the last (\d+) of its 162 launches are lost$", info.cut_short)
    assert lost is not None
    assert int(lost[1]) <= 12
    (note,) = info.notes
    assert note.startswith("dump 0 of rank 0 (first): from ")


def test_a_call_slower_than_the_median_asks_for_a_dump() -> None:
    asked: list[str] = []
    times_s = iter([0.0, *(1.0 + 1.0 * k for k in range(30)), 33.5, 34.5, 37.7])
    calls = SlowCalls(3, asked.append, lambda: next(times_s))
    for _ in range(31):
        calls.note_step()
    assert asked == []
    calls.note_step()
    assert asked == ["a call took 3,500.00 ms, the median is 1,000.00 ms"]
    calls.note_step()
    calls.note_step()
    assert len(asked) == 2


def test_the_slow_call_is_in_the_capture(
    library: ctypes.CDLL, tmp_path: Path, by_hand: None
) -> None:
    retention = Retention(ring_bytes=RING.ring_bytes, slower_than=3)
    with kprof.session(tmp_path / "run.kprof", retention=retention) as recorder:
        assert recorder._drainer is not None
        assert recorder._drainer.calls is not None
        now_s = [0.0]
        recorder._drainer.calls._now_s = lambda: now_s[0]
        for _ in steps(library, recorder, 150, is_graph=False):
            now_s[0] += 10.0 if recorder._num_steps == 40 else 1.0
            look(recorder)
            look(recorder)
    trace = Trace.open(tmp_path / "run.kprof")
    launches = trace.ranks[0].launches
    assert {30, 40} <= {each.ordinal for each in launches if each.kernel == "run_places"}
    assert "(a call took 10,000.00 ms, the median is 1,000.00 ms)" in trace.ranks[0].notes[0]


def test_a_signal_for_kprof_asks_for_a_dump(tmp_path: Path) -> None:
    previous = signal.getsignal(signal.SIGUSR1)
    try:
        request = record.RecordRequest((), tmp_path, retention=RING)
        record._dump_on_signal(tmp_path, request, print)
        os.kill(os.getpid(), signal.SIGUSR1)
        os.kill(os.getpid(), signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, previous)
    assert said(tmp_path, None, Dump) == [Dump("SIGUSR1"), Dump("SIGUSR1")]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"drain": True, "ring_bytes": 1 << 20}, "choose one of them"),
        ({"slower_than": 3.0}, "has no ring; record with --ring 64MiB, in Python"),
        ({"keep_slowest": 3, "drain": True}, "choose one of them"),
        ({"keep_slowest": 3, "ring_bytes": 1 << 20}, "choose one of them"),
        ({"keep_slowest": 3, "slower_than": 2.0}, "this recording has no ring"),
        ({"keep_slowest": -1}, "-1 is no number of slowest calls to keep; give 1 to 1000"),
        ({"keep_slowest": 1001}, "give 1 to 1000, or drain to keep all calls"),
        ({"keep_slowest": 2.5}, "keep_slowest is 2.5: give a whole number"),
        ({"ring_bytes": 1000}, "give at least 106496 bytes"),
        ({"ring_bytes": -1}, "a ring of -1 bytes has no room"),
        ({"ring_bytes": 64e6}, "ring_bytes is 64000000.0: give a whole number"),
        ({"ring_bytes": "1MiB"}, "ring_bytes is '1MiB': give a whole number"),
        ({"drain": "no"}, "drain is 'no': give True or False"),
        ({"in_host_memory": 1}, "in_host_memory is 1: give True or False"),
        ({"ring_bytes": 1 << 20, "slower_than": 1.0}, "give more than 1, like 3"),
        ({"ring_bytes": 1 << 20, "slower_than": float("inf")}, "slower_than is inf: give a number"),
        ({"ring_bytes": 1 << 20, "slower_than": float("nan")}, "slower_than is nan: give a number"),
        ({"ring_bytes": 1 << 20, "slower_than": "3"}, "slower_than is '3': give a number"),
    ],
)
def test_what_contradicts_itself_is_refused(arguments: dict[str, object], sentence: str) -> None:
    with pytest.raises(RecorderError, match=sentence):
        Retention(**arguments)


def test_the_numbers_of_a_retention_may_be_of_any_kind() -> None:
    fields: dict[str, Any] = {"ring_bytes": np.int64(1 << 20), "slower_than": np.float32(3)}
    retention = Retention(**fields)
    assert retention == Retention(ring_bytes=1 << 20, slower_than=3.0)
    assert msgspec.json.decode(msgspec.json.encode(retention), type=Retention) == retention


@pytest.mark.parametrize(
    ("retention", "size"), [(RING, "--ring 16MiB"), (Retention(drain=True), "--arena-size 4MiB")]
)
def test_a_launch_with_more_tracks_than_chunks_says_so(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], retention: Retention, size: str
) -> None:
    arguments = {"retention": retention, "arena_bytes": 1 << 20}
    with kprof.session(tmp_path / "run.kprof", **arguments) as recorder:
        for _ in range(2):
            recorder.launch("wide", ["mark"], num_blocks=250, tracks_per_block=8)
    (note, *_) = Trace.open(tmp_path / "run.kprof").ranks[0].notes
    assert "a launch of wide opens 2000 tracks, and only" in note
    assert note.endswith(f"give at least {size}")
    assert capfd.readouterr().err.count("opens 2000 tracks") == 1


def test_calls_begin_with_what_comes_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kprof.recording.retention.call_lengths._LONGEST_CALL", 5)
    calls = CallsOfAny()
    began = [calls.note_launch(kernel) for kernel in ["warm-up", *"abc" * 4]]
    assert began == [True, *[False] * 4, True, *[False, False, True] * 2, False]


def test_calls_of_graphs_begin_with_the_graph_that_was_replayed_first() -> None:
    calls = CallsOfAny()
    assert calls.note_launch("warm-up")
    began = [calls.note_replay(graph) for graph in (7, 8, 7, 8)]
    assert began == [True, False, True, False]
    assert not calls.note_launch("warm-up")
    calls.note_step()
    assert not calls.note_replay(7)
