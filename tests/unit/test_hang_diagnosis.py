"""Who is at fault, from the state of all ranks or of their hosts: a state, and the sentence that it gives."""

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
from msgspec import structs

import kprof
from kprof.capture.claims import read_messages
from kprof.capture.losses import GaveUp
from kprof.capture.names import rank_file
from kprof.hangs import look
from kprof.hangs.diagnosis import Diagnosis, Kind, diagnose
from kprof.hangs.evidence import read_run
from kprof.hangs.hosts import diagnose_hosts
from kprof.hangs.report import Hang, describe, lines_of, make_report, read_hang
from kprof.hangs.stacks import STACKS_SIGNAL, open_stacks, parse_stack, place_in
from kprof.hangs.state import (
    Call,
    Condition,
    OpenSpan,
    RankState,
    Records,
    RunState,
    Sent,
    Track,
)
from kprof.rank_memory import LIVE_BYTES
from kprof.recording.launcher.record import RecordRequest, record
from kprof.recording.rank.recorder import Recorder
from kprof.recording.retention.retention import Retention

CALL = Call("combine", 4)
SENDERS: dict[str, tuple[str, ...]] = {"wait": ("send",)}


def wait(rank: int, peer: int, slot: int = 7, block: int = 0) -> OpenSpan:
    region = "wait" if peer >= 0 else "barrier"
    return OpenSpan.of(Track(rank, 4, block), CALL, region, peer, slot)


def sent(rank: int, peer: int, slot: int, *, ordinal: int = 4, block: int = 0) -> Sent:
    call = Call("combine", ordinal)
    return Sent(Track(rank, ordinal, block), call, "send", peer, slot)


def state(rank: int, *waits: OpenSpan, num_launches: int = 5, num_blocks: int = 2) -> RankState:
    launches = {n: (Call("combine", n), num_blocks) for n in range(num_launches)}
    return RankState(rank, num_launches=num_launches, launches=launches, waits=waits)


def run(*ranks: RankState) -> RunState:
    return RunState({each.rank: each for each in ranks}, SENDERS, len(ranks))


def sentence(of: RunState) -> str:
    root = diagnose(of).root
    return describe(root, of) if root else ""


def test_ranks_that_wait_for_each_other_are_a_cycle() -> None:
    both = run(state(0, wait(0, 1)), state(1, wait(1, 0, 3, block=1)), state(2, wait(2, 0)))
    found = diagnose(both)
    assert found.root is not None
    assert (found.root.kind, found.root.ranks) == (Kind.CYCLE, (0, 1))
    assert sentence(both) == (
        "ranks 0, 1 wait for each other: block 0 of rank 0 for slot 7 of rank 1, "
        "block 1 of rank 1 for slot 3 of rank 0"
    )
    assert found.causes[0][1] == 3


def test_a_rank_that_never_launched_is_named_with_its_stack() -> None:
    late = replace(state(2, num_launches=4), stack=("train.py:88 in step",))
    assert sentence(run(state(0, wait(0, 2)), state(1, wait(1, 2)), late)) == (
        "rank 2 has not launched call 4 of combine, in which it sends slot 7 to rank 0; "
        "its Python code is at train.py:88 in step"
    )


def test_a_rank_that_waits_in_an_earlier_launch_is_not_the_root() -> None:
    """Rank 2 cannot launch: its call 3 waits for rank 1, which has ended."""
    blocked = OpenSpan.of(Track(2, 3, 0), Call("combine", 3), "wait", 1, 9)
    gone = replace(state(1), condition=Condition.ENDED)
    waiting = run(state(0, wait(0, 2)), gone, state(2, blocked, num_launches=4))
    assert sentence(waiting) == (
        "rank 1 has ended and block 0 of rank 2 waits in wait for its slot 9 of call 3 of combine"
    )


