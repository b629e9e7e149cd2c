"""Ranks that do not make the same calls: every call ends in the right values or in an error that says who did what. Kernels
that give up waiting: the errors of all ranks name the same root.

On the CPU target a call has ended when it returns. `like_a_gpu` lets it return as on a GPU, before errors are raised.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from ranks import Run
from reductions import VARIANTS, Setting
from thread_ranks import ThreadGroup, run_threads
from waits import waited_s

from delivery import dispatched
from instrumented_kernels.all_reduce import DifferentCallsError, PeerTimeoutError, all_reduce
from instrumented_kernels.all_to_all import Plan, Problem, all_to_all
from instrumented_kernels.all_to_all.routing import count_wrong, make_inputs, reference
from instrumented_kernels.call_ledger import LENGTH, CallLedger
from instrumented_kernels.plan import KernelPlan
from kprof.capture.processes import process_of
from kprof.devices.groups import SoloGroup
from kprof.hangs.report import read_hang
from kprof.recording.launcher.record import session
from kprof.recording.rank.recorder import Recorder
from kprof.trace import Trace

SMALL = Problem(num_experts=8, top_k=3, hidden=40, max_tokens=6)
EXCHANGES = ["rank_flags", "token_flags", "fused", "balanced", "pipelined"]
QUICK = Setting(2, timeout_s=0.3)


@pytest.fixture
def like_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KernelPlan, "_end_call", lambda plan: None)


def errors_of(calls: list[Callable[[KernelPlan], object]]) -> list[str]:
    """Rank 0 makes calls[0] on an all-reduce plan, then rank 1 makes calls[1]. What each of them gets to read."""

    def work(group: ThreadGroup) -> str:
        plan = QUICK.plan(group)
        if group.rank == 0:
            calls[0](plan)
        group.barrier()
        if group.rank == 1:
            with pytest.raises(DifferentCallsError) as refused:
                calls[1](plan)
        group.barrier()
        if group.rank == 0:
            with pytest.raises(PeerTimeoutError) as timeout:
                plan.wait()
        group.barrier()
        return str(timeout.value if group.rank == 0 else refused.value)

    return run_threads(2, work)


@pytest.mark.usefixtures("like_a_gpu")
@pytest.mark.parametrize("variant", VARIANTS)
def test_different_lengths_are_named_on_both_ranks(variant: str) -> None:
    """Some variants would find all that they wait for, and add other elements than they should."""
    for message in errors_of(
        [
            lambda plan: plan(torch.ones(8192), variant=variant),
            lambda plan: plan(torch.ones(4096), variant=variant),
        ]
    ):
        assert "all_reduce of 8192 x torch.float32" in message
        assert "all_reduce of 4096 x torch.float32" in message


@pytest.mark.usefixtures("like_a_gpu")
def test_different_types_and_variants_are_named_on_both_ranks() -> None:
    half, single = torch.ones(64).half(), torch.ones(64)
    for message in errors_of(
        [lambda plan: plan(half, variant="oneshot"), lambda plan: plan(single, variant="oneshot")]
    ):
        assert "64 x torch.float16" in message
        assert "64 x torch.float32" in message
    for message in errors_of(
        [lambda plan: plan(single, variant="oneshot"), lambda plan: plan(single, variant="ring")]
    ):
        assert "(oneshot, 2 blocks)" in message
        assert "(ring, 2 blocks)" in message


def wrong_length(plan: KernelPlan) -> None:
    with pytest.raises(DifferentCallsError, match="rank 0 calls all_reduce of 64 x"):
        plan(torch.ones(32))


def wrong_type(plan: KernelPlan) -> None:
    with pytest.raises(TypeError, match="must be fp16, bf16 or fp32"):
        plan(torch.ones(64, dtype=torch.float64))


@pytest.mark.usefixtures("like_a_gpu")
@pytest.mark.parametrize("fail", [wrong_length, wrong_type])
def test_after_a_refused_call_no_other_takes_its_place(
    fail: Callable[[KernelPlan], None],
) -> None:
    """Rank 0 has launched the call that rank 1 refuses: rank 1's next call is another one."""

    def work(group: ThreadGroup) -> None:
        plan = QUICK.plan(group)
        if group.rank == 0:
            plan(torch.ones(64))
        group.barrier()
        if group.rank == 1:
            fail(plan)
            for _ in range(2):
                with pytest.raises(
                    DifferentCallsError, match=r"rank 0 has launched .* out of step"
                ):
                    plan(torch.full((64,), 1000.0))
        group.barrier()
        if group.rank == 0:
            with pytest.raises(PeerTimeoutError, match="rank 1 raised an error instead of making"):
                plan.wait()
        group.barrier()
        plan.close()

    run_threads(2, work)


