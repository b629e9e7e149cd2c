"""An arena that is emptied while kernels run: nothing is lost, or what is lost is counted."""

from __future__ import annotations

import ctypes
import os
import random
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import kprof
from drained import ARENA_BYTES, DRAIN, by_hand, draining, look, steps
from kprof.capture.losses import describe_losses
from kprof.capture.parts import PartWriter
from kprof.errors import ArenaError, CaptureError
from kprof.recording.arenas.arena_state import ArenaState
from kprof.recording.arenas.turns import Turns
from kprof.recording.endings import lifetime
from kprof.recording.finishing.recover import recover
from kprof.recording.retention import keeping
from kprof.recording.retention.keeping import Keeper
from kprof.trace import Trace
from replayed import CONTENTS, KERNELS, TRACKS, Graph, emitted, library, new_buffer, run_kernel

__all__ = ["by_hand", "library"]


def refuse(*_: object) -> None:
    raise CaptureError("the disk is full")


def assert_whole(trace: Trace, num_records: list[int]) -> None:
    counts = trace.ranks[0].counts
    assert (counts.recorded, counts.dropped) == (emitted(KERNELS, num_records), 0)
    assert (counts.unsplit_launches, counts.torn_chunks, counts.stray_chunks) == (0, 0, 0)
    assert (counts.torn_records, counts.damaged_heads) == (0, 0)
    assert len(trace.ranks[0].launches) == len(KERNELS) * len(num_records)


@pytest.mark.parametrize("is_graph", [False, True])
@pytest.mark.parametrize("seed", [1, 2])
def test_a_long_run_through_a_small_arena_is_what_a_large_one_holds(
    library: ctypes.CDLL, tmp_path: Path, by_hand: None, is_graph: bool, seed: int
) -> None:
    """Looks come at random moments, up to three a step."""
    moments = random.Random(seed)
    with draining(tmp_path / "small.kprof") as recorder:
        sizes = []
        for num_records in steps(library, recorder, 40, is_graph):
            sizes.append(num_records)
            for _ in range(moments.randrange(1, 4)):
                look(recorder)
        num_parts = len(list(tmp_path.glob("small.kprof.unfinished/part-*")))
    assert num_parts > 10
    with kprof.session(tmp_path / "large.kprof") as recorder:
        assert list(steps(library, recorder, 40, is_graph)) == sizes
    small, large = (Trace.open(tmp_path / name) for name in ("small.kprof", "large.kprof"))
    assert_whole(small, sizes)
    assert_whole(large, sizes)
    assert small.frame(CONTENTS).equals(large.frame(CONTENTS))


@pytest.mark.parametrize("steps_per_look", [7, 1000])
def test_replays_that_come_too_fast_are_counted(
    library: ctypes.CDLL, tmp_path: Path, by_hand: None, steps_per_look: int
) -> None:
    """They do not say how much they need, and nobody looks often enough."""
    with draining(tmp_path / "run.kprof") as recorder:
        sizes, is_left_out = [], False
        for step, num_records in enumerate(steps(library, recorder, 40, is_graph=True)):
            sizes += [] if is_left_out else [num_records]
            if step % steps_per_look == steps_per_look - 1:
                look(recorder)
            is_left_out = recorder._turns.is_left_out
    counts = Trace.open(tmp_path / "run.kprof").ranks[0].counts
    assert counts.dropped > 0
    assert counts.left_out_calls == 40 - len(sizes)
    assert counts.recorded + counts.dropped == emitted(KERNELS, sizes)
    assert (counts.torn_chunks, counts.torn_records, counts.stray_chunks) == (0, 0, 0)


@pytest.mark.amd
def test_graphs_follow_only_between_steps(
    library: ctypes.CDLL, tmp_path: Path, by_hand: None
) -> None:
    """Launches beside a graph do not move it: one of its replays may be running."""
    with draining(tmp_path / "run.kprof") as recorder:
        graph = Graph(library, recorder, *KERNELS)
        graph.replay(60)
        graph.replay(60)
        look(recorder)
        active = recorder._turns.active
        run_kernel(library, "run_marks", new_buffer(recorder, "run_marks"), 5, seed=0)
        assert recorder._turns.active is active
        recorder.step()
        assert recorder._turns.active is not active
        graph.replay(60)
    counts = Trace.open(tmp_path / "run.kprof").ranks[0].counts
    assert counts.recorded == emitted(KERNELS, [60] * 3) + emitted(["run_marks"], [5])
    assert counts.unsplit_launches == 0


