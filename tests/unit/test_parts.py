"""Parts of a rank's events, what is said while a recording is made, and whether a process of this host still runs."""

from __future__ import annotations

import dataclasses
import fcntl
import os
import shutil
import signal
import socket
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace

from kprof.capture import journal
from kprof.capture.claims import leave_message, read_messages
from kprof.capture.directory import event_schema
from kprof.capture.journal import Begun, Journal, Note, begin_journal, read_journal, said, say
from kprof.capture.manifest import Launch, RankStarted
from kprof.capture.names import events_file_name, rank_file
from kprof.capture.parts import PartWriter, part_name, read_info, recover_rank
from kprof.capture.processes import (
    Condition,
    Process,
    environment_of,
    process_of,
    signal_all,
)
from kprof.capture.started import pids_here
from kprof.errors import CaptureError
from synthetic import TraceBuilder


def test_many_small_parts_become_few_row_groups(tmp_path: Path) -> None:
    build = TraceBuilder('REGION(A, "a", compute)', 1)
    build.span(0, "a", 0, 1)
    table, info = build.table(), build.manifest().ranks[0]
    writer = PartWriter(tmp_path, 0)
    for start_ns in range(50):
        column = pa.array([start_ns], pa.int64())
        at = event_schema().get_field_index("start_ns")
        writer.save([table.set_column(at, event_schema().field(at), column)], lambda: info)
        writer.keep()
    writer.finish(info)
    path = tmp_path / events_file_name(0)
    assert pq.read_metadata(path).num_row_groups == 1
    assert pq.read_table(path)["start_ns"].to_pylist() == list(range(50))


def write_parts(directory: Path, number: int) -> PartWriter:
    """Parts of one event each; the count of the last is that of all."""
    build = TraceBuilder('REGION(A, "a", compute)', 1)
    build.span(0, "a", 0, 1)
    table, info = build.table(), build.manifest().ranks[0]
    writer = PartWriter(directory, 0)
    for part in range(number):
        counts = replace(info.counts, recorded=part + 1)
        launches = (replace(info.launches[0], launch=part),)
        writer.save([table], lambda: replace(info, counts=counts, launches=launches))  # noqa: B023
        writer.keep()
    return writer


def damage(directory: Path, part: int, how: str) -> None:
    path = directory / part_name(0, part)
    data = path.read_bytes()
    path.write_bytes(data[:-9] if how == "truncated" else data[:4] + b"\xff" * 60 + data[64:])


@pytest.mark.parametrize("how", ["truncated", "bits"])
def test_damaged_parts_are_named_and_the_others_are_kept(tmp_path: Path, how: str) -> None:
    write_parts(tmp_path, 9)
    for part in range(1, 8):
        damage(tmp_path, part, how)
    info = recover_rank(tmp_path, 0)
    assert info is not None
    assert info.counts.recorded == pq.read_metadata(tmp_path / events_file_name(0)).num_rows == 2
    (said,) = read_messages(tmp_path)
    assert said.startswith("rank 0: part-00000-00001.parquet, part-00000-00002.parquet, ")
    assert said.endswith(" and 2 more are damaged, so launches or events are missing")
    assert recover_rank(tmp_path, 0) == info
    assert read_messages(tmp_path) == (said,)


@pytest.mark.parametrize("source", ["part-00000-00002.parquet", "part-00001-00000.parquet"])
def test_a_part_that_holds_another_part_is_damaged(tmp_path: Path, source: str) -> None:
    """Else a launch is listed twice, or a rank has events of another, and no reader opens the capture."""
    write_parts(tmp_path, 3)
    build = TraceBuilder('REGION(A, "a", compute)', 2)
    build.span(1, "a", 0, 1)
    other = build.manifest().ranks[1]
    PartWriter(tmp_path, 1).save([build.table()], lambda: other)
    (tmp_path / part_name(0, 1)).write_bytes((tmp_path / source).read_bytes())
    info = recover_rank(tmp_path, 0)
    assert info is not None
    assert [launch.launch for launch in info.launches] == [0, 2]
    said = "rank 0: part-00000-00001.parquet is damaged, so launches or events are missing"
    assert read_messages(tmp_path) == (said,)