def test_a_call_that_one_rank_refuses_first_is_refused_by_all() -> None:
    def work(group: ThreadGroup) -> list[bool]:
        plan = Setting(3).plan(group)
        right = [bool((plan(torch.ones(64)) == 3).all())]
        group.barrier()
        if group.rank == 1:
            wrong_type(plan)
        group.barrier()
        if group.rank != 1:
            with pytest.raises(DifferentCallsError, match="raised an error instead of making"):
                plan(torch.ones(64))
        right += [bool((plan(torch.full((64,), 2.0)) == 6).all()) for _ in range(2)]
        plan.close()
        return right

    assert run_threads(3, work) == [[True, True, True]] * 3


def test_a_call_that_all_ranks_refuse_disturbs_nobody() -> None:
    def work(group: ThreadGroup) -> bool:
        plan = Setting(2).plan(group)
        wrong_type(plan)
        right = bool((plan(torch.ones(64)) == 2).all())
        plan.close()
        return right

    assert run_threads(2, work) == [True, True]


@pytest.mark.usefixtures("like_a_gpu")
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_missing_peer_is_told_at_the_next_call(variant: str) -> None:
    def work(group: ThreadGroup) -> str:
        plan = QUICK.plan(group)
        message = ""
        if group.rank == 0:
            plan(torch.ones(64), variant=variant)
            with pytest.raises(PeerTimeoutError) as error:
                plan(torch.ones(64), variant=variant)
            with pytest.raises(RuntimeError, match="create a new plan"):
                plan(torch.ones(64), variant=variant)
            message = str(error.value)
        plan.close()
        return message

    message = run_threads(2, work)[0]
    assert waited_s(message, 0, 1) >= QUICK.timeout_s
    assert "rank 1 has not made call 1, all_reduce of 64 x torch.float32" in message


@pytest.mark.usefixtures("like_a_gpu")
@pytest.mark.parametrize("how", ["wait", "close"])
def test_a_missing_peer_is_told_when_waited_for(how: str) -> None:
    def work(group: ThreadGroup) -> None:
        plan = QUICK.plan(group)
        if group.rank == 1:
            plan.close()
            return
        plan(torch.ones(64))
        with pytest.raises(PeerTimeoutError, match="rank 1 has not made call 1"):
            getattr(plan, how)()
        if how == "wait":
            plan.close()

    run_threads(2, work)


@pytest.mark.usefixtures("like_a_gpu")
def test_a_missing_peer_is_warned_of_when_the_group_is_gone() -> None:
    def work(group: ThreadGroup) -> None:
        plan = QUICK.plan(group)
        group.barrier()
        if group.rank == 0:
            plan(torch.ones(64))
            with pytest.warns(RuntimeWarning, match=r"rank 0 waited \d+\.\d s for rank 1"):
                plan.abandon()
        group.barrier()

    run_threads(2, work)


BAD_EXPERTS = {
    "too large": (8, "token 2 names expert 8; indices must lie in 0 .. 7"),
    "negative": (-3, "token 2 names expert -3; indices must lie in 0 .. 7"),
    "repeated": (None, "token 2 names an expert twice"),
}


