"""A run that stands still: which rank the others wait for."""

from __future__ import annotations

import faulthandler
import os
import sys
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

import kprof
from kprof.capture.claims import read_messages
from kprof.capture.losses import GaveUp
from kprof.capture.names import rank_file
from kprof.hangs import look
from kprof.hangs.evidence import read_run
from kprof.hangs.hosts import diagnose_hosts
from kprof.hangs.report import Hang, lines_of, read_hang
from kprof.hangs.stacks import STACKS_SIGNAL, open_stacks, parse_stack, place_in
from kprof.hangs.state import Call, Condition, OpenSpan, RankState, Records, RunState, Track
from kprof.rank_memory import LIVE_BYTES
from kprof.recording.launcher.record import RecordRequest, record
from kprof.recording.rank.recorder import Recorder
from kprof.recording.retention.retention import Retention


def state(rank: int, num_calls: int, is_running: bool = True, stack: str = "") -> RankState:
    condition = Condition.RUNNING if is_running else Condition.ENDED
    return RankState(rank, condition, num_calls=num_calls, stack=(stack,) if stack else ())


def launched(state: RankState, num_launches: int) -> RankState:
    """With so many launches of one kernel among its calls."""
    launches = {number: (Call("combine", number), 1) for number in range(num_launches)}
    return replace(state, num_launches=num_launches, launches=launches)


@pytest.mark.parametrize(
    ("states", "sentence"),
    [
        (
            [launched(state(0, 9), 6), launched(state(1, 7), 4)],
            "rank 1 has made 7 of the 9 calls of the recorder (launches and steps) that others have "
            "made, and not call 4 of combine",
        ),
        (
            [state(0, 42), state(1, 42), state(2, 40, stack="train.py:88 in step")],
            "rank 2 has made 40 of the 42 calls of the recorder (launches and steps) that others have "
            "made; its Python code is at train.py:88 in step",
        ),
        ([state(0, 5), state(1, 3, False)], "rank 1 ended, rank 0 did not"),
        (
            [state(0, 7), state(1, 7)],
            "all ranks have made 7 calls of the recorder (launches and steps): a kernel does not",
        ),
        (
            [state(0, 7, stack="a.py:1 in wait"), state(1, 7, stack="a.py:1 in wait")],
            "wait for something else; its Python code is at a.py:1 in wait",
        ),
    ],
)
def test_the_rank_that_is_behind_is_named(states: list[RankState], sentence: str) -> None:
    assert sentence in diagnose_hosts(RunState({state.rank: state for state in states}))


def spinning(rank: int, spans: tuple[OpenSpan, ...] = ()) -> RankState:
    """In a kernel of 4 blocks that does not say that it waits: 3 of them have begun."""
    at = launched(state(rank, 2), 2)
    records = Records(started={0: frozenset(range(4)), 1: frozenset(range(3))})
    calls = {number: (call, 4) for number, (call, _) in at.launches.items()}
    return replace(at, num_finished=1, launches=calls, records=records, spans=spans)


def test_a_kernel_that_spins_and_does_not_say_that_it_waits() -> None:
    said = diagnose_hosts(RunState({rank: spinning(rank) for rank in range(2)}))
    assert said.endswith(
        "; on ranks 0, 1 call 1 of combine is not known to have ended, 3 of its 4 blocks have begun; "
        "`still_waiting` in its waits would tell for which rank it waits, and `announced` in regions.h which span "
        "every block is in"
    )


def test_a_rank_that_is_behind_may_wait_for_its_own_kernel() -> None:
    ahead = replace(spinning(1), num_calls=9)
    said = diagnose_hosts(RunState({0: spinning(0), 1: ahead}))
    assert said.startswith("rank 0 has made 2 of the 9 calls of the recorder")
    assert "; on rank 0 call 1 of combine is not known to have ended, 3 of its 4 blocks" in said
    assert "on ranks 0, 1" not in said


def test_the_open_spans_of_a_kernel_that_spins() -> None:
    spans = tuple(
        OpenSpan.of(Track(0, 1, block), Call("combine", 1), "gather", age_s=31.0 - block)
        for block in (2, 1)
    )
    said = diagnose_hosts(RunState({0: spinning(0, spans)}))
    assert (
        "3 of its 4 blocks have begun: block 1 of rank 0 has been in gather for 30 s, and 1 more of its tracks are in "
        "others; `still_waiting` in its waits would tell for which rank it waits" in said
    )
    assert "`announced`" not in said


