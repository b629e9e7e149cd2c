"""The clock calibration on the CPU target, against clocks that were planted: the truth is known."""

from __future__ import annotations

import itertools
import time
from pathlib import Path

import msgspec
import pytest
from planted_clocks import calibrate, random_plants
from thread_ranks import ThreadGroup, run_threads

from kprof.capture.directory import Capture
from kprof.clocks.calibration import Calibrator, all_pairs, load_calibration, measure_clock
from kprof.clocks.keeper import Cadence
from kprof.clocks.offset import OffsetSample, Pair
from kprof.devices.build import error_text
from kprof.devices.groups import PartOfGroup
from kprof.devices.targets import Target
from kprof.recording.launcher.record import session
from kprof.recording.rank.null_recorder import RefusedRecorder
from kprof.recording.rank.recorder import Recorder


def test_planted_clocks_are_aligned_within_the_bound() -> None:
    results = [calibrate(random_plants(seed, 2)) for seed in range(8)]
    assert sum(result.num_outside() for result in results) == 0
    assert all(max(result.errors_ns().values()) > 0 for result in results)
    # No wider than what was measured; how narrow that is depends on the machine's load.
    for result in results:
        assert result.alignment.bound_between_ns(0, 1) <= 2 * result.widest_sample_ns


def test_three_ranks_that_all_play_are_aligned_within_the_bound() -> None:
    results = [calibrate(random_plants(seed, 3), turns_of=all_pairs) for seed in range(100, 102)]
    assert sum(result.num_outside() for result in results) == 0
    # One lane cannot tell a way from a short way: nothing better than causality is stated.
    for pair in results[0].alignment.pairs:
        assert pair.bound_ns == pair.rigorous_bound_ns
        assert pair.residue_ns is None


def test_ranks_on_different_hosts_are_aligned_by_way_of_their_hosts() -> None:
    """Ranks 0 and 2 pretend to be on one host, 1 and 3 on another."""
    result = calibrate(random_plants(7, 4), host_of=lambda rank: f"host{rank % 2}")
    assert result.num_outside() == 0
    assert "host clocks between 2 hosts" in result.alignment.method
    rounds = {(pair.a, pair.b): pair.num_rounds for pair in result.alignment.pairs}
    # Neighbours play, leaders meet in barriers, and nobody else is compared.
    assert {pair for pair, number in rounds.items() if number} == {(0, 1), (0, 2), (1, 3)}


@pytest.mark.timeout(600)
def test_ranks_that_measure_other_steps_play_the_same_games() -> None:
    """A rank with a coarser step finds every bound too wide: alone, it would wait for partners."""

    def work(group: ThreadGroup) -> list[dict[Pair, OffsetSample]]:
        clock = measure_clock("cpu")
        if group.rank == 1:
            clock = msgspec.structs.replace(clock, step_ns=5000.0)
        calibrator = Calibrator(group, "cpu", clock)
        calibrator.run()
        return calibrator.calibrations

    first, second = run_threads(2, work)
    assert first == second
    assert first[0][0, 1].step_ns == 5000


def test_all_pairs_meet_once_and_nobody_plays_twice_in_a_turn() -> None:
    for world_size in range(2, 10):
        turns = all_pairs(world_size)
        assert len(turns) == world_size - 1 + world_size % 2
        met = [pair for turn in turns for pair in turn]
        assert sorted(met) == list(itertools.combinations(range(world_size), 2))
        for turn in turns:
            ranks = [rank for pair in turn for rank in pair]
            assert len(ranks) == len(set(ranks))


def test_a_part_of_a_group_sees_its_own_ranks() -> None:
    def work(group: ThreadGroup) -> tuple[int, list[int]]:
        part = PartOfGroup(group, [0, 2] if group.rank % 2 == 0 else [1, 3])
        part.barrier()
        return part.rank, part.all_gather(10 * group.rank)

    assert run_threads(4, work) == [(0, [0, 20]), (0, [10, 30]), (1, [0, 20]), (1, [10, 30])]


