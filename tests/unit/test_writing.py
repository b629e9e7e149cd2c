"""What a process says before it writes many events."""

from __future__ import annotations

from pathlib import Path

import pytest

from kprof.recording.launcher.record import session
from kprof.recording.rank.recorder import Recorder
from kprof.recording.retention import keeping


@pytest.mark.slow
@pytest.mark.parametrize(
    ("least", "said"), [(183, "rank 0 is writing up to 183 events"), (184, "")]
)
def test_rank_0_says_it_of_many_events(
    least: int,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Of the chunks that its launch has reserved, 61 events each."""
    monkeypatch.setattr(keeping, "_WORTH_SAYING_EVENTS", least)
    with session(tmp_path / "run.kprof") as directory:
        for rank in (0, 1):
            recorder = Recorder(directory, rank=rank, world_size=2, arena_bytes=1 << 20)
            recorder.launch("kernel", num_blocks=3, tracks_per_block=1)
            recorder.close()
    told = capsys.readouterr().err
    assert told.count("is writing") == bool(said)
    assert said in told
