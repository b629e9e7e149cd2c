"""The memory that ranks share with whoever looks for hangs, on machines that have little of it."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import kprof
from kprof import private
from kprof.abi import BLOCK_TRACK_WARP, NO_LINES, WAIT_LINE
from kprof.capture.journal import Answer
from kprof.capture.shared_memory import make_memory, memory_of, remove_garbage
from kprof.devices import gpu
from kprof.devices.memory import HostMemory
from kprof.hangs import lines
from kprof.hangs.announced import SPAN
from kprof.hangs.evidence import read_run
from kprof.hangs.lines import (
    HANG_BYTES,
    NUM_LINES,
    WaitsWriter,
    blocks_begun,
    read_answer,
    read_waits,
    write_answer,
)
from kprof.recording.rank import waits as recording_waits
from kprof.recording.rank.waits import Waits
from kprof.regions import parse_regions
from launching import tell_launch
from sharing import sharing_memory

REGIONS = parse_regions('REGION(R_WAIT, "wait", wait, peer:8, slot:24)')


@pytest.fixture
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A /dev/shm of the test's own."""
    folder = tmp_path / "shm"
    folder.mkdir()
    folder.chmod(0o1777)
    monkeypatch.setattr(private, "_MEMORY_DIR", folder)
    return folder


@pytest.fixture
def run(tmp_path: Path, memory: Path) -> Iterator[Path]:
    directory = tmp_path / "run.kprof.unfinished"
    directory.mkdir()
    with sharing_memory(directory):
        yield directory


def one_wait() -> np.ndarray:
    """Block 2 waits for slot 17 of rank 1."""
    found = np.zeros(NUM_LINES, WAIT_LINE)
    found[5] = (1_000, 1, 1 | 17 << 8, 0, 2, BLOCK_TRACK_WARP, 6, 7, 0)
    return found


