"""`kprof watch`: lines while a recording is under way, metrics, and what it refuses."""

from __future__ import annotations

import os
import pty
import re
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import numpy as np
import pytest

from kprof.abi import BLOCK_TRACK_WARP, WAIT_LINE
from kprof.capture.claims import Claim
from kprof.errors import KprofError
from kprof.hangs import now
from kprof.hangs.announced import SPAN
from kprof.hangs.lines import NUM_LINES, WaitsWriter, write_answer
from kprof.recording.launches.progress import Progress, read_progress
from kprof.regions import parse_regions
from kprof_cli import watching
from launching import tell_launch
from sharing import sharing_memory


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
        Progress(under_way.progress).set_counts(4000 * num_looks, 5)
        if num_looks == 2:
            under_way.release()

    monkeypatch.setattr(watching, "sleep", go_on)
    monkeypatch.setattr(watching, "monotonic", lambda: next(moments))
    result = kprof("watch", str(tmp_path / "run.kprof"))
    assert result.code == 0
    first, second = result.out.splitlines()
    assert first.startswith("2,000 events/s  5 dropped  0 launches/s  all ranks")
    # Over both looks: events are written in bursts.
    assert second.startswith("2,667 events/s  5 dropped")
    assert "all ranks have stopped recording" in result.err


def test_a_terminal_shows_a_table_that_is_drawn_again(tmp_path: Path, under_way: Claim) -> None:
    Claim(tmp_path / "run.kprof.unfinished", 1).progress[1] = 3
    Progress(under_way.progress).set_counts(1_234_567, 0)
    rows = r"0 +\S+ +0 +0 +0 +3 +-\s+1 +0 +0 +0 +0 +0 +-"
    shown = in_terminal("watch", str(tmp_path / "run.kprof"), "--every", "0.2", until=rows)
    assert "slowest rank 0, 3 calls behind" in shown


def in_terminal(*line: str, until: str) -> str:
    """What a command draws until a pattern is there; then it is killed."""
    main, terminal = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "kprof_cli", *line],
        stdout=terminal,
        stderr=terminal,
        env=os.environ | {"TERM": "xterm", "COLUMNS": "100"},
    )
    os.close(terminal)
    shown = ""
    try:
        while not re.search(until, shown):
            drawn = os.read(main, 1 << 16).decode()
            shown += re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", drawn)
    finally:
        process.kill()
        process.wait()
        os.close(main)
    return shown


def waiting(launch: int, block: int, slot: int) -> tuple[int, ...]:
    """A line of rank 0: for a slot of rank 1."""
    return 1_000, 1, 1 | slot << 8, launch, block, BLOCK_TRACK_WARP, 0, 0, 0


