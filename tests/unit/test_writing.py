"""What a process says while it writes many events."""

from __future__ import annotations

import contextlib
import os
import pty
import sys
from pathlib import Path

import pytest

from kprof.recording.endings import writing as module
from kprof.recording.endings.writing import WORTH_SAYING_EVENTS, writing_shown
from kprof.recording.launcher.record import session
from kprof.recording.rank.recorder import Recorder


def say(rank: int, most_events: int) -> None:
    with writing_shown(rank, most_events) as tell:
        for _ in range(4):
            tell(most_events // 4)


def test_elsewhere_than_on_a_terminal_it_is_one_line_of_rank_0(
    capsys: pytest.CaptureFixture[str],
) -> None:
    say(0, 2 * WORTH_SAYING_EVENTS)
    assert capsys.readouterr().err == "kprof: rank 0 is writing up to 2,000,000 events\n"
    say(1, 2 * WORTH_SAYING_EVENTS)
    say(0, WORTH_SAYING_EVENTS - 1)
    assert capsys.readouterr().err == ""


def on_terminal(monkeypatch: pytest.MonkeyPatch, most_events: int) -> str:
    """What `say` writes to a terminal."""
    ours, theirs = pty.openpty()
    with monkeypatch.context() as patch, os.fdopen(theirs, "w") as terminal:
        patch.setenv("TERM", "xterm")
        patch.setenv("COLUMNS", "80")
        for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE"):
            patch.delenv(name, raising=False)
        patch.setattr(sys, "stderr", terminal)
        say(0, most_events)
    said = b""
    # A terminal hands on what it was given later, in pieces; the last one is an error (EIO).
    with contextlib.suppress(OSError):
        while piece := os.read(ours, 1 << 16):
            said += piece
    os.close(ours)
    return said.decode()


def test_on_a_terminal_it_is_a_bar_that_fills_and_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    said = on_terminal(monkeypatch, 2 * WORTH_SAYING_EVENTS)
    assert "kprof: writing events" in said
    assert " 25%" in said
    assert "100%" in said
    assert "up to" not in said
    # The last thing is that its line is erased.
    assert said.rstrip().endswith("\x1b[2K")


def test_a_bar_that_fails_is_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(most_events: int) -> None:
        raise RuntimeError(most_events)

    monkeypatch.setattr(module, "_bar", fail)
    said = on_terminal(monkeypatch, WORTH_SAYING_EVENTS)
    assert "rank 0 is writing up to 1,000,000 events" in said


def test_a_recorder_says_it_when_it_closes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of the chunks that its launch has reserved, 61 events each."""
    monkeypatch.setattr(module, "WORTH_SAYING_EVENTS", 1)
    with session(tmp_path / "run.kprof") as directory:
        recorder = Recorder(directory, rank=0, world_size=1, arena_bytes=1 << 20)
        recorder.launch("kernel", num_blocks=3, tracks_per_block=1)
        recorder.close()
    assert "rank 0 is writing up to 183 events" in capsys.readouterr().err