def test_a_switch_waits_for_the_end_of_the_step_while_there_is_room(
    library: ctypes.CDLL, tmp_path: Path, by_hand: None
) -> None:
    """A kernel takes 3 of the 64 chunks of an arena: a switch is due with 16 and urgent with 32."""
    num_chunks = TRACKS["run_places"] * 3
    with draining(tmp_path / "run.kprof") as recorder:
        turns = recorder._turns
        switched_after = []
        recorder.step()
        for num_launches in (4, 4, 20):
            active, at = turns.active, 0
            for number in range(1, num_launches + 1):
                run_kernel(
                    library, "run_places", new_buffer(recorder, "run_places"), 2, seed=number
                )
                if turns.active is not active and not at:
                    at = (number - 1) * num_chunks
            recorder.step()
            switched_after.append((at, turns.active is not active))
            look(recorder)
        assert switched_after == [(0, False), (0, True), (33, True)]
    counts = Trace.open(tmp_path / "run.kprof").ranks[0].counts
    assert (counts.recorded, counts.dropped) == (28 * emitted(["run_places"], [2]), 0)


@pytest.mark.amd
def test_an_arena_is_read_only_when_its_launches_have_ended(
    library: ctypes.CDLL, tmp_path: Path, by_hand: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    has_ended: list[bool] = []
    monkeypatch.setattr("kprof.devices.gpu.Streams.moment", lambda self: lambda: bool(has_ended))
    with draining(tmp_path / "run.kprof") as recorder:
        late = new_buffer(recorder, "run_marks")
        for _ in steps(library, recorder, 5, is_graph=False):
            look(recorder)
        assert len(recorder._turns.retired) == 1
        run_kernel(library, "run_marks", late, 3, seed=0)
        has_ended.append(True)
        look(recorder)
        assert recorder._turns.retired == []
    trace = Trace.open(tmp_path / "run.kprof")
    table = trace.frame("SELECT count(*) AS n FROM events WHERE launch = 0")
    assert table["n"].tolist() == [emitted(["run_marks"], [3])]


@pytest.mark.parametrize("is_graph", [False, True])
def test_calls_that_find_no_room_are_left_out_whole(
    library: ctypes.CDLL,
    tmp_path: Path,
    by_hand: None,
    monkeypatch: pytest.MonkeyPatch,
    is_graph: bool,
) -> None:
    """No arena becomes free before step 30."""
    may_empty: list[bool] = []
    monkeypatch.setattr("kprof.devices.gpu.Streams.moment", lambda self: lambda: bool(may_empty))
    num_steps = 60
    with draining(tmp_path / "run.kprof") as recorder:
        kept, is_left_out = {}, False
        for step, num_records in enumerate(steps(library, recorder, num_steps, is_graph)):
            if not is_left_out:
                kept[step] = num_records
            if step == 30:
                may_empty.append(True)
            look(recorder)
            is_left_out = recorder._turns.is_left_out
    assert not {*range(20, 30)} & kept.keys()
    assert {*range(32, num_steps)} <= kept.keys()
    (info,) = Trace.open(tmp_path / "run.kprof").ranks
    counts = info.counts
    assert counts.dropped == counts.torn_chunks == counts.unsplit_launches == 0
    assert counts.recorded == emitted(KERNELS, list(kept.values()))
    assert counts.left_out_calls == num_steps - len(kept)
    assert counts.left_out_launches == (0 if is_graph else counts.left_out_calls * len(KERNELS))
    # Replays have numbers only once they are decoded.
    numbers = range(len(kept)) if is_graph else kept
    found = sorted((launch.kernel, launch.ordinal) for launch in info.launches)
    marks = [("run_marks", 2 * number + k) for number in numbers for k in range(2)]
    assert found == marks + [("run_places", number) for number in numbers]


def test_without_steps_a_call_begins_with_the_kernel_that_was_launched_first(
    library: ctypes.CDLL, tmp_path: Path, by_hand: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kprof.devices.gpu.Streams.moment", lambda self: lambda: False)
    with draining(tmp_path / "run.kprof") as recorder:
        has_buffer, kernels = [], ["run_marks", "run_places"]
        for _ in range(40):
            for kernel in kernels:
                buffer = new_buffer(recorder, kernel)
                has_buffer.append(bool(buffer.arena))
                if buffer.arena:
                    run_kernel(library, kernel, buffer, 60, seed=1)
            look(recorder)
    num_kept = sum(has_buffer)
    assert has_buffer == [True] * num_kept + [False] * (len(has_buffer) - num_kept)
    assert 0 < num_kept < len(has_buffer)
    assert num_kept % len(kernels) == 0
    trace = Trace.open(tmp_path / "run.kprof")
    counts = trace.ranks[0].counts
    assert counts.dropped == 0
    assert counts.left_out_launches == len(has_buffer) - num_kept
    assert counts.left_out_calls == counts.left_out_launches // len(kernels)
    (said,) = describe_losses(trace.manifest)
    assert said.startswith(f"{counts.left_out_calls} calls were left out whole")


@pytest.mark.parametrize("is_wanted", [False, True])
def test_the_thread_rests_until_it_has_had_its_share(
    tmp_path: Path, by_hand: None, monkeypatch: pytest.MonkeyPatch, is_wanted: bool
) -> None:
    """It has worked for 2 s of its 5 %; whoever waits for it ends its rest."""
    now_s = 10.0

    def wait(timeout_s: float) -> bool:
        nonlocal now_s
        now_s += timeout_s
        return is_wanted

    retention = kprof.Retention(drain=True, drain_share=0.05)
    with kprof.session(tmp_path / "run.kprof", retention=retention) as recorder:
        drainer = recorder._drainer
        assert drainer is not None
        with monkeypatch.context() as patch:
            patch.setattr("kprof.recording.retention.drainer.time.monotonic", lambda: now_s)
            patch.setattr(recorder._keeper, "is_wanted", wait)
            drainer._works_since = now_s - 2
            recorder._keeper.rest()
            assert now_s == 10
            patch.setattr(drainer, "_thread", threading.current_thread())
            recorder._keeper.rest()
            assert now_s == pytest.approx(10.05 if is_wanted else 48)


def test_who_waits_for_the_keeper_is_seen(tmp_path: Path, by_hand: None) -> None:
    with kprof.session(tmp_path / "run.kprof", retention=DRAIN) as recorder:
        keeper = recorder._keeper
        assert not keeper.is_wanted(0)
        with keeper._lock:
            flush = threading.Thread(target=recorder.flush)
            flush.start()
            while not keeper.is_wanted(0.01):
                pass
        flush.join()
        assert not keeper.is_wanted(0)
        keeper.hurry()
        assert keeper.is_wanted(1e9)


def test_a_fork_waits_for_the_thread_that_writes(
    tmp_path: Path, by_hand: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A library that writes has locks: a child that finds them held waits for ever."""
    inside, forking, of_a_library = threading.Event(), threading.Event(), threading.Lock()
    keep_as_usual = Keeper._keep

    def keep(*arguments: Any) -> list[ArenaState]:
        with of_a_library:
            inside.set()
            forking.wait()
            # Where the fork does not wait, it is over before this.
            time.sleep(0.5)
        return keep_as_usual(*arguments)

    monkeypatch.setattr(Keeper, "_keep", keep)
    with draining(tmp_path / "run.kprof") as recorder:
        thread = threading.Thread(target=recorder._keeper.keep_all)
        thread.start()
        inside.wait()
        forking.set()
        child = os.fork()
        if child == 0:
            os._exit(int(of_a_library.locked()))
        thread.join()
        assert os.waitpid(child, 0)[1] == 0


def test_a_fork_does_not_wait_for_long(
    tmp_path: Path, by_hand: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk may hang. The child can record all the same."""
    monkeypatch.setattr(lifetime, "_PATIENCE_S", 0.0)
    inside, is_done = threading.Event(), threading.Event()

    def write() -> None:
        with lifetime.forks_wait():
            inside.set()
            is_done.wait()

    with draining(tmp_path / "run.kprof"):
        thread = threading.Thread(target=write)
        thread.start()
        inside.wait()
        child = os.fork()
        if child == 0:
            with lifetime.forks_wait():
                os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        is_done.set()
        thread.join()


def test_who_saves_does_not_wait_for_a_disk_that_hangs(
    tmp_path: Path, by_hand: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeping, "_PATIENCE_S", 0.0)
    inside, is_done = threading.Event(), threading.Event()

    def write(keeper: Keeper) -> None:
        with keeper._alone():
            inside.set()
            is_done.wait()

    with draining(tmp_path / "run.kprof") as recorder:
        writer = threading.Thread(target=write, args=(recorder._keeper,))
        writer.start()
        inside.wait()
        saver = threading.Thread(target=recorder._keeper.save)
        saver.start()
        saver.join(60)
        has_given_up = not saver.is_alive()
        is_done.set()
        writer.join()
        saver.join()
        assert has_given_up


def test_a_signal_handler_may_fork_while_a_fork_waits() -> None:
    """In the midst of what the outer fork runs before it forks."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    lifetime._hold()
    lifetime._hold()
    lifetime._let_go()
    lifetime._let_go()
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == before
    assert not lifetime._is_writing()


def test_a_slow_disk_costs_whole_calls_and_no_memory(
    library: ctypes.CDLL, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk takes the first part only after the last step."""
    is_writing, may_write = threading.Event(), threading.Event()
    save: Callable[..., None] = PartWriter.save

    def save_slowly(*arguments: object) -> None:
        is_writing.set()
        may_write.wait()
        save(*arguments)

    monkeypatch.setattr(PartWriter, "save", save_slowly)
    with draining(tmp_path / "run.kprof") as recorder:
        sizes, is_left_out, num_steps = [], False, 0
        num_left = 50
        for num_records in steps(library, recorder, 1_000_000, is_graph=False):
            num_steps += 1
            sizes += [] if is_left_out else [num_records]
            is_left_out = recorder._turns.is_left_out
            num_left -= is_writing.is_set()
            if not num_left:
                break
        may_write.set()
    counts = Trace.open(tmp_path / "run.kprof").ranks[0].counts
    assert counts.left_out_calls == num_steps - len(sizes) > 0
    assert counts.left_out_launches == counts.left_out_calls * len(KERNELS)
    assert counts.recorded + counts.dropped == emitted(KERNELS, sizes)


def test_a_disk_that_refuses_ends_the_recording_and_not_the_workload(
    library: ctypes.CDLL,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    has_refused = threading.Event()
    let_go = kprof.Recorder._let_go

    def note_end(self: kprof.Recorder) -> None:
        let_go(self)
        has_refused.set()

    monkeypatch.setattr(PartWriter, "save", refuse)
    monkeypatch.setattr(kprof.Recorder, "_let_go", note_end)

    def workload() -> None:
        with draining(tmp_path / "run.kprof") as recorder:
            for _ in steps(library, recorder, 5, is_graph=False):
                pass
            # A call that finds a switch due retires the arena, and the thread fails to write it.
            while not has_refused.wait(0.01):
                recorder.step()
            assert new_buffer(recorder, "run_marks").arena == 0

    with pytest.raises(kprof.errors.WorkloadError, match="the disk is full") as raised:
        workload()
    assert "rank 0: recording stopped after" in str(raised.value)
    assert "rank 0: the disk is full; what it recorded is kept" in capfd.readouterr().err


def test_launches_after_the_disk_has_refused_are_counted(
    library: ctypes.CDLL, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with kprof.session(tmp_path / "run.kprof", arena_bytes=ARENA_BYTES) as recorder:
        run_kernel(library, "run_marks", new_buffer(recorder, "run_marks"), 5, seed=0)
        recorder.flush()
        run_kernel(library, "run_marks", new_buffer(recorder, "run_marks"), 1000, seed=0)
        with monkeypatch.context() as patch:
            patch.setattr(PartWriter, "save", refuse)
            recorder.flush()
        for _ in range(3):
            assert new_buffer(recorder, "run_marks").arena == 0
    manifest = Trace.open(tmp_path / "run.kprof").manifest
    stopped = "recording stopped after its first 2 launches; 3 launches after that are not recorded"
    assert [info.cut_short for info in manifest.ranks] == [stopped]
    (said,) = manifest.messages
    assert said.endswith("what it recorded is kept; it records nothing more")


@pytest.mark.parametrize("has_saved", [False, True])
def test_what_the_disk_refuses_to_the_end_is_recovered_on_another_disk(
    library: ctypes.CDLL, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_saved: bool
) -> None:
    sizes = [5, 1000, 7]
    with monkeypatch.context() as patch:
        with kprof.session(tmp_path / "run.kprof", arena_bytes=ARENA_BYTES) as recorder:
            for number, size in enumerate(sizes):
                run_kernel(library, "run_marks", new_buffer(recorder, "run_marks"), size, seed=0)
                if number == 0:
                    recorder.flush()
                if number == 1 and has_saved:
                    recorder.save()
            patch.setattr(PartWriter, "save", refuse)
        here = Trace.open(tmp_path / "run.kprof")
        (info,) = here.manifest.ranks
        assert [each.launch for each in info.launches] == [0]
        left = tmp_path / "run.kprof.rank-0.attempt-1.unfinished"
        assert "the last 2 of its 3 launches are not in this capture" in here.manifest.messages[-1]
        assert f"kprof recover {left}" in here.manifest.messages[-1]
        with pytest.raises(CaptureError, match="the disk is full"):
            recover(left)
    other = tmp_path / "other"
    other.mkdir()
    (there,) = recover(left, other / "run.kprof").manifest.ranks
    assert [each.launch for each in there.launches] == [1, 2]
    counts = [info.counts, there.counts]
    assert info.counts.recorded == emitted(["run_marks"], sizes[:1])
    assert sum(each.recorded + each.dropped for each in counts) == emitted(["run_marks"], sizes)
    assert not left.exists()


def test_a_flush_while_arenas_are_retired_keeps_the_order(
    library: ctypes.CDLL, tmp_path: Path, by_hand: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The device was idle: what the drainer left is written first."""
    monkeypatch.setattr("kprof.devices.gpu.Streams.moment", lambda self: lambda: False)
    with draining(tmp_path / "run.kprof") as recorder:
        sizes = []
        for num_records in steps(library, recorder, 5, is_graph=True):
            sizes.append(num_records)
            look(recorder)
            if len(sizes) == 3:
                recorder.flush()
    trace = Trace.open(tmp_path / "run.kprof")
    assert_whole(trace, sizes)
    replays = [launch.replay for launch in trace.ranks[0].launches]
    assert replays == [step for step in range(5) for _ in KERNELS]


def test_launches_that_reserve_enough_switch_without_a_look(
    library: ctypes.CDLL, tmp_path: Path, by_hand: None
) -> None:
    """Where launches come fast, the thread's next look would be too late."""
    with draining(tmp_path / "run.kprof") as recorder:
        first = recorder._turns.active
        # A quarter of 64 chunks are 16, and each launch reserves 3.
        has_switched = []
        for _ in range(8):
            recorder.launch("run_places", ["mark"], num_blocks=3, tracks_per_block=1)
            has_switched.append(recorder._turns.active is not first)
    assert has_switched == [False] * 6 + [True] * 2


@pytest.mark.parametrize("limit", ["MAX_SUMMARISED", "MAX_SUMMARISED_BLOCKS"])
@pytest.mark.parametrize(("most", "has_summary"), [(9, False), (10, True)])
def test_a_process_does_not_wait_for_the_summary_of_a_long_run(
    library: ctypes.CDLL,
    tmp_path: Path,
    by_hand: None,
    monkeypatch: pytest.MonkeyPatch,
    limit: str,
    most: int,
    has_summary: bool,
) -> None:
    """Readers make it: they have all cores, and nobody waits for the end of a workload then."""
    num_events = emitted(["run_places"], [1])
    num_blocks = 3  # As new_buffer says.
    size = num_events if limit == "MAX_SUMMARISED" else num_blocks
    monkeypatch.setattr(f"kprof.recording.rank.closing.{limit}", size * most // 10)
    with kprof.session(tmp_path / "run.kprof", retention=DRAIN) as recorder:
        run_kernel(library, "run_places", new_buffer(recorder, "run_places"), 1, seed=1)
    assert bool(list((tmp_path / "run.kprof").glob("summary-*"))) == has_summary
    assert Trace.open(tmp_path / "run.kprof").num_events() == num_events


def test_an_arena_too_small_for_halves_says_how_much_it_needs() -> None:
    with pytest.raises(ArenaError, match="give at least 26624 bytes"):
        Turns(20_000, num_arenas=2)
