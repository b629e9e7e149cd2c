"""What is said while a recording is made outlives a kill, a full disk and a stopped process."""

from __future__ import annotations

import fcntl
import os
import tracemalloc
from pathlib import Path

import pytest

from kprof.capture import journal
from kprof.capture.claims import leave_message, read_messages
from kprof.capture.journal import Begun, Journal, Note, begin_journal, read_journal, said, say


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
