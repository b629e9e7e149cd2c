"""A rank that is killed leaves all of its finished launches, whatever it was doing at that moment."""

from __future__ import annotations

import ctypes
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import until_killed
from until_killed import MOMENTS, sizes

import kprof
from drained import steps
from kprof.capture.shared_memory import memory_of
from kprof.errors import WorkloadError
from kprof.recording.launcher import record
from kprof.trace import Trace
from replayed import CONTENTS, KERNELS, emitted, library, new_buffer, run_kernel

__all__ = ["library"]
NUM_STEPS = 12
RecordUntilKilled = Callable[..., int]
OF_DRAIN = ("while the arena is wiped", "when the arena was wiped", "when another arena is free")
OF_FLUSH = ("while the arena is reset", "when the arena was reset")


@pytest.fixture(scope="module")
def process(library: ctypes.CDLL) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-W", "ignore", until_killed.__file__, library._name]
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    ) as started:
        yield started
        assert started.stdin is not None
        started.stdin.close()


@pytest.fixture
def record_until_killed(process: subprocess.Popen[str], tmp_path: Path) -> RecordUntilKilled:
    """Record a case into killed.kprof; returns how many steps it finished."""

    def run(workload: str, **options: object) -> int:
        with record.session(tmp_path / "killed.kprof") as directory:
            case = {"workload": workload, "directory": str(directory), **options}
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(json.dumps(case) + "\n")
            process.stdin.flush()
            num_steps = int(process.stdout.readline())
            assert num_steps >= 0
        return num_steps

    return run


def opened(tmp_path: Path) -> Trace:
    """The capture, with nothing in it that is not whole."""
    trace = Trace.open(tmp_path / "killed.kprof")
    (info,) = trace.ranks
    counts = info.counts
    assert (counts.dropped, counts.torn_chunks, counts.stray_chunks) == (0, 0, 0)
    assert (counts.torn_records, counts.damaged_heads, counts.unsplit_launches) == (0, 0, 0)
    assert info.cut_short.endswith("its last launch may lack events; no launch is lost")
    assert counts.recorded == trace.num_events()
    return trace


@pytest.mark.sampled(3)
@pytest.mark.parametrize("is_graph", [False, True])
@pytest.mark.parametrize(
    ("retention", "moment"),
    [
        *(("flush", moment) for moment in MOMENTS if moment not in OF_DRAIN),
        *(("drain", moment) for moment in MOMENTS if moment not in OF_FLUSH),
    ],
)
def test_all_finished_launches_are_there(
    library: ctypes.CDLL,
    tmp_path: Path,
    record_until_killed: RecordUntilKilled,
    retention: str,
    moment: str,
    is_graph: bool,
) -> None:
    num_steps = record_until_killed(
        "steps", retention=retention, moment=moment, is_graph=is_graph, num_steps=NUM_STEPS
    )
    assert num_steps >= 2
    assert (num_steps == NUM_STEPS) == (MOMENTS[moment] is None)
    trace = opened(tmp_path)
    assert trace.num_events() == emitted(KERNELS, sizes(num_steps))
    assert len(trace.ranks[0].launches) == len(KERNELS) * num_steps
    with kprof.session(tmp_path / "whole.kprof") as recorder:
        for _ in steps(library, recorder, num_steps, is_graph):
            pass
    assert trace.frame(CONTENTS).equals(Trace.open(tmp_path / "whole.kprof").frame(CONTENTS))


@pytest.mark.parametrize("is_graph", [False, True])
@pytest.mark.parametrize("moment", ["between two launches", "while the arena is wiped"])
def test_a_ring_has_the_latest_launches(
    tmp_path: Path, record_until_killed: RecordUntilKilled, moment: str, is_graph: bool
) -> None:
    num_steps = record_until_killed(
        "steps", retention="ring", moment=moment, is_graph=is_graph, num_steps=100
    )
    assert (num_steps == 100) == (MOMENTS[moment] is None)
    trace = opened(tmp_path)
    num_kept = len(trace.ranks[0].launches) // len(KERNELS)
    assert 10 < num_kept < num_steps
    assert trace.num_events() == emitted(KERNELS, sizes(num_steps)[-num_kept:])
    assert any("what its ring held" in note for note in trace.ranks[0].notes)