def test_who_waits_for_whom_stands_below_the_pace(
    kprof, tmp_path: Path, under_way: Claim, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "run.kprof.unfinished"
    regions = parse_regions('REGION(R_WAIT, "wait", wait, peer:8, slot:24)')
    lines = np.zeros(NUM_LINES, WAIT_LINE)
    moments = iter([10.0, 11.0, 12.0, 13.0, 14.0])
    num_looks = 0

    with sharing_memory(directory):
        writer = WaitsWriter(directory, 0, 2)
        tell_launch(directory, writer, 0, "combine", regions, num_blocks=4)

        def go_on(seconds: float) -> None:
            nonlocal num_looks
            num_looks += 1
            lines[2] = waiting(0, 2, 17)
            # A second block joins, and then all waits end.
            lines[3] = waiting(0, 3, 18) if num_looks == 2 else 0
            lines[2] = 0 if num_looks == 3 else lines[2]
            writer.write_lines(lines)
            if num_looks == 4:
                under_way.release()

        monkeypatch.setattr(watching, "sleep", go_on)
        monkeypatch.setattr(watching, "monotonic", lambda: next(moments))
        result = kprof("watch", str(tmp_path / "run.kprof"))
    assert [line for line in result.out.splitlines() if line.startswith("  ")] == [
        "  rank 0 waits for rank 1 for less than 1 s: block 2 in wait for slot 17 (call 0 of combine)",
        "  rank 0 waits for rank 1 for 1 s: block 2 in wait for slot 17 (call 0 of combine), and 1 more",
    ]


def test_announced_spans_are_shown_while_a_run_stands_still(
    tmp_path: Path, under_way: Claim, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "run.kprof.unfinished"
    regions = parse_regions(
        'REGION(R_TILE, "tile", compute, announced)\nREGION(R_GEMM, "gemm", compute, announced)'
    )
    spans = np.zeros(3, SPAN)
    spans["block"] = [7, 7, 8]
    spans["region"], spans["start_ticks"] = [1, 2, 2], [100, 200, 300]
    asked = []

    def answer(where: Path, *, for_records: bool) -> None:
        asked.append(for_records)
        write_answer(where, 0, [], spans if len(asked) < 3 else spans[:0])

    monkeypatch.setattr(now, "ask", answer)
    in_gemm = "rank 0 block 7 warp 0 is in gemm{} (inside tile) (call 0 of combine)"
    other = "rank 0 block 8 warp 0 is in gemm{} (call 0 of combine)"
    with sharing_memory(directory):
        writer = WaitsWriter(directory, 0, 2)
        tell_launch(directory, writer, 0, "combine", regions, num_blocks=4)
        waits = now.WaitsNow(directory)
        assert [waits.look(at_s) for at_s in (0.0, 4.0)] == [[], []]
        assert waits.look(5.0) == [in_gemm.format(""), other.format("")]
        assert waits.look(8.0) == [in_gemm.format(" for 3 s"), other.format(" for 3 s")]
        assert len(asked) == 1
        assert waits.look(10.0) == [in_gemm.format(" for 5 s"), other.format(" for 5 s")]
        # They have ended: nobody is asked until the run has moved and stands again.
        assert [waits.look(at_s) for at_s in (15.0, 30.0)] == [[], []]
        tell_launch(directory, writer, 1, "combine", regions, ordinal=1, num_blocks=4)
        assert [waits.look(at_s) for at_s in (31.0, 35.0)] == [[], []]
        assert asked == [True] * 3
        waits.look(36.0)
        assert asked == [True] * 4


def test_metrics_are_served_on_this_machine_only(under_way: Claim, tmp_path: Path) -> None:
    server = watching._serve(lambda: read_progress(tmp_path / "run.kprof.unfinished"), 0)
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
            watching._serve(list, port)


def test_a_run_that_has_not_begun_is_waited_for(
    kprof, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory, claims = tmp_path / "run.kprof.unfinished", []
    # The recording begins, then its rank, which is seen, and then ends.
    begin = iter(
        [
            directory.mkdir,
            lambda: claims.append(Claim(directory, 0)),
            lambda: None,
            lambda: claims[0].release(),
        ]
    )
    monkeypatch.setattr(watching, "sleep", lambda _: next(begin)())
    result = kprof("watch", str(tmp_path / "run.kprof"))
    assert result.code == 0
    assert result.err.count("waiting for ranks to start recording into") == 1
    assert "run.kprof; press Ctrl-C to stop" in result.err
    assert len(result.out.splitlines()) == 2
    assert next(begin, None) is None


def test_what_cannot_be_under_way_is_refused(kprof, tmp_path: Path) -> None:
    for name in ("file", "folder"):
        place = tmp_path / name
        place.mkdir() if name == "folder" else place.write_text("")
        result = kprof("watch", str(place))
        assert result.code == 1
        assert "is not a capture and cannot become one" in result.err
    finished = tmp_path / "old.kprof"
    finished.mkdir()
    (finished / "manifest.json").write_text("{}")
    result = kprof("watch", str(finished))
    assert result.code == 1
    assert "is finished; to see it, run kprof report" in result.err
