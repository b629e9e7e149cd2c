"""The clock calibration on the CPU target, against clocks that were planted: the truth is known. Two devices compared
through their host, in worlds that are known, too."""

from __future__ import annotations

import itertools
import time
from pathlib import Path

import msgspec
import numpy as np
import pytest
from clock_world import START_NS, Link, World, random_clocks
from corner_world import Lane, calibrate_pair, play_corner
from planted_clocks import Planted, calibrate, random_plants
from thread_ranks import ThreadGroup, run_threads

from kprof.capture.directory import Capture
from kprof.capture.manifest import Alignment
from kprof.clocks import corner
from kprof.clocks.alignment import align_clocks
from kprof.clocks.calibration import Calibrator, all_pairs, load_calibration, measure_clock
from kprof.clocks.corner import Seen, intervals_of_view, other_paths
from kprof.clocks.keeper import Cadence
from kprof.clocks.offset import OffsetSample, Pair
from kprof.devices.build import error_text
from kprof.devices.cache import complain
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


TIMES_NS = (START_NS, START_NS + 2 * 10**9, START_NS + 4 * 10**9)
# A path over another switch: its reads take longer one way, and its writes do not.
SLOWER = Lane(ask_ns=650)


def aligned(world: World, lanes: tuple[Lane, Lane] = (Lane(), Lane())) -> Alignment:
    return align_clocks("test", 0, [{(0, 1): calibrate_pair(world, at, lanes)} for at in TIMES_NS])


def worst_error_ns(world: World, alignment: Alignment) -> float:
    moments = np.linspace(TIMES_NS[0], TIMES_NS[-1], 25).astype(np.int64)
    local = [clock.read(moments) for clock in world.clocks]
    corrected = [
        times - START_NS + np.array([entry.correction_ns(int(each)) for each in times])
        for times, entry in zip(local, alignment.ranks, strict=True)
    ]
    return float(np.abs(corrected[0] - corrected[1]).max())


@pytest.mark.parametrize("first_seed", range(0, 100, 20))
def test_two_gpus_are_within_a_bound_of_less_than_150_ns(first_seed: int) -> None:
    for seed in range(first_seed, first_seed + 20):
        world = World(random_clocks(seed, 2, 32), seed, lanes=32)
        alignment = aligned(world)
        pair = alignment.pairs[0]
        assert worst_error_ns(world, alignment) <= pair.bound_ns <= 150
        assert pair.rigorous_bound_ns > 550
        assert set(pair.others_ns) == {"common view", "two ways"}
        assert pair.residue_ns is None


@pytest.mark.parametrize("link", [Link(there_ns=900), Link(back_ns=1400), Link(there_ns=2600)])
def test_a_link_with_a_slow_direction_shows_in_the_bound(link: Link) -> None:
    world = World(random_clocks(3, 2, 32), 3, {(0, 1): link}, lanes=32)
    alignment = aligned(world)
    pair, slower_ns = alignment.pairs[0], abs(link.there_ns - link.back_ns)
    assert pair.disagreement_ns == pytest.approx(slower_ns / 2, abs=60)
    assert slower_ns / 2 - 60 < worst_error_ns(world, alignment) <= pair.bound_ns
    assert pair.bound_ns < pair.rigorous_bound_ns


def test_devices_with_other_ways_to_their_host_have_a_wider_bound() -> None:
    world = World(random_clocks(4, 2, 32), 4, lanes=32)
    even, uneven = aligned(world), aligned(world, (Lane(), SLOWER))
    assert worst_error_ns(world, uneven) <= uneven.pairs[0].bound_ns
    assert uneven.pairs[0].disagreement_ns > even.pairs[0].disagreement_ns + 50
    assert uneven.pairs[0].bound_ns > even.pairs[0].bound_ns + 50


def test_a_calibration_whose_way_is_longer_than_of_others_has_a_wider_bound() -> None:
    """What other paths say is said of all calibrations together."""
    clocks = random_clocks(5, 2, 32)
    worlds = [World(clocks, 5, {(0, 1): Link(there_ns=ns)}, lanes=32) for ns in (600, 600, 1000)]
    played = [
        {(0, 1): calibrate_pair(world, at)} for world, at in zip(worlds, TIMES_NS, strict=True)
    ]
    alignment = align_clocks("test", 0, played)
    assert 140 < worst_error_ns(worlds[0], alignment) <= alignment.pairs[0].bound_ns


def test_without_other_paths_the_bound_is_half_a_round_trip() -> None:
    world = World(random_clocks(6, 2, 32), 6, lanes=32)
    (pair,) = align_clocks("test", 0, [{(0, 1): world.play((0, 1), START_NS)}]).pairs
    assert pair.bound_ns == pair.rigorous_bound_ns
    assert pair.others_ns == {}
    assert pair.disagreement_ns == 0