def fill(memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No file in memory can have a byte more."""
    real = os.posix_fallocate

    def refuse(file: int, begin: int, size: int) -> None:
        if Path(f"/proc/self/fd/{file}").readlink().is_relative_to(memory):
            raise OSError(errno.ENOSPC, "No space left on device")
        real(file, begin, size)

    monkeypatch.setattr(os, "posix_fallocate", refuse)


def check_that_waits_are_seen(run: Path, writer: WaitsWriter) -> None:
    tell_launch(run, writer, 0, "combine", REGIONS, kernel=3, ordinal=4, num_blocks=8)
    writer.write_lines(one_wait())
    (wait,) = read_run(run).ranks[0].waits
    assert (str(wait.call), wait.region, wait.peer, wait.slot, wait.held, wait.wanted) == (
        "call 4 of combine",
        "wait",
        1,
        17,
        6,
        7,
    )


def test_a_line_that_a_kernel_is_writing_is_left_out(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = WaitsWriter(run, 0, 2)
    check_that_waits_are_seen(run, writer)
    real, num_looks = lines.read_plain, 0

    def changing(path: Path, most: int) -> bytes:
        """The block that the line names is another one in every look."""
        nonlocal num_looks
        found = one_wait()
        found["block"][5] = num_looks = num_looks + 1
        writer.write_lines(found)
        return real(path, most)

    monkeypatch.setattr(lines, "read_plain", changing)
    waits = read_waits(run)[0]
    assert num_looks == 2
    assert len(waits.lines) == 0


def test_memory_that_is_too_small_leaves_waits_on_the_disk(
    run: Path, memory: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    fill(memory, monkeypatch)
    notes: list[str] = []
    seen = Waits(run, 0, 2, "cpu", notes.append)
    assert seen.lines.num_shared
    assert notes == [
        "rank 0: /dev/shm is too small or cannot be written, so waits that last long are in a file "
        "on the disk"
    ]
    assert notes[0] in capfd.readouterr().err
    assert seen._writer is not None
    check_that_waits_are_seen(run, seen._writer)
    assert (run / "rank-00000.waits").stat().st_size == HANG_BYTES


def test_without_shared_memory_waits_are_on_the_disk(tmp_path: Path, memory: Path) -> None:
    memory.rmdir()
    with sharing_memory(tmp_path):
        assert memory_of(tmp_path) == tmp_path
        writer = WaitsWriter(tmp_path, 0, 2)
        assert not writer.is_in_memory
        check_that_waits_are_seen(tmp_path, writer)


def test_where_the_disk_is_full_too_nothing_is_seen_and_the_rank_goes_on(
    run: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """It says so once, however often a recorder is tried."""
    fill(Path("/"), monkeypatch)
    for _ in range(2):
        notes: list[str] = []
        seen = Waits(run, 0, 2, "cpu", notes.append)
        assert seen.lines == NO_LINES
    assert capfd.readouterr().err == f"kprof: {notes[0]}\n"
    assert "does not say which waits last long: neither /dev/shm nor" in notes[0]
    assert list(run.glob("rank-*")) == []


def test_a_gpu_that_cannot_write_there_has_its_waits_copied(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(address: int, size_bytes: int, device: str) -> int:
        raise RuntimeError("host memory cannot be registered (error 801)")

    of_device = HostMemory.of_size(NUM_LINES * WAIT_LINE.itemsize)
    monkeypatch.setattr(gpu, "register_host_memory", refuse)
    monkeypatch.setattr(recording_waits, "allocate", lambda size_bytes, device: of_device)
    notes: list[str] = []
    seen = Waits(run, 0, 2, "cuda:0", notes.append)
    assert seen.lines[:2] == (of_device.address, NUM_LINES)
    assert "its GPU cannot write to memory that other processes read" in notes[0]
    of_device.write(0, one_wait().view(np.uint8))
    assert len(read_waits(run)[0].lines) == 0
    seen._refresh()
    assert read_waits(run)[0].lines["block"].tolist() == [2]


def test_a_recording_that_was_killed_keeps_its_memory_until_its_directory_goes(
    tmp_path: Path, memory: Path
) -> None:
    orphan = tmp_path / "orphan"
    orphan.mkdir()
    make_memory(orphan)
    folder = memory_of(orphan)
    assert folder is not None
    writer = WaitsWriter(orphan, 0, 2)
    remove_garbage()
    check_that_waits_are_seen(orphan, writer)
    shutil.rmtree(orphan)
    remove_garbage()
    assert folder.is_dir(), "a rank has it"
    del writer
    remove_garbage()
    assert not folder.exists()


def test_two_recordings_at_once_see_their_own_ranks(tmp_path: Path, memory: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    with sharing_memory(first):
        with sharing_memory(second):
            writers = [WaitsWriter(first, 0, 2), WaitsWriter(second, 1, 2)]
            check_that_waits_are_seen(first, writers[0])
            assert set(read_waits(first)) == {0}
            assert set(read_waits(second)) == {1}
            assert len(list(private.memory_root().iterdir())) == 2
        assert len(read_waits(first)[0].lines) == 1


def test_an_answer_is_read_whole_or_not_at_all(run: Path) -> None:
    assert read_answer(run, 0) == Answer()
    tracks = [np.array([[4, 1], [4, 2]], np.uint32), np.array([[5, 0]], np.uint32)]
    write_answer(run, 0, tracks, np.zeros(1, SPAN))
    answer = read_answer(run, 0)
    assert blocks_begun(answer) == {4: frozenset({1, 2}), 5: frozenset({0})}
    assert answer.spans == bytes(SPAN.itemsize)
    path = run / "rank-00000.said"
    path.write_bytes(path.read_bytes()[:-1])
    assert read_answer(run, 0) == Answer()


def test_a_finished_capture_has_none_of_it(tmp_path: Path, memory: Path) -> None:
    with kprof.session(tmp_path / "run.kprof", arena_bytes=1 << 20) as recorder:
        recorder.launch("combine", REGIONS)
        recorder.explain_timeout(1.0)
        assert len(list(private.memory_root().iterdir())) == 1
    kept = {path.name for path in (tmp_path / "run.kprof").iterdir()}
    assert not [name for name in kept if name.endswith((".waits", "said"))]
    assert list(private.memory_root().iterdir()) == []
