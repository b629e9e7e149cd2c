"""Runs of two processes that hang: `kprof record` names the root, and the capture can be read, also where kprof or
the ranks are killed, and where a service runs without `kprof record`. What `kprof hang` prints of a capture.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest

import kprof
from in_process import run_kprof
from kprof.capture.claims import ranks_in_use
from kprof.capture.directory import Capture
from kprof.capture.processes import Condition
from kprof.hangs.lines import read_waits
from kprof.hangs.report import Hang, RankReport, read_hang, write_hang
from kprof.hangs.state import OpenSpan
from kprof.recording.rank.watchdog import REPORT_SIGNAL
from kprof.trace import Trace
from planted_hangs.rank import SIZE_BYTES
from sealing import check_checksums
from under_way import until

ROOT = Path(__file__).parents[2]
EXCHANGE = "planted_hangs.processes"


def environment() -> dict[str, str]:
    places = [ROOT, ROOT / "cli", ROOT / "tests" / "support"]
    path = os.pathsep.join([*map(str, places), os.environ.get("PYTHONPATH", "")])
    return os.environ | {"PYTHONPATH": path}


def record(name: str, run: Path) -> subprocess.CompletedProcess[str]:
    """The workload ends when hang.json has what `name` should give, and prints that."""
    # What a busy machine makes stand on its way out must not be reported over what hung.
    after_s = "3" if name == "holds_lock" else "1"
    workload = ["python", "-m", EXCHANGE, name, "cpu"]
    return run_kprof(
        ["record", "--hang-after", after_s, "-o", run, "--", *workload],
        environment=environment(),
    )


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("killed", "rank 1 has ended and block 0 of rank 0 waits in wait for its slot 0"),
        ("stopped", "rank 1 is stopped: resume it with kill -CONT"),
        (
            "holds_lock",
            "ranks 0, 1 wait for each other: block 1 of rank 0 for slot 1 of rank 1, block 1 of "
            "rank 1 for slot 1 of rank 0; rank 1 does not respond: ",
        ),
        ("never_launches", "rank 1 has not launched call 1 of exchange, in which it sends slot"),
    ],
)
def test_the_root_is_said_and_the_capture_is_whole(
    name: str, sentence: str, tmp_path: Path
) -> None:
    run = tmp_path / "run.kprof"
    done = record(name, run)
    (diagnosis,) = [line for line in done.stdout.splitlines() if line.startswith(sentence)]
    assert diagnosis in done.stderr
    ranks = {info.rank: info for info in Capture.open(run).manifest.ranks}
    # Rank 0 ends by itself, with all three calls.
    assert len(ranks[0].launches) == 3
    if name == "holds_lock":
        assert "_launch seems to hold the interpreter lock" in diagnosis
    if name != "killed":
        assert len(ranks[1].launches) == 3
    if name == "holds_lock":
        # Their kernels returned without a record of these waits.
        trace = Trace.open(run)
        assert trace.manifest.hang is not None
        assert trace.manifest.hang.num_open == 2
        check_checksums(run)
        opened = trace.frame("SELECT rank, block, slot FROM events WHERE flags & 1 = 1 ORDER BY 1")
        assert opened.to_numpy().tolist() == [[0, 1, 1], [1, 1, 1]]
        assert "finding  The run hung, and had stood still for" in done.stdout


def test_hang_prints_what_a_capture_keeps(kprof, small: Path) -> None:
    wait = OpenSpan(0, 3, "combine", 3, 5, -1, "wait", 1, 17, 31.4)
    hang = Hang(
        61.0,
        "rank 1 never sent slot 17",
        "never_sent",
        (1,),
        ranks=(RankReport(0, Condition.RUNNING, 4, 4), RankReport(1, Condition.RUNNING, 4, 4)),
        waits=(wait,),
    )
    write_hang(small, hang)
    result = kprof("hang", small)
    assert result.code == 0
    assert result.out.splitlines() == [
        "rank 1 never sent slot 17",
        "  rank 0 block 5 in wait for rank 1, slot 17 (call 3 of combine): still waiting after 31 s",
        "  rank 0: running, 4 launches",
        "  rank 1: running, 4 launches",
    ]
    found = json.loads(kprof("hang", small, "--json").out)
    assert (found["kind"], found["ranks_at_fault"], found["idle_s"]) == ("never_sent", [1], 61.0)


def test_hang_of_a_run_that_did_not_hang_or_is_none(kprof, small: Path, tmp_path: Path) -> None:
    result = kprof("hang", small)
    assert result.code == 1
    assert "has ended and did not hang" in result.error_line
    assert "is no run" in kprof("hang", tmp_path / "other.kprof").error_line
    (small / "hang.json").write_bytes(b"{")
    assert "hang.json cannot be read" in kprof("hang", small).error_line


NOT_LAUNCHED = "rank 1 has not launched call 1 of exchange"
MOST_QUESTIONS = 20
TWO_RANKS = """
import sys
from planted_hangs.processes import start
for rank in [start("never_launches", "cpu", rank, sys.argv[1]) for rank in range(2)]:
    rank.wait()
"""
KILLED = """
import os, sys, time
from pathlib import Path
from kprof.hangs.report import read_hang
from planted_hangs.processes import is_expected, start
ranks = [start("never_launches", "cpu", rank, sys.argv[1]) for rank in range(2)]
while True:
    found = read_hang(Path(os.environ["KPROF_RECORD_DIR"]))
    if found and is_expected("never_launches", found):
        break
    time.sleep(0.02)
