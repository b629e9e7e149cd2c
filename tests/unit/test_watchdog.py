"""The watchdog of a service: when it speaks, and what it leaves behind."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from thread_ranks import ThreadGroup, run_threads

import kprof
from kprof.errors import OutputExistsError, RecorderError
from kprof.hangs.asking import Answers
from kprof.hangs.report import Hang, read_hang, write_hang
from kprof.hangs.state import Call, OpenSpan, RankState, RunState, Track
from kprof.hangs.watch import Directory, Signature, Watch, news_of
from kprof.recording.rank.watchdog import REPORT_SIGNAL, Watchdog, was_written_since


@pytest.fixture
def recorder(tmp_path: Path) -> Iterator[kprof.Recorder]:
    with kprof.session(tmp_path / "run.kprof", arena_bytes=1 << 20) as recorder:
        yield recorder
    signal.set_wakeup_fd(-1)


class Stands(Directory):
    """A run that stands still: a source of a watch."""

    def __init__(self, *states: RankState, answers: Iterable[Answers] = ()) -> None:
        super().__init__(Path())
        self._run = RunState({state.rank: state for state in states}, {}, len(states))
        self._answers = iter(answers)

    def signature(self) -> object:
        return 1

    def ask(self) -> Answers:
        return next(self._answers, Answers())

    def read(self, moving: frozenset[int], answers: Answers, now_s: float) -> RunState:
        return RunState(
            {
                rank: replace(
                    state, is_silent=rank in answers.silent, stack=answers.stacks.get(rank, ())
                )
                for rank, state in self._run.ranks.items()
            }
        )

    def with_records(self, run: RunState) -> RunState:
        return run

    def is_running(self) -> bool:
        return True


def findings(source: Stands) -> list[Hang | None]:
    watch = Watch(source, 60.0, only_kernels=True)
    return [watch.step(at) for at in (0.0, 15.0, 100.0)]


def test_ranks_that_are_idle_or_uneven_do_not_hang() -> None:
    """A service waits for requests; only a kernel that waits is worth a report."""
    idle = RankState(0, num_calls=7), RankState(1, num_calls=3)
    assert findings(Stands(*idle)) == [None] * 3
    call = Call("combine", 0)
    waiting = RankState(
        0, launches={0: (call, 1)}, waits=(OpenSpan.of(Track(0, 0, 0), call, "wait", 1, 7),)
    )
    *before, found = findings(Stands(waiting, RankState(1)))
    assert before == [None] * 2
    assert found is not None
    assert "rank 1 has not launched call 0 of combine" in found.diagnosis


def test_a_rank_that_is_slow_to_save_is_asked_again() -> None:
    """It looks like one that holds the interpreter lock, until it has saved."""
    call = Call("combine", 0)
    wait = OpenSpan.of(Track(0, 0, 0), call, "wait", 1, 7)
    ranks = RankState(0, launches={0: (call, 1)}, waits=(wait,)), RankState(1)
    stacks = {0: ("a.py:1 in main",), 1: ("a.py:1 in main",)}
    slow, saved = Answers(stacks, silent=frozenset({1})), Answers(stacks)
    watch = Watch(Stands(*ranks, answers=(slow, slow, saved)), 60.0)
    *_, first, second, third = [watch.step(at) for at in (0.0, 15.0, 100.0, 101.0, 102.0)]
    assert first is not None
    assert second is not None
    assert "seems to hold the interpreter lock" in first.diagnosis
    assert "seems to hold the interpreter lock" not in second.diagnosis
    assert third is None


def test_nobody_is_asked_while_no_kernel_waits(recorder: kprof.Recorder) -> None:
    saved: list[int] = []
    directory = recorder.listen()
    source = Directory(directory, save_here=lambda: saved.append(1))
    assert source.ask() == Answers()
    assert saved == []


def test_the_signal_and_the_thread_are_given_back(recorder: kprof.Recorder) -> None:
    with kprof.watchdog(recorder, after_s=3600) as watchdog:
        assert signal.getsignal(REPORT_SIGNAL) not in (signal.SIG_DFL, signal.SIG_IGN)
        assert "kprof watchdog" in {thread.name for thread in threading.enumerate()}
    assert signal.getsignal(REPORT_SIGNAL) is signal.SIG_DFL
    assert "kprof watchdog" not in {thread.name for thread in threading.enumerate()}
    watchdog.close()


def test_a_signal_that_the_workload_handles_stays_the_workloads(
    recorder: kprof.Recorder, capfd: pytest.CaptureFixture[str]
) -> None:
    heard: list[int] = []
    previous = signal.signal(signal.SIGUSR1, lambda number, _: heard.append(number))
    try:
        with kprof.watchdog(recorder, signal_number=signal.SIGUSR1):
            os.kill(os.getpid(), signal.SIGUSR1)
        assert heard == [signal.SIGUSR1]
    finally:
        signal.signal(signal.SIGUSR1, previous)
    assert "signal SIGUSR1 makes no report: the workload handles it" in capfd.readouterr().err


class Found:
    """A watch that has found something."""

    def __init__(self, hang: Hang | None) -> None:
        self._hang, self.has_reported = hang, hang is not None
        self.news = "the run moves again"

    def step(self, now_s: float) -> Hang | None:
        return self._hang


def find(watchdog: Watchdog, hang: Hang | None) -> None:
    """A closed watchdog looks once more."""
    watchdog._watch = Found(hang)  # type: ignore[assignment]
    watchdog._look()


def test_a_hang_is_told_once_and_a_callback_that_fails_ends_nothing(
    recorder: kprof.Recorder, capfd: pytest.CaptureFixture[str]
) -> None:
    heard: list[Hang] = []

    def on_hang(hang: Hang) -> None:
        heard.append(hang)
        raise KeyError("pager")

    watchdog = kprof.watchdog(recorder, after_s=3600, on_hang=on_hang)
    watchdog.close()
    hang = Hang(61.0, "rank 1 never sent slot 17", "never_sent", (1,))
    find(watchdog, hang)
    find(watchdog, hang)
    assert heard == [hang]
    assert read_hang(recorder.listen()) == hang
    find(watchdog, None)
    find(watchdog, None)
    errors = capfd.readouterr().err
    assert errors.count("kprof: the run moves again\n") == 1
    assert errors.count("kprof: nothing has moved for 61 s: rank 1 never sent slot 17\n") == 1
    assert errors.count("kprof: rank 0: on_hang failed: KeyError('pager')\n") == 1


def test_what_another_rank_has_told_is_not_told_again(tmp_path: Path) -> None:
    hang = Hang(61.0, "rank 1 never sent slot 17", "never_sent", (1,))
    assert not was_written_since(0.0, tmp_path, hang.diagnosis)
    write_hang(tmp_path, hang)
    written_s = (tmp_path / "hang.json").stat().st_mtime
    assert was_written_since(written_s - 1, tmp_path, hang.diagnosis)
    assert not was_written_since(written_s + 1, tmp_path, hang.diagnosis)
    assert not was_written_since(written_s - 1, tmp_path, "another one")
    (tmp_path / "hang.json").write_bytes(b"{")
    assert not was_written_since(written_s - 1, tmp_path, hang.diagnosis)


def test_a_signal_that_is_none_leaves_no_thread(recorder: kprof.Recorder) -> None:
    with pytest.raises(ValueError, match="signal number"):
        kprof.watchdog(recorder, signal_number=999)
    assert "kprof watchdog" not in {thread.name for thread in threading.enumerate()}


def test_a_time_that_is_none_is_refused() -> None:
    with pytest.raises(RecorderError, match="after_s=0: give the seconds"):
        kprof.watchdog(kprof.recorder(), after_s=0)


def test_what_keeps_rank_0_from_a_capture_is_raised_by_all_ranks(tmp_path: Path) -> None:
    output = tmp_path / "run.kprof"
    with kprof.session(output, arena_bytes=1 << 20):
        pass

    def work(group: ThreadGroup) -> str:
        with (
            pytest.raises(OutputExistsError) as error,
            kprof.session(output, arena_bytes=1 << 20, group=group),
        ):
            pass
        return str(error.value)

    first, second = run_threads(2, work)
    assert first == second
    assert "run.kprof" in first


def test_a_session_that_raises_keeps_what_it_has_wherever_it_was_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    @kprof.session("run.kprof", arena_bytes=1 << 20)
    def fail() -> None:
        kprof.recorder().launch("combine")
        raise KeyError

    with pytest.raises(KeyError):
        fail()
    manifest = kprof.open(tmp_path / "run.kprof").manifest
    (info,) = manifest.ranks
    assert [launch.kernel for launch in info.launches] == ["combine"]
    assert manifest.exit_code == 1


def test_a_rank_that_was_killed_does_not_make_a_run_move() -> None:
    hung = Signature(calls={0: 3, 1: 3}, waits={0: 7}, conditions={0: "running", 1: "running"})
    killed = hung._replace(conditions={0: "running"})
    assert news_of(hung, killed) == ("rank 1 is gone, killed or ended: nothing is known after that")
    assert news_of(hung, killed._replace(waits={})).startswith("rank 1 is gone")
    assert news_of(hung, killed._replace(conditions={})).startswith("ranks 0, 1 are gone")
    assert news_of(hung, hung._replace(calls={0: 4, 1: 3})) == "the run moves again"
    assert news_of(hung, hung._replace(waits={})) == "the run moves again"
    assert "stopped" in news_of(hung, hung._replace(conditions={0: "stopped", 1: "running"}))
