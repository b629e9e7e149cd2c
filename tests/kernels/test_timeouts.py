"""Kernels that give up waiting: the errors of all ranks name the same root."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from reductions import Setting
from thread_ranks import ThreadGroup, run_threads
from waits import waited_s

from instrumented_kernels.all_reduce import PeerTimeoutError
from instrumented_kernels.call_ledger import CallLedger
from instrumented_kernels.plan import KernelPlan
from kprof.capture.processes import process_of
from kprof.hangs.report import read_hang
from kprof.recording.launcher.record import session
from kprof.recording.rank.recorder import Recorder
from kprof.trace import Trace

ROOT = "rank 2 has not launched call 0 of all_reduce"
SETTING = Setting(3, timeout_s=0.3)


@dataclass(frozen=True)
class Ring:
    """Three ranks: rank 0 waits for rank 2, which never comes, and rank 1 for rank 0."""

    directory: Path

    def run(self) -> list[str]:
        """What the ranks get to read; rank 1 looks when rank 0 has closed its recorder."""
        return run_threads(3, self._work)

    def _work(self, group: ThreadGroup) -> str:
        recorder = Recorder(self.directory, rank=group.rank, world_size=3, arena_bytes=1 << 20)
        plan = SETTING.plan(group)
        if group.rank != 2:
            plan(torch.ones(999), variant="ring", recorder=recorder)
        message = ""
        for rank in range(2):
            group.barrier()
            if group.rank == rank:
                message = self._timeout(plan.wait)
                recorder.close()
        group.barrier()
        recorder.close()
        return message

    def _timeout(self, wait: Callable[[], None]) -> str:
        with pytest.raises(PeerTimeoutError) as error:
            wait()
        return str(error.value)


@pytest.mark.amd
def test_all_ranks_name_the_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Errors are raised as on a GPU: at the next call of the host."""
    monkeypatch.setattr(KernelPlan, "_end_call", lambda plan: None)
    with session(tmp_path / "run.kprof") as directory:
        first, second, _ = Ring(directory).run()
    assert waited_s(first, 0, 2) >= SETTING.timeout_s
    assert waited_s(second, 1, 0) >= SETTING.timeout_s
    for message in (first, second):
        assert f"; {ROOT}" in message, message
        assert message.endswith("; the results of this call and later ones are void")
    trace = Trace.open(tmp_path / "run.kprof")
    longest = trace.frame("SELECT max(duration_ns) AS ns FROM events WHERE category = 'wait'")
    assert longest["ns"][0] >= SETTING.timeout_s * 1e9
    hang = read_hang(tmp_path / "run.kprof")
    assert hang is not None
    assert (hang.kind, hang.ranks_at_fault) == ("not_launched", (2,))
    assert {wait.rank for wait in hang.waits} == {0, 1}


def test_a_peer_that_died_is_said_to_have_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a recorder, and also where the peer is not the one that died."""
    with subprocess.Popen(["true"]) as child:
        dead = process_of(child.pid)

    def work(group: ThreadGroup) -> str:
        ledger = CallLedger(group)
        monkeypatch.setattr(ledger, "_processes", [process_of(1), process_of(1), dead])
        if group.rank != 0:
            return ""
        ledger.note(ledger.fingerprint("a call"))
        return ledger.explain(1)

    assert run_threads(3, work)[0] == (
        f"the process of rank 2 ({dead.pid}) has ended; rank 1 has not made call 1, a call"
    )
