"""The one recorder of a process, where several threads ask for it."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from kprof.recording.rank import process
from kprof.recording.rank.null_recorder import NullRecorder


def test_threads_that_ask_at_once_share_a_recorder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = []
    found = []

    def ask() -> None:
        found.append(process.recorder(rank=0))

    other = threading.Thread(target=ask)

    class Opening(NullRecorder):
        def __init__(self, *arguments: object, **options: object) -> None:
            opened.append(self)
            if len(opened) == 1:
                # Without a lock the other thread opens one before the first is there.
                other.start()
                other.join(0.2)

    monkeypatch.setenv(process.RECORD_DIR_VARIABLE, str(tmp_path))
    monkeypatch.setattr(process, "Recorder", Opening)
    monkeypatch.setattr(process, "_process_recorder", None)
    monkeypatch.setattr(process.lifetime, "end_well_on_signals", lambda: None)
    monkeypatch.setattr(process.saver, "start", lambda: None)
    ask()
    other.join()
    assert found == opened * 2
