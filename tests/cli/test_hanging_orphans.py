"""kprof is killed while its ranks hang: they can still be asked, and what they record is kept."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from kprof.capture.claims import ranks_in_use
from kprof.capture.directory import Capture
from kprof.hangs.lines import read_waits
from planted_hangs.rank import SIZE_BYTES

ROOT = Path(__file__).parents[2]
WORKLOAD = """
import sys
from planted_hangs.processes import start
for rank in [start("never_launches", "cpu", rank, sys.argv[1]) for rank in range(2)]:
    rank.wait()
"""


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "kprof_cli", *arguments]


def environment() -> dict[str, str]:
    places = [ROOT, ROOT / "cli", ROOT / "tests" / "support"]
    path = os.pathsep.join([*map(str, places), os.environ.get("PYTHONPATH", "")])
    return os.environ | {"PYTHONPATH": path}


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
        while not waits_in_call_1(unfinished):
            assert recording.poll() is None
            time.sleep(0.02)
        recording.kill()
        recording.wait()
        asked = subprocess.run(
            command("hang", str(run)), env=environment(), capture_output=True, text=True, check=True
        )
        os.pwrite(flags.fileno(), b"\1", 0)
        while ranks_in_use(unfinished):
            time.sleep(0.02)
    assert asked.stdout.startswith("rank 1 has not launched call 1 of exchange"), asked.stdout
    assert "in load_data" in asked.stdout
    subprocess.run(command("recover", str(unfinished)), env=environment(), check=True)
    launches = {info.rank: len(info.launches) for info in Capture.open(run).manifest.ranks}
    assert launches == {0: 3, 1: 3}
    assert not list(run.glob("waits*"))