def test_a_run_that_moves_does_not_hang(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It makes calls of the recorder while kprof hang looks."""
    with kprof.session(tmp_path / "run.kprof", arena_bytes=1 << 20) as recorder:
        recorder.launch("combine")
        directory = recorder.listen()
        monkeypatch.setattr(look, "time", SimpleNamespace(sleep=lambda _: recorder.step()))
        (first, rank, *rest) = lines_of(look.look_now(directory))
        assert first == "nothing hangs: rank 0 moves, and no kernel waits for long"
        assert (rank.startswith("  rank 0: running, 1 launch, making progress"), rest) == (True, [])
        monkeypatch.setattr(look, "time", SimpleNamespace(sleep=lambda _: None))
        (first, *_) = lines_of(look.look_now(directory))
        assert first.startswith("no kernel says that it waits: all ranks have made 2 calls")


def test_only_the_thread_that_gets_the_signal_is_looked_at(tmp_path: Path) -> None:
    """Other threads run meanwhile: to read their stacks ended the process now and then."""
    end = threading.Event()
    other = threading.Thread(target=end.wait)
    other.start()
    live = rank_file(tmp_path, 0, "live")
    live.write_bytes(bytes(LIVE_BYTES))
    file = open_stacks(tmp_path, 0)
    assert file is not None
    try:
        os.kill(os.getpid(), STACKS_SIGNAL)
        written = live.read_bytes()[LIVE_BYTES:].decode()
    finally:
        faulthandler.unregister(STACKS_SIGNAL)
        file.close()
        end.set()
        other.join()
    assert "Thread 0x" not in written
    assert "test_only_the_thread" in parse_stack(written)[0]


def test_a_rank_that_cannot_write_its_events_says_why_in_a_short_line(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, rank=0, world_size=1)
    recorder._give_up(RuntimeError("CUDA error: an illegal memory access\nSearch for it in ..."))
    recorder.abandon()
    (said,) = read_messages(tmp_path)
    assert said == GaveUp(0, "CUDA error: an illegal memory access", num_lost=0, goes_on=True)
    assert said.sentence == (
        "rank 0: CUDA error: an illegal memory access; no events are lost; it records nothing more"
    )
    assert read_run(tmp_path).ranks[0].error == "CUDA error: an illegal memory access"


def test_the_place_is_a_line_of_the_workload() -> None:
    stack = (
        "/opt/.venv/lib/python3.12/site-packages/torch/cuda/__init__.py:1162 in synchronize",
        "train.py:88 in step",
        "train.py:120 in main",
        "<frozen runpy>:88 in _run_code",
    )
    assert place_in(stack) == "train.py:88 in step (inside synchronize)"
    assert place_in(stack[1:]) == "train.py:88 in step"
    assert place_in(stack[:1]) == stack[0]
    assert place_in((f"{Path.cwd()}/src/train.py:7 in step",)) == "src/train.py:7 in step"


WORKLOAD = """
import json, os, sys, time
from pathlib import Path
import kprof
import msgspec
from kprof.capture.journal import Dump, said
rank = int(sys.argv[1]) if len(sys.argv) > 1 else 0
if rank == 0 and os.fork() == 0:
    os.execv(sys.executable, [sys.executable, __file__, "1"])
recorder = kprof.recorder(rank=rank, world_size=2)
def wait_for_the_report():
    # Of both ranks with all their launches: an earlier report is replaced.
    path = os.environ["KPROF_RECORD_DIR"] + "/hang.json"
    while True:
        if os.path.exists(path):
            report = json.load(open(path))
            ranks = report["ranks"]
            if [(each["num_calls"], bool(each["stack"])) for each in ranks] == [(3, True), (2, True)]:
                json.dump(report, open(f"{os.path.dirname(__file__)}/seen-{rank}.json", "w"))
                break
        time.sleep(0.01)
    while not (dumps := said(Path(os.environ["KPROF_RECORD_DIR"]), None, Dump)):
        time.sleep(0.01)
    Path(__file__).with_name(f"dumps-{rank}.json").write_bytes(msgspec.json.encode(dumps))
for launch in range(3 - rank):
    recorder.launch("kernel")
wait_for_the_report()
recorder.close()
if rank == 0:
    os.wait()
"""


@pytest.mark.slow
def test_a_run_that_stands_still_is_reported_and_goes_on(tmp_path: Path) -> None:
    """Both ranks wait for the report of this moment; rank 1 made a launch less."""
    script = tmp_path / "workload.py"
    script.write_text(WORKLOAD)
    said: list[str] = []
    command = sys.executable, str(script)
    ring = Retention(ring_bytes=1 << 20)
    request = RecordRequest(command, tmp_path / "run.kprof", hang_after_s=1, retention=ring)
    recording = record(request, say=said.append)
    assert recording.exit_code == 0
    # What is kept may be a later one: on a busy machine ranks take long to end.
    assert read_hang(tmp_path / "run.kprof") is not None
    hang = msgspec.json.decode((tmp_path / "seen-0.json").read_bytes(), type=Hang)
    assert [(each.rank, each.num_calls, each.condition) for each in hang.ranks] == [
        (0, 3, "running"),
        (1, 2, "running"),
    ]
    assert hang.diagnosis.startswith("rank 1 has made 2 of the 3 calls of the recorder")
    assert any("in wait_for_the_report" in frame for frame in hang.ranks[1].stack)
    assert any("rank 1 has made 2 of the 3" in line for line in said)
    (dump,) = msgspec.json.decode((tmp_path / "dumps-0.json").read_bytes())
    assert dump["why"].startswith("hang: ")
