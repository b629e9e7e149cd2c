"""A kernel that hangs on a GPU while the main thread waits for it: what it and those before it recorded is saved."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kprof.capture.directory import Capture

pytestmark = pytest.mark.gpu

WORKLOAD = str(Path(__file__).parents[1] / "cli" / "workloads" / "lifetimes.py")
EVENTS_PER_LAUNCH = 100


@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM])
def test_a_hanging_kernel_is_saved_and_killed(
    tmp_path: Path, require_gpus: Callable[[int], None], first: int
) -> None:
    require_gpus(1)
    run, fifo = tmp_path / "run.kprof", tmp_path / "fifo"
    os.mkfifo(fifo)
    line = ["record", "-o", str(run), "--", "python", WORKLOAD, "hangs", str(fifo)]
    with subprocess.Popen(
        [sys.executable, "-m", "kprof_cli", *line],
        env=os.environ | {"LIFETIMES_DEVICE": "cuda"},
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        rank = int(fifo.read_text())
        if first == signal.SIGTERM:
            # As torchrun does: the rank saves itself before SIGKILL comes.
            os.kill(rank, signal.SIGTERM)
            while not list(tmp_path.glob("run.kprof.unfinished/part-*.parquet")):
                os.sched_yield()
            os.kill(rank, signal.SIGKILL)
        else:
            process.send_signal(signal.SIGINT)
            assert process.stderr is not None
            while "passing Ctrl-C on" not in process.stderr.readline():
                pass
            process.send_signal(signal.SIGINT)
        process.communicate()
    assert process.returncode == 137
    (info,) = Capture.open(run).manifest.ranks
    assert len(info.launches) == 4
    assert info.counts.recorded + info.counts.dropped == 4 * EVENTS_PER_LAUNCH
    assert info.cut_short