def test_ranks_agree_on_when_a_calibration_is_due(tmp_path: Path) -> None:
    def work(group: ThreadGroup) -> tuple[list[int], int]:
        recorder = Recorder(directory, rank=group.rank, world_size=2, arena_bytes=1 << 16)
        # Rank 1 is slower, which is not for it to decide.
        due = []
        for call in range(40):
            time.sleep(0.002 if group.rank else 0.001)
            if recorder.align_if_due(group, every_s=1.0):
                due.append(call)
        num_calibrations = len(recorder.calibrations)
        recorder.close()
        return due, num_calibrations

    with session(tmp_path / "run.kprof") as directory:
        (due, num_calibrations), other = run_threads(2, work)
    assert (due, num_calibrations) == other
    assert due[0] == 0
    assert 2 <= len(due) < 40
    assert num_calibrations == len(due)
    pair = _alignment(tmp_path).pairs[0]
    assert pair.num_calibrations == len(due)


def test_a_cadence_turns_seconds_into_calls() -> None:
    cadence = Cadence()
    assert cadence.is_due()
    cadence.restart(3)
    assert [cadence.is_due() for _ in range(4)] == [False, False, True, True]


def test_calls_that_became_slow_do_not_wait_for_many_more(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    cadence = Cadence()
    strides = []
    for seconds in (1e-4, 8e-4, 64e-4, 20.0, 20.0):
        now[0] += seconds
        while not cadence.is_due():
            pass
        strides.append(cadence.proposal(every_s=2.0))
        cadence.restart(strides[-1])
    assert strides == [8, 64, 512, 51, 5]


def test_calibrations_by_hand_put_off_the_next_one(tmp_path: Path) -> None:
    def work(group: ThreadGroup) -> list[bool]:
        recorder = Recorder(directory, rank=group.rank, world_size=2, arena_bytes=1 << 16)
        recorder.align(group)
        due = [recorder.align_if_due(group, every_s=0.0) for _ in range(10)]
        recorder.close()
        return due

    with session(tmp_path / "run.kprof") as directory:
        first, second = run_threads(2, work)
    assert first == second == [False] * 7 + [True] * 3


def test_launches_after_the_last_calibration_are_said_and_widen_the_bound(tmp_path: Path) -> None:
    def work(group: ThreadGroup) -> None:
        recorder = Recorder(directory, rank=group.rank, world_size=2, arena_bytes=1 << 16)
        recorder.align(group)
        time.sleep(0.01)
        recorder.align(group)
        recorder.launch("late", num_blocks=1, threads_per_block=1)
        time.sleep(0.05)
        recorder.close()

    with session(tmp_path / "run.kprof") as directory:
        run_threads(2, work)
    alignment = _alignment(tmp_path)
    assert "after the last clock calibration" in alignment.notes[0]


def test_a_rank_that_was_refused_leaves_nobody_waiting(tmp_path: Path) -> None:
    def work(group: ThreadGroup) -> tuple[bool, list[int]]:
        if group.rank:
            recorder = RefusedRecorder()
        else:
            recorder = Recorder(directory, rank=0, world_size=2, arena_bytes=1 << 16)
        due = recorder.align_if_due(group)
        recorder.align(group)
        # Both are at the same place.
        met = group.all_gather(group.rank)
        recorder.close()
        return due, met

    with session(tmp_path / "run.kprof") as directory:
        assert run_threads(2, work) == [(False, [0, 1])] * 2


def _alignment(tmp_path: Path):
    alignment = Capture.open(tmp_path / "run.kprof").manifest.alignment
    assert alignment is not None
    return alignment


@pytest.mark.parametrize("error", [-1, 999])
def test_an_error_that_nobody_knows_has_a_text(error: int) -> None:
    assert "unknown error" in error_text(load_calibration(Target.CPU), error)