for rank in ranks:
    rank.kill()
for rank in ranks:
    rank.wait()
sys.exit(3)
"""


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "kprof_cli", *arguments]


def asked(run: Path) -> str:
    """What `kprof hang` says."""
    answer = run_kprof(["hang", run])
    assert answer.returncode == 0, answer.stderr
    return answer.stdout


def waits_in_call_1(directory: Path) -> bool:
    return any(1 in waits.lines["launch"] for waits in read_waits(directory).values())


def test_ranks_whose_kprof_was_killed_are_diagnosed_and_recovered(tmp_path: Path) -> None:
    run, unfinished = tmp_path / "run.kprof", tmp_path / "run.kprof.unfinished"
    with tempfile.NamedTemporaryFile(dir="/dev/shm", prefix="exchange-") as flags:
        flags.truncate(SIZE_BYTES)
        workload = ["--", "python", "-c", TWO_RANKS, flags.name]
        recording = subprocess.Popen(
            command("record", "-o", str(run), *workload), env=environment()
        )
        until(recording, lambda: waits_in_call_1(unfinished))
        recording.kill()
        recording.wait()
        said = asked(run)
        for _ in range(MOST_QUESTIONS):
            if said.startswith(NOT_LAUNCHED):
                break
            # On a busy machine a rank may be too late with what it has recorded.
            said = asked(run)
        os.pwrite(flags.fileno(), b"\1", 0)
        while ranks_in_use(unfinished):
            time.sleep(0.02)
    assert said.startswith(NOT_LAUNCHED), said
    assert run_kprof(["recover", unfinished]).returncode == 0
    launches = {info.rank: len(info.launches) for info in Capture.open(run).manifest.ranks}
    assert launches == {0: 3, 1: 3}
    assert not list(run.glob("waits*"))


def test_ranks_that_are_killed_after_the_report_lose_nothing(tmp_path: Path) -> None:
    """They were asked for what they had recorded when nothing moved."""
    run = tmp_path / "run.kprof"
    with tempfile.NamedTemporaryFile(dir="/dev/shm", prefix="exchange-") as flags:
        flags.truncate(SIZE_BYTES)
        workload = ["--", "python", "-c", KILLED, flags.name]
        recording = ["record", "--hang-after", "1", "-o", run, *workload]
        done = run_kprof(recording, environment=environment())
    assert done.returncode == 3, done.stderr
    trace = kprof.open(run)
    finished = trace.frame(
        """SELECT rank, category, count(*) AS n FROM events WHERE ordinal = 0
        GROUP BY ALL ORDER BY ALL"""
    )
    # Of four blocks of each rank.
    expected = [(rank, category, 4) for rank in range(2) for category in ("send", "wait")]
    assert sorted(finished.itertuples(index=False, name=None)) == expected
    assert {info.rank: len(info.launches) for info in trace.manifest.ranks} == {0: 2, 1: 1}


DIAGNOSIS = f"{NOT_LAUNCHED}, in which it sends slot"


@contextmanager
def service(output: Path, flags: str) -> Iterator[list[subprocess.Popen[str]]]:
    """Both ranks, until they have ended."""
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", "planted_hangs.service", str(output)],
            env=environment() | {"RANK": str(rank), "EXCHANGE_FLAGS": flags},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        yield ranks
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()


def read_until(file: IO[str], text: str) -> list[str]:
    """The lines up to one with `text`; fails at the end of the file."""
    lines = []
    for line in file:
        lines.append(line)
        if text in line:
            return lines
    raise AssertionError("".join(lines))


def test_a_service_reports_its_hang_and_reports_when_asked(tmp_path: Path) -> None:
    output = tmp_path / "service.kprof"
    with tempfile.NamedTemporaryFile(dir="/dev/shm", prefix="exchange-") as flags:
        flags.truncate(SIZE_BYTES)
        with service(output, flags.name) as ranks:
            errors, said = ranks[0].stderr, ranks[0].stdout
            assert errors is not None
            assert said is not None
            # An earlier hang is that rank 1 starts late.
            read_until(said, DIAGNOSIS)
            hang = read_hang(output.with_name("service.kprof.unfinished"))
            assert hang is not None
            assert DIAGNOSIS in hang.diagnosis
            # The main thread is in the kernel: no handler of Python's runs.
            lines = [""]
            while "in load_data" not in lines[-1]:
                # On a busy machine rank 1 may be too late with its stack.
                ranks[0].send_signal(REPORT_SIGNAL)
                lines += read_until(errors, f"kprof: {DIAGNOSIS}")
            os.pwrite(flags.fileno(), b"\1", 0)
            with ThreadPoolExecutor() as threads:
                for _, rest in threads.map(subprocess.Popen.communicate, ranks):
                    lines += rest.splitlines()
        assert [rank.returncode for rank in ranks] == [0, 0], lines
    # Either rank prints it, and the other one does not where it sees that in time.
    assert any("nothing has moved for" in line and DIAGNOSIS in line for line in lines), lines
    launches = {info.rank: len(info.launches) for info in Capture.open(output).manifest.ranks}
    assert launches == {0: 3, 1: 3}
    assert read_hang(output) is not None


def test_nothing_is_watched_where_the_recorder_is_off() -> None:
    recorder = kprof.recorder()
    assert not recorder.is_recording
    before = threading.active_count()
    with kprof.watchdog(recorder) as watchdog:
        watchdog.report()
        assert threading.active_count() == before
    watchdog.close()
