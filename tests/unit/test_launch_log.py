"""The rows of launches: what is added is there until it is forgotten, in order and with its numbers."""

from __future__ import annotations

from pathlib import Path

import pytest

import kprof
from kprof.errors import RecorderError, RegionError
from kprof.rank_memory import ROWS_PER_FILE
from kprof.recording.launches.launch_log import LaunchLog
from kprof.recording.launches.wanted import Wanted
from kprof.regions import RegionTable

SIZES = (4, 64, 0)


def numbers(log: LaunchLog) -> list[int]:
    return [each.launch for each in log.waiting()]


def test_launches_fill_several_files_and_are_forgotten_from_the_front() -> None:
    log = LaunchLog(["work"])
    plans = [log.plan(name, *SIZES) for name in ("dispatch", "combine")]
    count = 2 * ROWS_PER_FILE + 10
    for number in range(count):
        assert log.add(plans[number % 2]) == number
    assert numbers(log) == list(range(count))
    last = log.waiting()[-1]
    assert (last.kernel, last.ordinal, last.num_blocks) == ("combine", count // 2 - 1, 4)
    for end in (5, ROWS_PER_FILE - 1, ROWS_PER_FILE, ROWS_PER_FILE + 7, count):
        log.forget(end)
        assert numbers(log) == list(range(end, count))
        assert [each.launch for each in log.waiting(end + 3)] == list(
            range(end, min(end + 3, count))
        )
    assert [log.add(plans[0]), *numbers(log)] == [count, count]


def test_numbers_of_replays_are_no_launches() -> None:
    """More of them than a file has rows."""
    log = LaunchLog(["work"])
    plan = log.plan("dispatch", *SIZES)
    assert log.add(plan) == 0
    replays = [log.region_ids.add_launch(0) for _ in range(2 * ROWS_PER_FILE)]
    assert log.add(plan) == replays[-1] + 1
    assert numbers(log) == [0, replays[-1] + 1]
    assert [each.ordinal for each in log.waiting()] == [0, 1]
    assert log.region_ids.num_launches == log.end == replays[-1] + 2


def test_the_same_launch_is_planned_once_and_another_anew(tmp_path: Path) -> None:
    log = LaunchLog(["work"])
    plan = log.plan("dispatch", *SIZES)
    assert log.plans == {("dispatch", *SIZES): plan}
    assert log.plan("dispatch", 5, 64, 0).idx == plan.idx
    table = RegionTable.of(["other"])
    assert log.plan("dispatch", *SIZES, table).table_idx == 1
    # What a file says may change.
    (tmp_path / "regions.h").write_text('REGION(A, "a", compute)')
    before = dict(log.plans)
    assert log.plan("combine", *SIZES, tmp_path / "regions.h").table_idx == 2
    assert log.plans == before


def test_grids_that_depend_on_the_data_do_not_fill_memory() -> None:
    log = LaunchLog(None)
    for num_blocks in range(10_000):
        log.add(log.plan("dispatch", num_blocks, 64, 0))
    assert len(log.plans) < 5000
    assert [each.num_blocks for each in log.waiting()] == list(range(10_000))


def test_what_is_wrong_with_a_launch_is_said_before_it_is_counted() -> None:
    log = LaunchLog(None, Wanted(skip=1))
    for kernel, regions, sizes, error in (
        (5, None, SIZES, RecorderError),
        ("k" * (1 << 19), None, SIZES, RecorderError),
        ("k", None, (-1, 64, 0), RecorderError),
        ("k", None, (1.5, 64, 0), RecorderError),
        ("k", ["a", "a"], SIZES, RegionError),
    ):
        with pytest.raises(error):
            log.plan(kernel, *sizes, regions)  # type: ignore[arg-type]
    assert (log.plans, log.end) == ({}, 0)
    plan = log.plan("k", *SIZES)
    assert [log.is_wanted(plan), log.is_wanted(plan), log.num_outside] == [False, True, 1]


@pytest.mark.parametrize("sizes", [{"num_blocks": [1]}, {"num_blocks": 1.5}])
def test_sizes_that_cannot_be_looked_up_are_refused(tmp_path: Path, sizes: dict[str, int]) -> None:
    with (
        kprof.session(tmp_path / "run.kprof") as recorder,
        pytest.raises(RecorderError, match="give a whole number"),
    ):
        recorder.launch("dispatch", **sizes)  # type: ignore[arg-type]
