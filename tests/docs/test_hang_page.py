"""docs/a_hang.md, followed: the planted mistake hangs, kprof says what the page says, and the mend works.

What the page shows of a terminal is compared without the times and the Python stacks, what flags hold by the report.
"""

from __future__ import annotations

import re
import signal
import subprocess
import time
from pathlib import Path

import pytest
from pages import DOCS, Block, Reader, blocks_of

from kprof.capture.names import UNFINISHED_SUFFIX
from kprof.capture.processes import signal_all
from kprof.hangs.report import read_hang
from kprof.recording.launcher.stopping import processes_of

pytestmark = pytest.mark.slow
_TIMES = re.compile(r" for \d+ s")
_FLAG = re.compile(r"call (\d+) .*; its flag holds (\d+), it waits for (\d+)")


def lines_to_compare(text: str) -> list[str]:
    """The lines of kprof about waits, up to the call that a wait is in."""
    said = [line for line in text.splitlines() if "call " in line and line.startswith("kprof: ")]
    return [_TIMES.sub("", line).partition("): still waiting")[0].rstrip(")") for line in said]


def hang(reader: Reader, block: Block) -> str:
    """Record until the hang is told, then press Ctrl-C twice; returns what was printed."""
    run = reader.folder / "hung.kprof"
    log = reader.folder / "log"
    with log.open("w") as file:
        process = subprocess.Popen(
            ["bash", "-c", f"exec {block.text}"],
            cwd=reader.folder,
            env=reader.environment,
            stdout=file,
            stderr=subprocess.STDOUT,
        )
    try:
        for sentence in ("all of it: ", "press it again to save"):
            while sentence not in what_follows(run, log.read_text()):
                assert process.poll() is None, log.read_text()
                time.sleep(0.05)
            process.send_signal(signal.SIGINT)
        assert process.wait() != 0
    finally:
        if process.poll() is None:
            # Its ranks would spin on.
            unfinished = run.with_name(run.name + UNFINISHED_SUFFIX)
            signal_all([process.pid, *processes_of(unfinished)], signal.SIGKILL)
            process.wait()
    return log.read_text()


def what_follows(run: Path, printed: str) -> str:
    """What was printed behind the report of all that hangs: on a busy machine one may come before."""
    found = read_hang(run.with_name(run.name + UNFINISHED_SUFFIX))
    is_whole = found is not None and found.kind == "never_sent" and len(found.waits) == 5
    return printed.partition(found.diagnosis)[2] if found and is_whole else ""


def test_the_hang_is_found_and_mended(tmp_path: Path) -> None:
    reader = Reader(tmp_path, lambda _: True)
    blocks = blocks_of(DOCS / "a_hang.md")
    at = next(i for i, block in enumerate(blocks) if "hung.kprof -- " in block.text)
    reader.follow(blocks[:at])
    printed = hang(reader, blocks[at])
    first, after = blocks[at + 1], blocks[at + 2]
    assert set(lines_to_compare(first.text)) <= set(lines_to_compare(printed)), printed
    found = read_hang(reader.folder / "hung.kprof")
    assert found is not None
    flags = sorted((wait.ordinal, wait.held, wait.wanted) for wait in found.waits)
    assert flags == sorted(tuple(map(int, each)) for each in _FLAG.findall(first.text))
    assert after.text in printed
    assert "finding  The run hung, and had stood still for" in printed
    reader.follow(blocks[at + 3 :])
