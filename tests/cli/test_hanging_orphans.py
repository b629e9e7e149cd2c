"""Kernels hang, and a process is killed: kprof, whose ranks can still be asked, or the ranks."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import kprof
from in_process import run_kprof
from kprof.capture.claims import ranks_in_use
from kprof.capture.directory import Capture
from kprof.hangs.lines import read_waits
from planted_hangs.rank import SIZE_BYTES
from under_way import until

ROOT = Path(__file__).parents[2]
NOT_LAUNCHED = "rank 1 has not launched call 1 of exchange"
MOST_QUESTIONS = 20
WORKLOAD = """
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


def environment() -> dict[str, str]:
    places = [ROOT, ROOT / "cli", ROOT / "tests" / "support"]
    path = os.pathsep.join([*map(str, places), os.environ.get("PYTHONPATH", "")])
    return os.environ | {"PYTHONPATH": path}


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
        workload = ["--", "python", "-c", WORKLOAD, flags.name]
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