@pytest.mark.parametrize(
    ("held", "why"),
    [
        (4, "it waits for 5: the send stored another epoch, or at another address, or nothing"),
        (5, "it waits for 5, which it holds: check the comparison"),
        (6, "it waits for 5, which the flag has passed: compare with >=, not with =="),
    ],
)
def test_what_the_flag_holds_says_why_a_send_is_not_seen(held: int, why: str) -> None:
    blind = structs.replace(wait(0, 1), held=held, wanted=5)
    seen = run(state(0, blind), replace(state(1), records=Records(1, (sent(1, 0, 7),))))
    begin = (
        "rank 1 sent slot 7 in call 4 of combine (block 0), but block 0 of rank 0 does not see it"
    )
    assert sentence(seen) == f"{begin} in wait: its flag holds {held} and {why}"
    (line,) = [
        line for line in lines_of(make_report(seen, diagnose(seen), 60.0)) if "block 0" in line
    ][1:]
    assert line.endswith(f"; its flag holds {held}, it waits for 5")


def test_a_slot_sent_twice_in_place_of_another_is_named() -> None:
    earlier = [sent(1, 0, slot, ordinal=3, block=slot) for slot in (7, 8)]
    here = [sent(1, 0, 8, block=7), sent(1, 0, 8, block=8)]
    sender = replace(state(1, num_launches=6), num_finished=5)
    twice = replace(sender, records=Records(4, (*earlier, *here)))
    assert sentence(run(state(0, wait(0, 1)), twice)) == (
        "rank 1 sent slot 8 to rank 0 twice in call 4 of combine (blocks 7 and 8), and never sent "
        "slot 7: block 0 of rank 0 waits in wait for it"
    )
    # A kernel that always sends that slot twice has merely left out the other.
    always = (*earlier, sent(1, 0, 8, ordinal=3), *here)
    usual = replace(sender, records=Records(5, always))
    assert "ran past its send of slot 7 to rank 0" in sentence(run(state(0, wait(0, 1)), usual))


def test_a_track_that_has_sent_what_comes_later_has_passed_the_place() -> None:
    """In call 3 block 1 of rank 1 sent slots 7, 9; in call 4 only slot 9, and it waits nowhere."""
    before = [sent(1, 0, slot, ordinal=3, block=1) for slot in (7, 9)]
    started = {4: frozenset((0, 1))}
    here = [sent(1, 0, 9, block=1)]
    passed = replace(state(1), records=Records(3, (*before, *here), started))
    assert sentence(run(state(0, wait(0, 1)), passed)) == (
        "rank 1 ran past its send of slot 7 to rank 0 in call 4 of combine without sending: "
        "block 0 of rank 0 waits in wait for it"
    )
    silent = replace(passed, records=Records(2, tuple(before), started))
    assert sentence(run(state(0, wait(0, 1)), silent)) == (
        "rank 1 has launched call 4 of combine and has not sent slot 7 to rank 0; block 1 of rank "
        "1, which sent it before, does not wait: it computes without progress, or ended "
        "without sending"
    )
    assert diagnose(run(state(0, wait(0, 1)), replace(passed, is_moving=True))).is_moving


def test_of_a_rank_that_stands_the_announced_spans_are_told() -> None:
    before = sent(1, 0, 7, ordinal=3, block=1)
    started = {4: frozenset((0, 1))}
    track = Track(1, 4, 1, 2)
    spans = (
        OpenSpan.of(track, CALL, "tile", age_s=40.0, start_ticks=100),
        OpenSpan.of(track, CALL, "gemm", age_s=31.2, start_ticks=200),
        OpenSpan.of(Track(1, 4, 0, 0), CALL, "tile", age_s=12.0, start_ticks=300),
    )
    silent = replace(state(1), records=Records(1, (before,), started), spans=spans)
    stands = run(state(0, wait(0, 1)), replace(silent, records=Records(0, (), started)))
    assert sentence(stands) == (
        "rank 1 has launched call 4 of combine, has not sent slot 7 to rank 0 and makes no progress: "
        "block 1, warp 2 of rank 1 has been in gemm for 31 s (inside tile), and 1 more of its tracks "
        "are in others"
    )
    moving = run(state(0, wait(0, 1)), replace(stands.ranks[1], is_moving=True))
    assert sentence(moving).startswith(
        "rank 1 is still working towards call 4 of combine: slow, not hung: block 1, warp 2"
    )
    # The track that should send is known, and it is another one.
    other = run(state(0, wait(0, 1)), silent)
    assert "block 1 of rank 1, which sent it before, does not wait" in sentence(other)
    lines = lines_of(make_report(stands, diagnose(stands), 60.0))
    assert "  rank 1 block 1 warp 2 is in gemm for 31 s (inside tile) (call 4 of combine)" in lines
    assert "  rank 1 block 0 warp 0 is in tile for 12 s (call 4 of combine)" in lines


