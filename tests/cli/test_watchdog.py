"""A service of two ranks that runs without `kprof record`, and hangs."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import kprof
from kprof.capture.directory import Capture
from kprof.hangs.report import read_hang
from kprof.recording.rank.watchdog import REPORT_SIGNAL
from planted_hangs.rank import SIZE_BYTES

ROOT = Path(__file__).parents[2]
DIAGNOSIS = "rank 1 has not launched call 1 of exchange, in which it sends slot"


@contextmanager
def service(output: Path, flags: str) -> Iterator[list[subprocess.Popen[str]]]:
    """Both ranks, until they have ended."""
    places = [ROOT, ROOT / "tests" / "support"]
    path = os.pathsep.join([*map(str, places), os.environ.get("PYTHONPATH", "")])
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", "planted_hangs.service", str(output)],
            env=os.environ | {"PYTHONPATH": path, "RANK": str(rank), "EXCHANGE_FLAGS": flags},
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