@pytest.mark.parametrize("how", ["truncated", "bits"])
def test_an_only_part_that_is_damaged_is_named(tmp_path: Path, how: str) -> None:
    write_parts(tmp_path, 1)
    damage(tmp_path, 0, how)
    info = recover_rank(tmp_path, 0)
    assert info is None or info.counts.recorded == 0
    said = "rank 0: part-00000-00000.parquet is damaged, so launches or events are missing"
    assert read_messages(tmp_path) == (said,)


def test_a_rank_that_ends_names_the_part_that_it_cannot_read(tmp_path: Path) -> None:
    writer = write_parts(tmp_path, 2)
    damage(tmp_path, 1, "bits")
    with pytest.raises(CaptureError, match=r"00001\.parquet was written, but cannot be read"):
        writer.finish(TraceBuilder("", 1).manifest().ranks[0])


@pytest.mark.slow
def test_a_part_of_more_launches_than_parquet_expects_is_read(tmp_path: Path) -> None:
    """A footer of 100 MB and more: the launches of a long run."""
    writer = PartWriter(tmp_path, 0)
    info = TraceBuilder("", 1).manifest().ranks[0]
    name = "a kernel with a long name " * 10_000
    launches = tuple(Launch(number, name, number) for number in range(400))
    writer.save([], lambda: replace(info, launches=launches))
    writer.keep()
    assert writer.launches() == launches


@pytest.mark.parametrize(
    ("column", "value"), [("start_ns", (1 << 62) + 1), ("warp", -2), ("hw_id", None)]
)
def test_a_part_with_events_that_no_reader_takes_is_damaged(
    tmp_path: Path, column: str, value: int | None
) -> None:
    write_parts(tmp_path, 2)
    path = tmp_path / part_name(0, 1)
    table = pq.read_table(path)
    at = table.schema.get_field_index(column)
    footer = pq.read_schema(path).metadata or pq.read_metadata(path).metadata
    if value is None:
        changed = table.drop_columns([column])
    else:
        values = pa.array([value] * len(table), table.schema.field(at).type)
        changed = table.set_column(at, table.schema.field(at), values)
    pq.write_table(changed.replace_schema_metadata(footer), path)
    assert read_info(path) is not None
    info = recover_rank(tmp_path, 0)
    assert info is not None
    assert info.counts.recorded == 1
    assert read_messages(tmp_path) == (
        "rank 0: part-00000-00001.parquet is damaged, so launches or events are missing",
    )


def test_a_line_that_was_cut_short_spoils_no_other(tmp_path: Path) -> None:
    of_rank = Journal(tmp_path, 3)
    for text in ("one", "two"):
        of_rank.say(Note(text))
    path = tmp_path / "rank-00003.said"
    os.truncate(path, path.stat().st_size - 5)
    of_rank.say(Note("three"))
    assert read_journal(tmp_path, 3) == ([Note("one"), Note("three")], 1)


def test_reading_takes_memory_for_what_is_there(tmp_path: Path) -> None:
    """A rank with a ring reads it 20 times a second, and the program may have little memory."""
    Journal(tmp_path, 3).say(Note("one"))
    tracemalloc.start()
    try:
        assert said(tmp_path, 3, Note) == [Note("one")]
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 1 << 20


def test_what_ranks_lost_goes_into_space_that_is_reserved(tmp_path: Path) -> None:
    begin_journal(tmp_path, Begun(("python", "train.py"), "", 2))
    for number in range(3):
        assert leave_message(tmp_path, f"rank {number}: the disk is full")
    assert (tmp_path / "said").stat().st_size == journal.RESERVED_BYTES
    # No longer than that: it is not all that may be said.
    leave_message(tmp_path, "x" * journal.RESERVED_BYTES)
    assert [len(text) for text in read_messages(tmp_path)] == [24, 24, 24, journal.RESERVED_BYTES]
    assert said(tmp_path, None, Begun) == [Begun(("python", "train.py"), "", 2)]


def test_a_process_that_stopped_while_it_said_something_hinders_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "_PATIENCE_S", 0.0)
    begin_journal(tmp_path, Begun((), "", 1))
    with (tmp_path / "said").open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        say(tmp_path, None, Note("rank 1 is still there"))
    assert said(tmp_path, None, Note) == [Note("rank 1 is still there")]


def test_a_forked_child_says_nothing_for_its_parent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_rank = Journal(tmp_path, 0)
    monkeypatch.setattr(os, "getpid", lambda: 1)
    of_rank.say(Note("from the child"))
    assert read_journal(tmp_path, 0) == ([], 0)


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