def test_what_a_rank_that_ended_waited_for_is_not_said() -> None:
    """It sent, and its peer's send of an earlier call is on record: nothing of that matters."""
    reason = "CUDA error: an illegal memory access was encountered"
    gone = replace(state(1, wait(1, 0, 3)), condition=Condition.ENDED, error=reason)
    waiting = replace(state(0, wait(0, 1)), records=Records(2, (sent(0, 1, 3),)))
    found = make_report(run(waiting, gone), diagnose(run(waiting, gone)), 3.0)
    assert lines_of(found) == [
        f"rank 1 has ended ({reason}) and block 0 of rank 0 waits in wait for its slot 7 of call 4 "
        "of combine",
        "  rank 0 block 0 in wait for rank 1, slot 7 (call 4 of combine)",
        "  rank 0: running, 5 launches",
        f"  rank 1: ended ({reason}), 5 launches",
    ]


def test_a_send_on_record_that_is_not_seen() -> None:
    sender = replace(state(1), records=Records(10, (sent(1, 0, 7, block=1),)))
    assert sentence(run(state(0, wait(0, 1)), sender)) == (
        "rank 1 sent slot 7 in call 4 of combine (block 1), but block 0 of rank 0 does not see it "
        "in wait: check the epoch, the fence and the address"
    )


def test_a_stopped_rank_is_named_with_what_lets_it_go_on() -> None:
    stopped = replace(state(1), condition=Condition.STOPPED, pid=4711)
    assert "rank 1 is stopped: resume it with kill -CONT 4711" in sentence(
        run(state(0, wait(0, 1)), stopped)
    )


def test_blocks_that_never_started_are_the_root_of_a_barrier() -> None:
    barrier = [wait(0, -1, -1, block) for block in (0, 1)]
    records = Records(2, (), {4: frozenset((0, 1))})
    rank = replace(state(0, *barrier, num_blocks=3), records=records)
    other = state(1, wait(1, 0))
    assert sentence(run(rank, other)) == (
        "block 2 of 3 of rank 0 never started in call 4 of combine: the grid does not fit the "
        "device at once, and block 0 of rank 0 waits in barrier"
    )


HERE = wait(0, 1)
BACK = state(1, wait(1, 0, 3))
# In other calls every track of rank 1 sent before it waited; here it waits and has not.
SKIPPED = replace(BACK, records=Records(8, (), {}, frozenset([("send", "wait")])))
GONE = replace(state(1), condition=Condition.ENDED)
NO_ROOM = replace(state(0, HERE, num_blocks=3), records=Records(2, (), {4: frozenset((0,))}))
OTHER_SENDS = (sent(1, 0, 8), sent(1, 2, 7), sent(1, 0, 7, ordinal=3))
MOVES = replace(state(3), is_moving=True)