@pytest.mark.parametrize(("expert", "message"), BAD_EXPERTS.values(), ids=BAD_EXPERTS.keys())
@pytest.mark.parametrize("variant", EXCHANGES)
def test_kernels_refuse_bad_indices_and_the_plan_stays_usable(
    variant: str, expert: int | None, message: str
) -> None:
    """The other tokens of the call come out right on all ranks, and so do later calls."""

    def work(group: ThreadGroup) -> int:
        options = Run(SMALL, 2).options()
        plan = Plan(group, SMALL, variant=variant, warps_per_block=2, timeout_s=60, options=options)
        wrong = 0
        for call in range(6):
            inputs = make_inputs(SMALL, 6, 10 * call + group.rank)
            expected = reference(SMALL, inputs, 2)
            out = torch.full_like(inputs.x, float("nan"))
            is_bad = group.rank == 0 and call in (1, 2)
            if is_bad:
                inputs.indices[2, 1] = inputs.indices[2, 0] if expert is None else expert
                with pytest.raises(ValueError, match=message):
                    plan(inputs.x, inputs.indices, inputs.weights, out=out, is_async=True)
                out[2], expected[2] = 0, 0
            else:
                plan(inputs.x, inputs.indices, inputs.weights, out=out, is_async=True)
            wrong += count_wrong(out, expected)
        plan.close()
        return wrong

    assert run_threads(2, work) == [0, 0]


def test_every_token_may_name_one_expert_k_times() -> None:
    """As many rows as there are places for, all to one expert: nothing may be written outside of them."""
    problem = replace(SMALL, top_k=8, num_experts=8)

    def work(group: ThreadGroup) -> None:
        for variant in EXCHANGES:
            options = Run(problem, 2).options()
            plan = Plan(group, problem, variant=variant, timeout_s=60, options=options)
            inputs = make_inputs(problem, 6, 1)
            with pytest.raises(ValueError, match="names an expert twice"):
                plan(inputs.x, torch.full_like(inputs.indices, 7), inputs.weights, is_async=True)
            assert dispatched(plan).num_rows.sum() == (0 if group.rank == 0 else 12)
            plan.close()

    run_threads(2, work)


def test_the_ledger_compares_for_longer_than_it_is() -> None:
    def work(group: ThreadGroup) -> None:
        ledger = CallLedger(group)
        for number in range(LENGTH + 10):
            ledger.note(ledger.fingerprint(f"call {number % 7}"))
        group.barrier()
        ledger.note(ledger.fingerprint("the same"))
        group.barrier()
        if group.rank == 0:
            ledger.note(ledger.fingerprint("one"))
        group.barrier()
        if group.rank == 1:
            with pytest.raises(DifferentCallsError, match="rank 0 calls one, rank 1 calls another"):
                ledger.note(ledger.fingerprint("another"))
        group.barrier()

    run_threads(2, work)


def test_a_meeting_does_not_wait_for_ever() -> None:
    def work(group: ThreadGroup) -> None:
        ledger = CallLedger(group)
        if group.rank == 0:
            with pytest.raises(
                PeerTimeoutError, match=r"waited 0\.2 s for rank 1 in a plan; rank 1"
            ):
                ledger.meet("a plan", 0.2)
        group.barrier()

    run_threads(2, work)


@pytest.mark.parametrize("wrong", [None, [1.0]])
def test_what_is_no_tensor_is_a_sentence(wrong: Any) -> None:
    with pytest.raises(TypeError, match="tensor must be a tensor, got"):
        all_reduce(wrong)
    with pytest.raises(TypeError, match="indices must be a tensor, got"):
        all_to_all(torch.zeros(1, 8), wrong, torch.zeros(1, 2), num_experts=4)


def test_a_sparse_tensor_is_told_to_be_dense() -> None:
    plan = Setting(1).plan(SoloGroup())
    with pytest.raises(TypeError, match=r"call \.to_dense"):
        plan(torch.eye(4).to_sparse())
    plan.close()


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
