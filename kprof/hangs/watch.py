"""Watches a run for hangs: nothing moves any more, and somebody waits.

    every second     look at the memory that ranks share: launches, open waits. No rank is asked.
    soon             after an eighth of `after_s` without a change: ask the ranks for their stacks
                     and records
    `after_s` later  ask again: who has recorded more meanwhile, or whose host has got on, moves. A
                     wait for a rank that moves is slow, not hung. All else is reported, once.

The run is left alone. Replays of graphs are no calls of the recorder; `recorder.step()` is one.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

from kprof.capture.claims import num_calls_of, ranks_in_use
from kprof.capture.directory import output_of
from kprof.capture.losses import name_ranks
from kprof.hangs.asking import Answers, ask, moved
from kprof.hangs.diagnosis import diagnose
from kprof.hangs.evidence import conditions_of, read_run, with_records
from kprof.hangs.hosts import diagnose_hosts, is_uneven
from kprof.hangs.lines import has_waits, signature_of
from kprof.hangs.report import Hang, lines_of, make_report, write_hang
from kprof.hangs.state import Ages, Condition, RunState

# Set by `kprof record` for the workload, so that recorders open their files.
HANG_AFTER_VARIABLE: Final = "KPROF_HANG_AFTER"
_POLL_S: Final = 1.0
# A rank that is stopped does not answer, and one that holds the interpreter lock does not save.
_MAX_TRIES: Final = 10

Say = Callable[[str], None]


def hang_after_of(environment: Mapping[str, str]) -> float:
    """What `kprof record --hang-after` was given; 0 where it was not."""
    try:
        return float(environment.get(HANG_AFTER_VARIABLE, "0"))
    except ValueError:
        return 0.0


class Signature(NamedTuple):
    """What shows without asking a rank: calls, waits that last, and what became of each rank."""

    calls: object
    waits: object
    conditions: Mapping[int, object]


def news_of(before: object, now: object) -> str:
    """What has changed after a hang was reported: a rank that is gone does not make a run move."""
    if isinstance(before, Signature) and isinstance(now, Signature) and now.calls == before.calls:
        gone = sorted(before.conditions.keys() - now.conditions.keys())
        if gone:
            are = "is" if len(gone) == 1 else "are"
            return f"{name_ranks(gone)} {are} gone, killed or ended: nothing is known after that"
        if now.waits == before.waits:
            return "a process was stopped or continued; nothing else has changed"
    return "the run moves again"


class Directory:
    """A run that is recorded into a directory on this host.

    With `save_here` this is a process that records, too, and that saves what it has when others are
    asked; then nobody is asked while no kernel waits.
    """

    def __init__(self, directory: Path, save_here: Callable[[], None] | None = None) -> None:
        self._directory, self._save_here = directory, save_here
        self._ages = Ages()

    def signature(self) -> object:
        """Launches, steps, waits that last long, and which processes have ended or are stopped:
        changes whenever a rank gets on, as far as shared memory tells."""
        here = self._directory
        return Signature(num_calls_of(here), signature_of(here), conditions_of(here))

    def ask(self) -> Answers:
        """Ask the ranks; for their records where a kernel waits."""
        is_waiting = has_waits(self._directory)
        if self._save_here is not None:
            if not is_waiting:
                return Answers()
            self._save_here()
        return ask(self._directory, for_records=is_waiting)

    def read(self, moving: frozenset[int], answers: Answers, now_s: float) -> RunState:
        """What is known now; ages count from when this source first saw a wait."""
        return self._ages.seen(read_run(self._directory, answers, moving=moving), now_s)

    def with_records(self, run: RunState) -> RunState:
        """The same state with what all ranks have recorded, for which they are asked. Only once a
        run hangs: writing them takes a while."""
        ask(self._directory, for_records=True)
        return with_records(self._directory, run)

    def is_running(self) -> bool:
        """Whether any rank still records: has its lock."""
        return bool(ranks_in_use(self._directory))


class Watch:
    """Decides, step by step, whether a run hangs. `step` is given the time: it reads no clock.

    With `is_patient` a run in which no kernel waits is reported only where ranks are uneven, with
    `only_kernels` never.
    """

    def __init__(
        self,
        source: Directory,
        after_s: float,
        *,
        is_patient: bool = False,
        only_kernels: bool = False,
    ) -> None:
        self._source, self.after_s = source, after_s
        self._is_patient, self._only_kernels = is_patient, only_kernels
        self._seen: object = None
        # What has changed since the run was as it was before.
        self.news = ""
        self._changed_s = self._asked_s = 0.0
        self._asked: Answers | None = None
        self._tries = 0

    @property
    def has_reported(self) -> bool:
        """Whether the run has not moved since a report."""
        return self._tries > 0

    def step(self, now_s: float) -> Hang | None:
        """Look at the run; a report when it hangs."""
        signature = self._source.signature()
        if signature != self._seen:
            self.news = news_of(self._seen, signature)
            self._seen, self._changed_s, self._asked, self._tries = signature, now_s, None, 0
        idle_s = now_s - self._changed_s
        if self._asked is None:
            if idle_s >= self.after_s / 8 and self._source.is_running():
                self._asked, self._asked_s = self._source.ask(), now_s
                # Ages count from here.
                self._source.read(frozenset(), self._asked, self._changed_s)
            return None
        if now_s - self._asked_s < self.after_s or self._tries >= _MAX_TRIES:
            return None
        return self._judge(now_s, idle_s)

    def _judge(self, now_s: float, idle_s: float) -> Hang | None:
        """Nothing has moved in shared memory: is something moving that does not show there?"""
        assert self._asked is not None
        before, now = self._asked, self._source.ask()
        if not self._source.is_running():
            return None
        moving = moved(before, now)
        hosts = frozenset(
            rank for rank, stack in now.stacks.items() if before.stacks.get(rank, stack) != stack
        )
        run = self._source.read(moving, now, now_s)
        ranks = {
            rank: replace(state, host_moves=rank in hosts) for rank, state in run.ranks.items()
        }
        hang = self._report(replace(run, ranks=ranks), idle_s)
        if hang is None:
            self._asked, self._asked_s = now, now_s
            return None
        self._tries += 1
        # One that gave its stack alone may hold the interpreter lock, or be slow to save.
        num_running = sum(each.condition is Condition.RUNNING for each in run.ranks.values())
        if len(now.stacks.keys() - now.silent) >= num_running:
            self._tries = _MAX_TRIES
        return hang

    def _report(self, run: RunState, idle_s: float) -> Hang | None:
        diagnosis = diagnose(run)
        if diagnosis.is_moving:
            return None
        if diagnosis.root is not None:
            return make_report(run, diagnosis, idle_s)
        states = run.ranks.values()
        if self._only_kernels or not any(state.num_calls for state in states):
            return None
        if any(state.is_moving or state.host_moves for state in states):
            return None
        if self._is_patient and not is_uneven(run):
            return None
        import msgspec

        run = self._source.with_records(run)
        hang = make_report(run, diagnosis, idle_s)
        return msgspec.structs.replace(hang, diagnosis=diagnose_hosts(run), kind="hosts")


class HangWatch:
    """Looks at a run from a thread of this process until it is closed, and says when it hangs.

    `on_hang` is called with each diagnosis.
    """

    def __init__(
        self,
        watch: Watch,
        directory: Path,
        say: Say,
        on_hang: Callable[[str], None] = lambda _: None,
        name: str = "kprof hangs",
    ) -> None:
        self._watch, self._poll_s = watch, min(_POLL_S, watch.after_s / 4)
        self._directory, self._say, self._on_hang = directory, say, on_hang
        # The diagnoses since the run has moved. What was found while ranks had not answered yet may
        # have been wrong, so there can be several.
        self._found: set[str] = set()
        self._is_closed = False
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop watching; a second call does nothing."""
        self._is_closed = True
        self._wake.set()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        while not self._is_closed:
            self._wake.wait(self._poll_s)
            self._wake.clear()
            if not self._is_closed:
                self._look()

    def _look(self) -> None:
        hang = self._watch.step(time.monotonic())
        if hang is not None:
            self._report(hang, is_new=hang.diagnosis not in self._found)
            self._found.add(hang.diagnosis)
        elif self._found and not self._watch.has_reported:
            self._found.clear()
            self._report_news()

    def _report(self, hang: Hang, *, is_new: bool) -> None:
        """The run hangs; `is_new` where that was not said yet."""
        write_hang(self._directory, hang)
        if is_new:
            tell(hang, self._directory, self._say)
            self._on_hang(hang.diagnosis)

    def _report_news(self) -> None:
        """The run that was reported gets on."""
        self._say(self._watch.news)


def tell(hang: Hang, directory: Path, say: Say) -> None:
    """Say what a report says."""
    first, *rest = lines_of(hang)
    say(f"nothing has moved for {hang.idle_s:.0f} s: {first}")
    for line in rest:
        say(line)
    say(f"all of it: kprof hang --json {output_of(directory)}")


def is_wanted() -> bool:
    """Whether this process is watched."""
    return bool(hang_after_of(os.environ))
