"""The slowest calls of a long run are kept, the same ones of every rank, and nothing else."""

from __future__ import annotations

import ctypes
import random
from pathlib import Path
from typing import Any

import kprof
from drained import by_hand, look
from kprof import abi
from kprof.capture.journal import Begun
from kprof.recording.endings import lifetime
from kprof.recording.finishing.finishing import make_manifest
from kprof.recording.launcher import record
from kprof.recording.rank.recorder import Recorder
from kprof.recording.retention.retention import Retention
from kprof.recording.retention.slowest import KeepSlowest
from kprof.trace import Trace
from replayed import CONTENTS, KERNELS, Graph, emitted, library, new_buffer, run_kernel

__all__ = ["by_hand", "library"]
KEEP = Retention(keep_slowest=4)
# Four arenas of 64 chunks: a call takes up to 15 of them.
ARENA_BYTES = 4 * (abi.CHUNKS_OFFSET + 64 * abi.CHUNK_BYTES)


class Clock:
    """What a workload's clock shows; `now_s` is set by hand."""

    def __init__(self, *recorders: kprof.Recorder) -> None:
        self.now_s = 0.0
        for recorder in recorders:
            assert recorder._drainer is not None
            assert recorder._drainer.calls is not None
            recorder._drainer.calls._now_s = lambda: self.now_s


def lengths_of(num_calls: int, seed: int) -> list[float]:
    lengths = [1.0 + k / 1000 for k in range(num_calls)]
    random.Random(seed).shuffle(lengths)
    return lengths


def slowest(lengths: list[float], num_kept: int = 4) -> list[int]:
    return sorted(sorted(range(len(lengths)), key=lengths.__getitem__)[-num_kept:])


def call(library: ctypes.CDLL, recorder: kprof.Recorder, number: int) -> int:
    """Runs the kernels of a call; returns how many records each of their tracks wrote."""
    num_records = random.Random(number).randrange(1, 61)
    for kernel in KERNELS:
        run_kernel(library, kernel, new_buffer(recorder, kernel), num_records, seed=number + 1)
    return num_records


def two_ranks(directory: Path, **options: Any) -> list[Recorder]:
    keep = {"retention": KEEP, "arena_bytes": ARENA_BYTES, **options}
    return [Recorder(directory, rank=rank, world_size=2, **keep) for rank in (0, 1)]


def size_of(number: int) -> int:
    return random.Random(number).randrange(1, 61)