def test_of_the_slowest_calls_what_was_in_memory_is_kept_and_named_too(
    tmp_path: Path, record_until_killed: RecordUntilKilled
) -> None:
    """Nobody can tell a call that was to be kept from one that was not decided yet."""
    record_until_killed("calls", retention="slowest")
    (info,) = Trace.open(tmp_path / "killed.kprof").ranks
    only, slowest, also = info.notes
    assert only == "only the 2 slowest calls of this run are kept"
    assert re.fullmatch(
        r"the 2 slowest of the first \d+ calls: \d+ \(.* ms\), \d+ \(.* ms\)", slowest
    )
    num_in_memory = int(
        also.removeprefix("also kept: what was in memory when it ended, ").split()[0]
    )
    assert 0 < num_in_memory <= len(info.launches) < 100 * len(KERNELS)
    named = {int(call) for call in re.findall(r" (\d+) \(", slowest)}
    assert named <= {launch.ordinal for launch in info.launches}


def test_parts_of_several_region_tables_and_a_save_are_one_capture(
    library: ctypes.CDLL, tmp_path: Path, record_until_killed: RecordUntilKilled
) -> None:
    """Ids of regions mean the same in all parts, and what was saved is not there twice."""
    record_until_killed("tables")
    with kprof.session(tmp_path / "whole.kprof") as recorder:
        until_killed.launch_with_tables(library, recorder)
    killed, whole = opened(tmp_path), Trace.open(tmp_path / "whole.kprof")
    assert killed.frame(CONTENTS).equals(whole.frame(CONTENTS))
    assert killed.ranks[0].notes == whole.ranks[0].notes
    assert killed.ranks[0].regions == whole.ranks[0].regions


def test_without_room_the_launches_that_are_lost_are_counted(
    tmp_path: Path, record_until_killed: RecordUntilKilled
) -> None:
    record_until_killed("without room")
    (info,) = Trace.open(tmp_path / "killed.kprof").ranks
    assert "the last of its 2 launches is lost" in info.cut_short
    (note,) = info.notes
    assert "is lost if it is killed" in note
    assert "No space left on device" in note


def test_a_rank_that_is_killed_before_it_launches_leaves_nothing(
    record_until_killed: RecordUntilKilled,
) -> None:
    with pytest.raises(WorkloadError, match="its rank never finished"):
        record_until_killed("nothing")


@pytest.mark.parametrize("becomes", ["kept", "removed", "another"])
def test_a_forked_child_writes_to_memory_of_its_own(
    library: ctypes.CDLL, tmp_path: Path, becomes: str
) -> None:
    """It has the buffer of a launch that its parent makes. Whoever tidies up /dev/shm may remove the file, and
    another recording may have made a shorter one."""
    with kprof.session(tmp_path / "run.kprof") as recorder:
        buffer = new_buffer(recorder, "run_marks")
        memory = memory_of(tmp_path / "run.kprof.unfinished")
        assert memory is not None
        arenas = list(memory.glob("*.arena"))
        assert [path.stat().st_mode & 0o777 for path in arenas] == [0o600]
        if becomes != "kept":
            arenas[0].unlink()
        if becomes == "another":
            arenas[0].write_bytes(bytes(100))
            arenas[0].chmod(0o600)
        child = os.fork()
        if child == 0:
            try:
                run_kernel(library, "run_marks", buffer, 60, seed=1)
            finally:
                os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        run_kernel(library, "run_marks", buffer, 5, seed=1)
    trace = Trace.open(tmp_path / "run.kprof")
    assert trace.num_events() == emitted(["run_marks"], [5])
    assert trace.ranks[0].counts.torn_chunks == 0
