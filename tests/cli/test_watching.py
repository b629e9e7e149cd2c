"""`kprof watch`: lines while a recording is under way, metrics, and what it refuses."""

from __future__ import annotations

import socket
import urllib.request
from pathlib import Path

import pytest

from kprof.capture.claims import Claim
from kprof.capture.manifest import EventCounts
from kprof.errors import KprofError
from kprof.recording.progress import Progress
from kprof_cli import watching


@pytest.fixture
def under_way(tmp_path: Path) -> Claim:
    directory = tmp_path / "run.kprof.unfinished"
    directory.mkdir()
    return Claim(directory, 0)


def test_a_line_for_each_look_until_the_ranks_have_ended(
    kprof, tmp_path: Path, under_way: Claim, monkeypatch: pytest.MonkeyPatch
) -> None:
    moments = iter([10.0, 12.0, 13.0])
    num_looks = 0

    def go_on(seconds: float) -> None:
        nonlocal num_looks
        assert seconds == 1.0
        num_looks += 1
        Progress(under_way.progress).set_counts(EventCounts(recorded=4000 * num_looks, dropped=5))
        if num_looks == 2:
            under_way.release()

    monkeypatch.setattr(watching, "sleep", go_on)
    monkeypatch.setattr(watching, "monotonic", lambda: next(moments))
    result = kprof("watch", str(tmp_path / "run.kprof"))
    assert result.code == 0
    first, second = result.out.splitlines()
    assert first.startswith("2,000 events/s  5 dropped  0 launches/s  all ranks")
    assert second.startswith("4,000 events/s  5 dropped")
    assert "no rank records any more" in result.err


def test_metrics_are_served_on_this_machine_only(under_way: Claim, tmp_path: Path) -> None:
    server = watching._serve(tmp_path / "run.kprof.unfinished", 0)
    try:
        host, port = server.server_address[:2]
        assert host == "127.0.0.1"
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
            assert answer.headers["Content-Type"].startswith("text/plain")
            assert 'kprof_launches_total{rank="0"} 0' in answer.read().decode()
    finally:
        server.shutdown()
        server.server_close()


def test_a_port_that_is_taken_is_named(under_way: Claim, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(KprofError, match=f"127.0.0.1:{port}: .*; give another port"):
            watching._serve(tmp_path / "run.kprof.unfinished", port)


def test_what_is_not_under_way_is_refused(kprof, tmp_path: Path) -> None:
    result = kprof("watch", str(tmp_path / "run.kprof"))
    assert result.code == 1
    assert "nobody records into" in result.err
    finished = tmp_path / "old.kprof"
    finished.mkdir()
    (finished / "manifest.json").write_text("{}")
    result = kprof("watch", str(finished))
    assert result.code == 1
    assert "is finished; kprof report" in result.err