@pytest.mark.parametrize(
    "lanes", [(Lane(), Lane()), (Lane(), SLOWER), (Lane(write_ns=900), Lane())]
)
def test_the_truth_is_within_the_rigorous_bound_of_every_path(lanes: tuple[Lane, Lane]) -> None:
    for seed in range(10):
        world = World(random_clocks(seed, 2, 1), seed)
        first, second = play_corner(world, START_NS, lanes)
        for path in other_paths(first, second):
            now = START_NS + int(np.abs(second.device[:, 1] - path.local_ns).argmin()) * 6000
            truth_ns = float(world.clocks[1].read(now) - world.clocks[0].read(now))
            # 200 ppm over a millisecond.
            assert abs(path.offset_ns - truth_ns) <= path.bound_ns + 200
        least, most, _ = intervals_of_view(first, second)
        assert (least <= truth_ns + 1300).all()
        assert (most >= truth_ns - 1300).all()


def test_rounds_that_no_read_missed_say_nothing_of_the_common_view() -> None:
    world = World(random_clocks(7, 2), 7)
    first, second = play_corner(world, START_NS)
    first.device[4:, 0] = 0
    least, _, _ = intervals_of_view(first, second)
    assert len(least) == 4
    assert [path.name for path in other_paths(first, second)] == ["two ways"]


def play(plants: list[Planted], count: int = 1) -> list[tuple[Planted, list[OffsetSample], Seen]]:
    """Calibrations on the CPU target, through the host too; by rank its clock, the samples, one more game."""

    def work(group: ThreadGroup) -> tuple[Planted, list[OffsetSample], Seen]:
        clock = plants[group.rank].plant()
        calibrator = Calibrator(group, "cpu", measure_clock("cpu"), has_corner=True)
        for _ in range(count):
            calibrator.run()
        assert calibrator.corner
        more = calibrator.corner.play()
        return clock, [each[0, 1] for each in calibrator.calibrations], more.get(group.rank)

    return run_threads(2, work)


def true_offset_ns(clocks: list[Planted], local_ns: int) -> float:
    """Second - first when the second shows `local_ns`."""
    drift, since = clocks[1].drift, local_ns - clocks[1].offset_ns - clocks[1].origin_ns
    true_ns = clocks[1].origin_ns + round(since / (1 + drift))
    return clocks[1].read(true_ns) - clocks[0].read(true_ns)


def test_planted_clocks_are_within_the_bound_of_every_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long the scheduler lets whom wait."""
    monkeypatch.setattr(corner, "_TIMEOUT_S", 120)
    for seed in range(3):
        (first, samples, one), (second, others, other) = play(random_plants(seed, 2), 2)
        assert samples == others
        for sample in samples:
            assert {path.name for path in sample.others} >= {"two ways"}
            for path in sample.others:
                off_ns = path.offset_ns - true_offset_ns([first, second], path.local_ns)
                assert abs(off_ns) <= path.bound_ns + 2
        least, most, at = intervals_of_view(one, other)
        for lower, upper, moment in zip(least, most, at.tolist(), strict=True):
            # The sides of a round are not read at one moment, and the clocks drift.
            truth_ns, slack_ns = true_offset_ns([first, second], moment), (upper - lower) * 4e-4 + 2
            assert lower - slack_ns <= truth_ns <= upper + slack_ns


def test_a_device_that_does_not_answer_is_said_once_and_leaves_the_bound_as_it_was(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(corner, "_TIMEOUT_S", 0)
    complain.cache_clear()
    (_, samples, one), (_, _, other) = play(random_plants(1, 2), 3)
    assert (one, other) == (None, None)
    assert all(sample.others == () for sample in samples)
    said = capsys.readouterr().err
    assert said.count("not compared through their host") == 1
    assert "half a round trip: a GPU did not answer its host" in said


def test_memory_that_cannot_be_shared_is_no_reason_to_fail(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object) -> None:
        raise OSError("no room in the inn")

    monkeypatch.setattr(corner, "heap_file", refuse)
    (_, samples, _), _ = play(random_plants(1, 2))
    assert samples[0].others == ()
    assert "no room in the inn" in capsys.readouterr().err


def test_ranks_that_share_a_gpu_do_not_play(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """They may never run at the same time, and have one clock."""
    monkeypatch.setattr(corner, "_gpu_address", lambda _: "0000:1b:00.0")
    (_, samples, one), _ = play(random_plants(1, 2))
    assert samples[0].others == ()
    assert one is None
    assert capsys.readouterr().err == ""


def test_hosts_with_another_number_of_ranks_only_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corner, "_TIMEOUT_S", 120)

    def work(group: ThreadGroup) -> list[dict]:
        host = "one" if group.rank < 2 else "two"
        clock = measure_clock("cpu")
        calibrator = Calibrator(group, "cpu", clock, host=host, has_corner=True)
        calibrator.run()
        return calibrator.calibrations

    every_rank = run_threads(3, work)
    assert every_rank[0] == every_rank[1] == every_rank[2]
    assert [bool(sample.others) for sample in every_rank[0][0].values()] == [True, False]


def test_the_cpu_target_does_not_play_unless_asked() -> None:
    def work(group: ThreadGroup) -> bool:
        return Calibrator(group, "cpu", measure_clock("cpu")).corner is None

    assert run_threads(2, work) == [True, True]