def test_a_process_runs_is_stopped_and_ends(child: subprocess.Popen[bytes]) -> None:
    process = process_of(child.pid)
    assert process.condition() is Condition.RUNNING
    os.kill(child.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, child.pid, os.WSTOPPED)
    assert process.condition() is Condition.STOPPED
    child.kill()
    # Nobody has waited for it yet: a zombie.
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert process.condition() is Condition.ENDED
    child.wait()
    assert process.condition() is Condition.ENDED


def test_who_has_the_number_of_a_process_later_is_another(child: subprocess.Popen[bytes]) -> None:
    process = process_of(child.pid)
    other = dataclasses.replace(process, start_ticks=process.start_ticks + 1)
    assert other.condition() is Condition.ENDED


def test_of_a_process_elsewhere_nothing_is_known() -> None:
    gone = Process("another host", 1 << 30, 0, 1)
    other_container = Process(socket.gethostname(), 1 << 30, 1, 1)
    for process in (gone, other_container):
        assert not process.is_here
        assert process.condition() is Condition.RUNNING


def test_the_environment_of_a_process_that_becomes_another_program_is_waited_for(
    child: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """For a moment /proc has none: of 300 programs that were just started it was once empty, for 11 ms."""
    read_bytes, read_text = Path.read_bytes, Path.read_text
    looks: list[Path] = []

    def read_nothing(path: Path) -> bytes:
        looks.append(path)
        return b"" if len(looks) <= 3 else read_bytes(path)

    def read_no_addresses(path: Path, **how: str) -> str:
        fields = read_text(path, **how).split()
        return " ".join([*fields[:47], "0", "0", "0", "0", *fields[51:]])

    monkeypatch.setattr(Path, "read_bytes", read_nothing)
    monkeypatch.setattr(Path, "read_text", read_no_addresses)
    assert f"PATH={os.environ['PATH']}".encode() in environment_of(child.pid)


def test_a_process_may_have_no_environment() -> None:
    with subprocess.Popen(["sleep", "600"], env={}) as process:
        assert environment_of(process.pid) == [b""]
        process.kill()
    with pytest.raises(FileNotFoundError):
        environment_of(process.pid)


_MAPS_A_FILE = """
import mmap, sys, time
with open(sys.argv[1], "r+b") as file:
    page = mmap.mmap(file.fileno(), 4096)
print("mapped", flush=True)
time.sleep(600)
"""


@pytest.fixture
def recording(tmp_path: Path) -> Iterator[tuple[Path, int]]:
    """A directory and a process that has a claim on its rank 0."""
    directory = tmp_path / "run.kprof.unfinished"
    directory.mkdir()
    live = rank_file(directory, 0, "live")
    live.write_bytes(bytes(4096))
    command = [sys.executable, "-c", _MAPS_A_FILE, str(live)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"mapped\n"
        yield directory, process.pid
        process.kill()


def test_a_rank_is_not_looked_for_in_another_process(
    recording: tuple[Path, int], child: subprocess.Popen[bytes]
) -> None:
    """Signals that kprof sends end whoever does not expect them."""
    directory, pid = recording
    mine = process_of(pid)
    others = (
        dataclasses.replace(mine, start_ticks=mine.start_ticks + 1),
        dataclasses.replace(mine, start_ticks=0),
        dataclasses.replace(mine, namespace=1),
        # Somebody's process: a file in the directory names it, and it has nothing to do with it.
        process_of(child.pid),
        process_of(os.getpid()),
        process_of(1),
    )
    for rank, process in enumerate((mine, *others)):
        if rank:
            shutil.copy(rank_file(directory, 0, "live"), rank_file(directory, rank, "live"))
        say(directory, rank, RankStarted(rank, 7, *dataclasses.astuple(process)))
    assert pids_here(directory, range(7)) == {0: pid}


def test_a_copy_of_a_recording_leads_to_no_process(
    recording: tuple[Path, int], tmp_path: Path
) -> None:
    directory, pid = recording
    say(directory, 0, RankStarted(0, 1, *dataclasses.astuple(process_of(pid))))
    copy = Path(shutil.copytree(directory, tmp_path / "copy"))
    assert pids_here(directory, [0]) == {0: pid}
    assert pids_here(copy, [0]) == {}


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGUSR1, signal.SIGSEGV, 0, 64])
def test_only_signals_of_ours_are_sent(number: int, child: subprocess.Popen[bytes]) -> None:
    with pytest.raises(AssertionError):
        signal_all([child.pid], number)
