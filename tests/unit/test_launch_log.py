"""The rows of launches: what is added is there until it is forgotten, in order and with its numbers."""

from __future__ import annotations

import mmap
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kprof
from kprof.capture.journal import Journal
from kprof.devices.mapping import SharedFile
from kprof.errors import RecorderError, RegionError
from kprof.rank_memory import ARENAS_OFFSET, LEDGER_HEADER, NUM_ROWS, ROWS_BYTES, pack_launch
from kprof.recording.arenas.ledger import Ledger, launches_in
from kprof.recording.launches import launch_log
from kprof.recording.launches.launch_log import LaunchLog
from kprof.recording.launches.wanted import Wanted
from kprof.recording.rank.recorder import Recorder
from kprof.recording.retention import keeping
from kprof.regions import RegionTable

SIZES = (4, 64, 0)


def numbers(log: LaunchLog) -> list[int]:
    return [each.launch for each in log.waiting()]


def test_launches_fill_several_pieces_of_memory_and_are_forgotten_from_the_front() -> None:
    log = LaunchLog(["work"])
    plans = [log.plan(name, *SIZES) for name in ("dispatch", "combine")]
    count = 2 * NUM_ROWS + 10
    for number in range(count):
        assert log.add(plans[number % 2]) == number
    assert numbers(log) == list(range(count))
    last = log.waiting()[-1]
    assert (last.kernel, last.ordinal, last.num_blocks) == ("combine", count // 2 - 1, 4)
    for end in (5, NUM_ROWS - 1, NUM_ROWS, NUM_ROWS + 7, count):
        log.forget(end)
        assert numbers(log) == list(range(end, count))
        assert [each.launch for each in log.waiting(end + 3)] == list(
            range(end, min(end + 3, count))
        )
    assert [log.add(plans[0]), *numbers(log)] == [count, count]


def test_launches_outlive_the_process_until_they_are_forgotten(tmp_path: Path) -> None:
    """Rows that are forgotten are used again, so the file does not grow with the run."""
    ledger = Ledger(tmp_path, tmp_path, 0, 5000, Journal(tmp_path, 0))
    path, log = tmp_path / "rank-00000.arena", LaunchLog(["work"])
    log.ledger, plan = ledger, log.plan("dispatch", *SIZES)
    ledger.content[:] = 255

    def outliving() -> list[int]:
        content = np.fromfile(path, np.uint8)
        assert (content[ARENAS_OFFSET : ARENAS_OFFSET + 5000] == 255).all()
        return [number_plus_1 - 1 for *_, number_plus_1 in launches_in(content).tolist()]

    for end in range(0, 9 * NUM_ROWS, NUM_ROWS - 1):
        for _ in range(NUM_ROWS):
            log.add(plan)
        log.forget(end)
        assert outliving() == numbers(log) == list(range(end, log.end))
    assert path.stat().st_size < ARENAS_OFFSET + 5000 + 4 * ROWS_BYTES
    # A forked child has memory of its own.
    ledger.make_private()
    assert numbers(log) == outliving()
    before = path.read_bytes()
    log.add(plan)
    ledger.forget(log.end)
    ledger.content[:] = 0
    assert path.read_bytes() == before
    # What is damaged names no launches.
    content = np.fromfile(path, np.uint8)
    for begin, num_forgotten in ((1 << 63, 0), (0, 1 << 63)):
        header = content[: LEDGER_HEADER.itemsize].view(LEDGER_HEADER)
        header["begin_of_rows"], header["num_forgotten"] = begin, num_forgotten
        assert len(launches_in(content)) == 0


def test_a_file_that_was_replaced_does_not_grow(tmp_path: Path) -> None:
    file = SharedFile(tmp_path / "file", mmap.PAGESIZE)
    (tmp_path / "file").unlink()
    (tmp_path / "file").write_bytes(b"of somebody else")
    with pytest.raises(FileNotFoundError, match="another file has its name"):
        file.grow(mmap.PAGESIZE, mmap.PAGESIZE)
    assert (tmp_path / "file").read_bytes() == b"of somebody else"


def test_numbers_of_replays_are_no_launches() -> None:
    """More of them than there are rows in a piece of memory."""
    log = LaunchLog(["work"])
    plan = log.plan("dispatch", *SIZES)
    assert log.add(plan) == 0
    replays = [log.region_ids.add_launch(0) for _ in range(2 * NUM_ROWS)]
    assert log.add(plan) == replays[-1] + 1
    assert numbers(log) == [0, replays[-1] + 1]
    assert [each.ordinal for each in log.waiting()] == [0, 1]
    assert log.region_ids.num_launches == log.end == replays[-1] + 2


def test_the_table_of_a_launch_is_read_from_its_row() -> None:
    """Also when the row is forgotten, and used again: a captured launch is replayed later."""
    log, tables = LaunchLog(["work"]), [RegionTable.of([name]) for name in ("one", "two")]
    plans = [log.plan("dispatch", *SIZES, table) for table in tables]
    ids, last = log.region_ids, NUM_ROWS + 3
    idxs = [plan.table_idx for plan in plans]
    for number in range(last):
        log.add(plans[number % 2])
    assert ids.table_of_launch == {number: idxs[number % 2] for number in range(last)}
    assert ids.add_launch(idxs[1]) == last
    assert log.add(plans[0]) == last + 1
    for _ in range(2):
        log.forget(last + 1)
        ids.forget(last, captured=[1])
        expected = {1: idxs[1], last: idxs[1], last + 1: idxs[0]}
        assert ids.table_of_launch == expected
    assert ids.num_launches == last + 2


def test_what_is_saved_has_no_launches_that_came_later(tmp_path: Path) -> None:
    """Its rows were read before."""
    with kprof.session(tmp_path / "run.kprof"):
        recorder = kprof.recorder(["work"], rank=0, world_size=1)
        assert isinstance(recorder, Recorder)
        recorder.launch("dispatch", num_blocks=4)
        saved = keeping._copy_while_used(recorder._keeper.decoder).region_ids
        recorder.launch("dispatch", num_blocks=4)
        assert list(saved.table_of_launch) == [0]
        assert saved.add_launch(0) == 1


def test_a_row_that_another_thread_stores_late_is_read_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = LaunchLog(["work"])
    plan, make_room = log.plan("dispatch", *SIZES), log._room_for
    known: list[dict[int, int]] = []

    def room_for(number: int) -> tuple[int, memoryview]:
        """Another thread launches and a third one decodes, before this one stores its row."""
        if number == 0:
            make_room(number)
            assert log.add(plan) == 1
            known.append(dict(log.region_ids.table_of_launch))
        return make_room(number)

    monkeypatch.setattr(LaunchLog, "_room_for", lambda _, number: room_for(number))
    assert log.add(plan) == 0
    known.append(dict(log.region_ids.table_of_launch))
    assert known == [{1: plan.table_idx}, {1: plan.table_idx, 0: plan.table_idx}]


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


def test_threads_that_launch_a_kernel_at_once_make_two_launches_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The other one comes while a row is written."""
    log = LaunchLog(["work"])
    plan = log.plan("dispatch", *SIZES)
    other = threading.Thread(target=log.add, args=(plan,))

    def pack(*arguments: Any) -> None:
        if not other.ident:
            other.start()
            other.join()
        pack_launch(*arguments)

    monkeypatch.setattr(launch_log, "pack_launch", pack)
    log.add(plan)
    assert {(each.launch, each.ordinal) for each in log.waiting()} == {(0, 0), (1, 1)}


def test_threads_that_plan_at_once_get_numbers_of_their_own() -> None:
    log = LaunchLog(["work"])
    other = threading.Thread(target=log.plan, args=("combine", *SIZES))

    class Names(dict[Any, int]):
        def __len__(self) -> int:
            count = super().__len__()
            if not other.ident:
                other.start()
                # Without a lock the other thread has its plan by then.
                other.join(0.2)
            return count

    log._names = Names()
    idx = log.plan("dispatch", *SIZES).idx
    other.join()
    assert {idx, log.plan("combine", *SIZES).idx} == {0, 1}


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
