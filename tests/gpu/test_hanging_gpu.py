"""A kernel that hangs on a GPU while the main thread waits for it: what it and those before it recorded is saved."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kprof.capture.directory import Capture
from under_way import Recording

pytestmark = pytest.mark.gpu

WORKLOAD = str(Path(__file__).parents[1] / "cli" / "workloads" / "lifetimes.py")
EVENTS_PER_LAUNCH = 100


def end(recording: Recording, first: int) -> None:
    """End the recording by signals, the first of them to the rank or to kprof."""
    rank = recording.ready()
    if first == signal.SIGTERM:
        # It saves itself, and dies of it.
        os.kill(rank, signal.SIGTERM)
    else:
        recording.process.send_signal(signal.SIGINT)
        recording.until(lambda: "passing Ctrl-C on" in recording.errors())
        recording.process.send_signal(signal.SIGINT)
    recording.end()
    assert recording.process.returncode == (143 if first == signal.SIGTERM else 137)


@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM])
def test_a_hanging_kernel_is_saved_and_killed(
    tmp_path: Path, require_gpus: Callable[[int], None], first: int
) -> None:
    require_gpus(1)

    def line(run: Path, fifo: Path) -> list[str]:
        words = ["record", "-o", str(run), "--", "python", WORKLOAD, "hangs", str(fifo)]
        return [sys.executable, "-m", "kprof_cli", *words]

    recording = Recording(tmp_path, line, LIFETIMES_DEVICE="cuda")
    try:
        end(recording, first)
    finally:
        recording.kill()
    (info,) = Capture.open(recording.run).manifest.ranks
    assert len(info.launches) == 4
    num_closed = info.counts.recorded - info.counts.open
    assert num_closed + info.counts.dropped == 4 * EVENTS_PER_LAUNCH
    assert info.cut_short
