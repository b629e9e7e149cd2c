"""Runs of two processes that hang: `kprof record` names the root, and the capture can be read. What
`kprof hang` prints of a capture.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from in_process import run_kprof
from kprof.capture.directory import Capture
from kprof.capture.processes import Condition
from kprof.hangs.report import Hang, RankReport, write_hang
from kprof.hangs.state import OpenSpan
from kprof.trace import Trace
from sealing import check_checksums

ROOT = Path(__file__).parents[2]
EXCHANGE = "planted_hangs.processes"


def record(name: str, run: Path) -> subprocess.CompletedProcess[str]:
    """The workload ends when hang.json has what `name` should give, and prints that."""
    places = [ROOT, ROOT / "cli", ROOT / "tests" / "support"]
    path = os.pathsep.join([*map(str, places), os.environ.get("PYTHONPATH", "")])
    # What a busy machine makes stand on its way out must not be reported over what hung.
    after_s = "3" if name == "holds_lock" else "1"
    workload = ["python", "-m", EXCHANGE, name, "cpu"]
    return run_kprof(
        ["record", "--hang-after", after_s, "-o", run, "--", *workload],
        environment=os.environ | {"PYTHONPATH": path},
    )


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("killed", "rank 1 has ended and block 0 of rank 0 waits in wait for its slot 0"),
        ("illegal_address", "rank 1 has ended and block 0 of rank 0 waits in wait for its slot 0"),
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
    if name not in ("killed", "illegal_address"):
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