def kept_calls(trace: Trace, rank: int = 0) -> list[int]:
    """The calls whose three launches are there."""
    by_kernel = [
        [each.ordinal for each in trace.ranks[rank].launches if each.kernel == kernel]
        for kernel in dict.fromkeys(KERNELS)
    ]
    times = [KERNELS.count(kernel) for kernel in dict.fromkeys(KERNELS)]
    calls = [
        sorted({ordinal // n for ordinal in each}) for each, n in zip(by_kernel, times, strict=True)
    ]
    assert all(each == calls[0] for each in calls)
    assert sum(map(len, by_kernel)) == len(KERNELS) * len(calls[0])
    return calls[0]


def assert_whole(trace: Trace, calls: list[int], rank: int = 0) -> None:
    assert kept_calls(trace, rank) == calls
    counts = trace.ranks[rank].counts
    assert (counts.recorded, counts.dropped) == (emitted(KERNELS, list(map(size_of, calls))), 0)
    assert (counts.torn_chunks, counts.torn_records, counts.stray_chunks) == (0, 0, 0)


def test_they_are_what_a_large_arena_holds_of_these_calls(
    library: ctypes.CDLL, tmp_path: Path, by_hand: None
) -> None:
    lengths = lengths_of(80, seed=3)
    with kprof.session(tmp_path / "run.kprof", retention=KEEP, arena_bytes=ARENA_BYTES) as recorder:
        clock = Clock(recorder)
        for number, length_s in enumerate(lengths):
            call(library, recorder, number)
            clock.now_s += length_s
            recorder.step()
            look(recorder)
            assert len(list(tmp_path.glob("run.kprof.unfinished/part-*"))) <= 8
    with kprof.session(tmp_path / "all.kprof") as recorder:
        for number in range(80):
            call(library, recorder, number)
    kept, whole = (Trace.open(tmp_path / name) for name in ("run.kprof", "all.kprof"))
    assert_whole(kept, slowest(lengths))
    launches = ", ".join(str(each.launch) for each in kept.ranks[0].launches)
    expected = CONTENTS.replace("FROM events", f"FROM events WHERE launch IN ({launches})")
    assert kept.frame(CONTENTS).equals(whole.frame(expected))
    first, last = kept.ranks[0].notes
    assert first == "only the 4 slowest calls of this run are kept"
    worst = max(range(80), key=lengths.__getitem__)
    assert last.startswith(f"the 4 slowest of 80 calls: {worst} (1,079.00 ms), ")


def test_without_steps_the_first_kernel_begins_a_call(
    library: ctypes.CDLL, tmp_path: Path, by_hand: None
) -> None:
    """The last call has no end, so nobody knows how long it takes."""
    lengths = lengths_of(60, seed=5)
    with kprof.session(tmp_path / "run.kprof", retention=KEEP, arena_bytes=ARENA_BYTES) as recorder:
        clock = Clock(recorder)
        for number, length_s in enumerate([*lengths, 50.0]):
            size = size_of(number)
            for kernel in ("run_marks", "run_places"):
                run_kernel(library, kernel, new_buffer(recorder, kernel), size, seed=number + 1)
            clock.now_s += length_s
            look(recorder)
    trace = Trace.open(tmp_path / "run.kprof")
    expected = slowest(lengths)
    assert [each.ordinal for each in trace.ranks[0].launches] == [k for k in expected for _ in "ab"]
    assert trace.ranks[0].counts.recorded == emitted(
        ["run_marks", "run_places"], [size_of(k) for k in expected]
    )


def test_all_are_kept_where_there_are_fewer(
    library: ctypes.CDLL, tmp_path: Path, by_hand: None
) -> None:
    retention = Retention(keep_slowest=1000)
    with kprof.session(
        tmp_path / "run.kprof", retention=retention, arena_bytes=ARENA_BYTES
    ) as recorder:
        for number in range(30):
            call(library, recorder, number)
            recorder.step()
            look(recorder)
            look(recorder)
    trace = Trace.open(tmp_path / "run.kprof")
    assert_whole(trace, list(range(30)))
    assert trace.ranks[0].notes[1].endswith("and 20 more")


def test_what_is_paused_is_no_call(library: ctypes.CDLL, tmp_path: Path, by_hand: None) -> None:
    with kprof.session(
        tmp_path / "run.kprof",
        retention=KEEP,
        arena_bytes=ARENA_BYTES,
        schedule=kprof.schedule(wait=1, warmup=0, active=1),
    ) as recorder:
        clock = Clock(recorder)
        for number in range(40):
            call(library, recorder, number)
            clock.now_s += 100.0 if number % 2 == 0 else 1.0 + number / 1000
            recorder.step()
            look(recorder)
    launches = Trace.open(tmp_path / "run.kprof").ranks[0].launches
    # Paused launches are not counted.
    assert sorted({each.ordinal for each in launches if each.kernel == "run_places"}) == [
        16, 17, 18, 19
    ]  # fmt: skip


def test_a_run_without_a_whole_call_says_so(
    library: ctypes.CDLL, tmp_path: Path, by_hand: None
) -> None:
    with kprof.session(tmp_path / "run.kprof", retention=KEEP) as recorder:
        run_kernel(library, "run_marks", new_buffer(recorder, "run_marks"), 5, seed=1)
        recorder.flush()
    info = Trace.open(tmp_path / "run.kprof").ranks[0]
    assert (info.counts.recorded, info.launches) == (0, ())
    assert info.notes[1].startswith("no call ended, so none is kept; a call ends with")


def test_replays_come_with_the_calls_next_to_them(
    library: ctypes.CDLL, tmp_path: Path, by_hand: None
) -> None:
    """Nobody knows which replay belongs to which call, so none is guessed."""
    with kprof.session(
        tmp_path / "run.kprof", retention=Retention(keep_slowest=1), arena_bytes=2 * ARENA_BYTES
    ) as recorder:
        clock = Clock(recorder)
        graph = Graph(library, recorder, *KERNELS)
        stretches: list[list[int]] = [[]]
        for number in range(60):
            graph.replay(size_of(number), seed=number + 1)
            stretches[-1].append(number)
            clock.now_s += 10.0 if number == 40 else 1.0 + number / 1000
            active = recorder._turns.active
            recorder.step()
            if recorder._turns.active is not active:
                stretches.append([])
            look(recorder)
    trace = Trace.open(tmp_path / "run.kprof")
    (expected,) = [each for each in stretches if 40 in each]
    assert 1 < len(expected) < 20
    counts = trace.ranks[0].counts
    assert counts.recorded == emitted(KERNELS, [size_of(k) for k in expected])
    assert (counts.dropped, counts.unsplit_launches) == (0, 0)
    assert len(trace.ranks[0].launches) == len(KERNELS) * len(expected)
    assert trace.ranks[0].notes[1] == (
        "the slowest of 60 calls: 40 (10,000.00 ms); "
        "with the calls next to them, because a graph was replayed"
    )


def test_all_ranks_keep_the_same_calls(library: ctypes.CDLL, tmp_path: Path, by_hand: None) -> None:
    """A call is as slow as its slowest rank says; rank 1 is up to six calls behind."""
    lengths = [lengths_of(60, seed) for seed in (1, 2)]
    with record.session(tmp_path / "run.kprof") as directory:
        recorders = two_ranks(directory)
        clocks = [Clock(recorder) for recorder in recorders]
        numbers = [0, 0]
        choice = random.Random(9)
        while min(numbers) < 60:
            behind = numbers[0] - numbers[1]
            rank = (
                1 if numbers[0] == 60 or behind == 6 else 0 if behind == 0 else choice.randrange(2)
            )
            call(library, recorders[rank], numbers[rank])
            clocks[rank].now_s += lengths[rank][numbers[rank]]
            recorders[rank].step()
            numbers[rank] += 1
            for recorder in recorders:
                look(recorder)
        for recorder in recorders:
            recorder.close()
    trace = Trace.open(tmp_path / "run.kprof")
    expected = slowest([max(pair) for pair in zip(*lengths, strict=True)])
    for rank in (0, 1):
        assert_whole(trace, expected, rank)
    assert trace.ranks[0].notes == trace.ranks[1].notes


def test_a_rank_that_is_far_behind_costs_no_events(
    library: ctypes.CDLL, tmp_path: Path, by_hand: None
) -> None:
    """Rank 1 makes no call: rank 0 waits for it only while it has a free arena."""
    lengths = lengths_of(40, seed=4)
    with record.session(tmp_path / "run.kprof") as directory:
        recorders = two_ranks(directory)
        clock = Clock(recorders[0])
        most = 0
        for number, length_s in enumerate(lengths):
            call(library, recorders[0], number)
            clock.now_s += length_s
            recorders[0].step()
            look(recorders[0])
            most = max(most, len(recorders[0]._turns.retired))
        for recorder in recorders:
            recorder.close()
    assert most == 2
    assert_whole(Trace.open(tmp_path / "run.kprof"), slowest(lengths))


def test_a_rank_that_is_left_out_is_not_waited_for(
    library: ctypes.CDLL, tmp_path: Path, by_hand: None
) -> None:
    with record.session(tmp_path / "run.kprof") as directory:
        recorders = two_ranks(directory, wanted=kprof.Wanted(ranks=(0,)))
        look(recorders[1])
        for number in range(40):
            call(library, recorders[0], number)
            recorders[0].step()
            look(recorders[0])
            assert len(recorders[0]._turns.retired) <= 1
        for recorder in recorders:
            recorder.close()


def test_what_a_killed_rank_had_written_remains(
    library: ctypes.CDLL, tmp_path: Path, by_hand: None
) -> None:
    directory = tmp_path / "run.kprof.unfinished"
    directory.mkdir()
    recorder = Recorder(directory, rank=0, world_size=1, retention=KEEP, arena_bytes=ARENA_BYTES)
    clock = Clock(recorder)
    lengths = lengths_of(60, seed=6)
    for number, length_s in enumerate(lengths):
        call(library, recorder, number)
        clock.now_s += length_s
        recorder.step()
        look(recorder)
    retired = sum(len(each.launches) for each in recorder._drainer._stretches)  # type: ignore
    num_decided = 60 - retired - len(recorder._drainer.calls._launches)  # type: ignore
    recorder.abandon()
    lifetime.discard(directory, 0)
    (info,) = make_manifest(directory, Begun(("run",), "2026", 1), None).ranks
    calls = [each.ordinal for each in info.launches if each.kernel == "run_places"]
    # A part is removed when the next one is written.
    assert set(slowest(lengths[:num_decided])) <= set(calls)
    assert len(calls) <= 8
    assert info.counts.recorded == emitted(KERNELS, list(map(size_of, calls)))
    assert info.notes == ("only the 4 slowest calls of this run are kept",)


def test_the_first_step_ends_the_first_call(
    library: ctypes.CDLL, tmp_path: Path, by_hand: None
) -> None:
    """Before it, each launch of the first kernel looked like a call."""
    with kprof.session(
        tmp_path / "run.kprof", retention=KEEP, arena_bytes=4 * ARENA_BYTES
    ) as recorder:
        clock = Clock(recorder)
        for number in range(8):
            for _ in range(3):
                call(library, recorder, number)
                clock.now_s += 1.0 + number
            recorder.step()
            look(recorder)
    trace = Trace.open(tmp_path / "run.kprof")
    assert trace.ranks[0].counts.recorded == emitted(
        KERNELS, [size_of(k) for k in (4, 5, 6, 7) for _ in range(3)]
    )
    assert trace.ranks[0].notes[1].startswith("the 4 slowest of 8 calls: 7 (24,000.00 ms), 6 ")


def test_the_thread_keeps_the_same_calls(library: ctypes.CDLL, tmp_path: Path) -> None:
    lengths = lengths_of(30, seed=8)
    with kprof.session(tmp_path / "run.kprof", retention=KEEP) as recorder:
        assert isinstance(recorder._drainer, KeepSlowest)
        clock = Clock(recorder)
        for number, length_s in enumerate(lengths):
            call(library, recorder, number)
            clock.now_s += length_s
            recorder.step()
    assert_whole(Trace.open(tmp_path / "run.kprof"), slowest(lengths))
