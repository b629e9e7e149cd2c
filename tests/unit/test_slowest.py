"""Which calls are the slowest: of one rank, and of all ranks together."""

from __future__ import annotations

import random
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import kprof
from kprof.capture.claims import Claim, launch_counts
from kprof.capture.directory import EVENT_CLAMPED, EVENT_OPEN, Capture
from kprof.capture.manifest import EventCounts
from kprof.rank_memory import LIVE_BYTES, NUMBERS_BYTES
from kprof.recording.decoding.tally import Tally
from kprof.recording.launches.progress import read_progress
from kprof.recording.launches.region_ids import RegionIds
from kprof.recording.retention.slowest import (
    Published,
    Ranking,
    SlowestCalls,
    Stretch,
    read_published,
    write_published,
)
from kprof.regions import RegionTable


def calls_of(lengths: list[float], num_kept: int) -> SlowestCalls:
    """Steps of these lengths, each with a launch."""
    now_s, num_launches = 0.0, 0
    calls = SlowestCalls(num_kept, lambda: num_launches, lambda: False, lambda: now_s)
    calls.note_launch("step")
    for length_s in lengths:
        num_launches += 1
        now_s += length_s
        calls.note_step()
    return calls


def test_ten_of_100_000_calls() -> None:
    draw = random.Random(1)
    # Sums of these have no rounding.
    lengths = [draw.randrange(1, 1 << 20) / 1024 for _ in range(100_000)]
    published = calls_of(lengths, 10).publish()
    expected = sorted(range(len(lengths)), key=lambda call: lengths[call])[-10:]
    assert published.num_ended == 100_000
    assert dict(published.calls) == {call: lengths[call] for call in expected}


def test_the_slowest_of_all_ranks_are_known_from_the_slowest_of_each() -> None:
    draw = random.Random(2)
    lengths = [[draw.randrange(1, 1 << 20) / 1024 for _ in range(2000)] for _ in range(4)]
    ranking = Ranking(dict(enumerate(calls_of(each, 7).publish() for each in lengths)), 7)
    longest = [max(each) for each in zip(*lengths, strict=True)]
    expected = sorted(range(2000), key=lambda call: longest[call])[-7:]
    assert ranking.length_s == {call: longest[call] for call in expected}
    assert list(ranking.length_s) == expected[::-1]


def test_a_stretch_is_known_when_all_ranks_have_ended_its_calls() -> None:
    stretch = Stretch(True, {5: range(5, 6), 6: range(6, 7)})
    for num_ended, is_known in ((6, False), (7, True)):
        ranking = Ranking({0: Published(True, 9), 1: Published(True, num_ended)}, 1)
        assert ranking.is_known(stretch, [1]) is is_known
    # It has not told anything yet, or counts something else.
    assert not Ranking({0: Published(True, 9)}, 1).is_known(stretch, [1])
    assert not Ranking({0: Published(True, 9), 1: Published(False, 50)}, 1).is_known(stretch, [1])


def test_steps_are_calls_rather_than_launches() -> None:
    ranking = Ranking({0: Published(False, 9, ((3, 9.0),)), 1: Published(True, 2, ((1, 2.0),))}, 2)
    assert ranking.length_s == {1: 2.0}
    assert ranking.slow_of(Stretch(False, {1: range(1)})) == []


def test_events_that_are_taken_back_are_not_counted() -> None:
    region_ids = RegionIds()
    region_ids.table_idx(RegionTable.of(["load", "store"]))
    launch, local = np.zeros(4, np.int32), np.array([1, 2, 2, 9])
    region, num_unknown = region_ids.translate(launch, local)
    flags = np.array([0, EVENT_OPEN, EVENT_CLAMPED | EVENT_OPEN, 0], np.uint8)
    tally = Tally(region_ids)
    tally.add(EventCounts(dropped=5))
    tally.add_events(region[:1], flags[:1], 0)
    before, losses = tally.counts, tally.losses()
    tally.add_events(region, flags, num_unknown)
    assert tally.counts != before
    assert tally.losses() != losses
    tally.remove_events(region, flags)
    assert (tally.counts, tally.losses()) == (before, losses)


def test_what_ranks_publish_is_read_whole_or_not_at_all(tmp_path: Path) -> None:
    claims = [Claim(tmp_path, rank) for rank in range(3)]
    most = Published(True, 1 << 62, tuple((1 << 62, 1 / 3e300) for _ in range(1000)))
    write_published(tmp_path, 0, most)
    assert read_published(tmp_path) == {0: most}
    for rank, published in enumerate((Published(True, 9, ((3, 9.0),)), Published(True, 10))):
        write_published(tmp_path, rank, published)
    with (tmp_path / "rank-00001.live").open("r+b") as file:
        # As where it is being written.
        file.seek(NUMBERS_BYTES + 20)
        file.write(b"7")
    assert read_published(tmp_path) == {0: Published(True, 9, ((3, 9.0),))}
    assert launch_counts(tmp_path) == {0: 0, 1: 0, 2: 0}
    assert (tmp_path / "rank-00000.live").stat().st_size == LIVE_BYTES
    claims[0].release()
    Claim(tmp_path, 0)
    assert read_published(tmp_path) == {}, "what an earlier process has told does not count"


class GroupOfTwo:
    """For a calibration that is none."""

    rank, world_size = 0, 2

    def all_gather(self, value: object) -> list[object]:
        return [value, value]


def test_calibrations_are_no_part_of_a_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Calls take a second, the eighth two; a calibration in each takes five."""
    now_s = [0.0]

    class SlowCalibrator:
        calibrations = ()

        def __init__(self, *_: object) -> None:
            pass

        def run(self) -> None:
            now_s[0] += 5

    clocks: Any = SimpleNamespace(perf_counter=lambda: now_s[0], monotonic=time.monotonic)
    monkeypatch.setattr("kprof.clocks.keeper.time", clocks)
    monkeypatch.setattr("kprof.clocks.calibration.Calibrator", SlowCalibrator)
    group: Any = GroupOfTwo()
    retention = kprof.Retention(keep_slowest=1)
    with kprof.session(tmp_path / "run.kprof", retention=retention) as recorder:
        for call in range(12):
            recorder.launch("work", num_blocks=1, threads_per_block=32, tracks_per_block=1)
            now_s[0] += 2 if call == 7 else 1
            if call % 2:
                recorder.align(group)
            else:
                recorder.align_if_due(group, every_s=0)
            recorder.step()
        (progress,) = read_progress(recorder.listen())
        assert (progress.length_s(1.0) or 0) < 2.5
    (info,) = Capture.open(tmp_path / "run.kprof").manifest.ranks
    assert "the slowest of 12 calls: 7 (2,000.00 ms)" in info.notes