@pytest.mark.parametrize(
    ("ranks", "kind", "at_fault"),
    [
        # A send to another rank, of another slot or in another call is not the one.
        (
            [state(0, HERE), replace(state(1), records=Records(10, OTHER_SENDS))],
            Kind.STANDS_STILL,
            (1,),
        ),
        # A hang beside a rank that moves is still a hang.
        ([state(0, HERE), state(1, wait(1, 0)), state(2, wait(2, 3)), MOVES], Kind.CYCLE, (0, 1)),
        # Blocks that have no place yet are not blamed where the others wait for a cause.
        ([NO_ROOM, GONE, state(2, wait(2, 0))], Kind.ENDED, (1,)),
        # Who skipped its send is told from a cycle, but where the other could not be asked: it may
        # have skipped its send as well.
        ([replace(state(0, HERE), records=Records(8)), SKIPPED], Kind.NEVER_SENT, (1,)),
        ([state(0, HERE), SKIPPED], Kind.CYCLE, (0, 1)),
        # A wait without a rule.
        ([state(0, wait(0, -1, -1))], Kind.STANDS_STILL, (0,)),
    ],
)
def test_what_the_root_is(ranks: list[RankState], kind: Kind, at_fault: tuple[int, ...]) -> None:
    found = diagnose(run(*ranks))
    assert found.root is not None
    assert (found.root.kind, found.root.ranks) == (kind, at_fault)
    assert not found.is_moving


def test_a_rank_that_gets_on_is_slow() -> None:
    late = replace(state(2, num_launches=4), host_moves=True)
    for waits, slow in ((wait(0, 2), late), (HERE, replace(state(1), is_moving=True))):
        assert diagnose(run(state(0, waits), slow)).is_moving


def test_nobody_waits() -> None:
    assert diagnose(run(state(0), state(1))) == Diagnosis()


def test_a_report_has_the_root_the_waits_and_the_ranks() -> None:
    both = run(state(0, structs.replace(wait(0, 1), age_s=31.4)), state(1, wait(1, 0)))
    hang = make_report(both, diagnose(both), 61.23)
    assert (hang.kind, hang.ranks_at_fault, hang.idle_s) == ("cycle", (0, 1), 61.2)
    assert lines_of(hang)[1:] == [
        "  rank 0 block 0 in wait for rank 1, slot 7 (call 4 of combine): still waiting after 31 s",
        "  rank 1 block 0 in wait for rank 0, slot 7 (call 4 of combine)",
        "  rank 0: running, 5 launches",
        "  rank 1: running, 5 launches",
    ]


def host_state(rank: int, num_calls: int, is_running: bool = True, stack: str = "") -> RankState:
    condition = Condition.RUNNING if is_running else Condition.ENDED
    return RankState(rank, condition, num_calls=num_calls, stack=(stack,) if stack else ())


def launched(of: RankState, num_launches: int) -> RankState:
    """With so many launches of one kernel among its calls."""
    launches = {number: (Call("combine", number), 1) for number in range(num_launches)}
    return replace(of, num_launches=num_launches, launches=launches)


@pytest.mark.parametrize(
    ("states", "sentence"),
    [
        (
            [launched(host_state(0, 9), 6), launched(host_state(1, 7), 4)],
            "rank 1 has made 7 of the 9 calls of the recorder (launches and steps) that others have "
            "made, and not call 4 of combine",
        ),
        (
            [host_state(0, 42), host_state(1, 42), host_state(2, 40, stack="train.py:88 in step")],
            "rank 2 has made 40 of the 42 calls of the recorder (launches and steps) that others have "
            "made; its Python code is at train.py:88 in step",
        ),
        ([host_state(0, 5), host_state(1, 3, False)], "rank 1 ended, rank 0 did not"),
        (
            [host_state(0, 7), host_state(1, 7)],
            "all ranks have made 7 calls of the recorder (launches and steps): a kernel does not",
        ),
        (
            [host_state(0, 7, stack="a.py:1 in wait"), host_state(1, 7, stack="a.py:1 in wait")],
            "wait for something else; its Python code is at a.py:1 in wait",
        ),
    ],
)
def test_the_rank_that_is_behind_is_named(states: list[RankState], sentence: str) -> None:
    assert sentence in diagnose_hosts(RunState({each.rank: each for each in states}))


def spinning(rank: int, spans: tuple[OpenSpan, ...] = ()) -> RankState:
    """In a kernel of 4 blocks that does not say that it waits: 3 of them have begun."""
    at = launched(host_state(rank, 2), 2)
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
