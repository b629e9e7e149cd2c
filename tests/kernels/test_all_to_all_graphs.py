"""Calls of the all-to-all that are repeated with the arguments of the first, as a graph repeats them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from ranks import Run
from thread_ranks import ThreadGroup, run_threads

from delivery import dispatched
from instrumented_kernels.all_to_all import Plan, Problem
from instrumented_kernels.all_to_all.routing import count_wrong, make_inputs, reference
from instrumented_kernels.plan import NOT_RECORDING

PROBLEM = Problem(num_experts=9, top_k=3, hidden=40, max_tokens=6)
VARIANTS = ["rank_flags", "token_flags", "balanced", "pipelined"]


class Replayed:
    """One captured call: its tensors stay, and every replay has the same arguments."""

    def __init__(self, plan: Plan, rank: int) -> None:
        self._plan, self._rank = plan, rank
        self.inputs = make_inputs(PROBLEM, PROBLEM.max_tokens, rank)
        self.out = torch.full_like(self.inputs.x, float("nan"))
        plan._is_counted = True
        plan._fill_call(*self._tensors(), self.out)
        self._arguments = bytes(plan._call)

    def _tensors(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return self.inputs.x, self.inputs.indices, self.inputs.weights

    def replay(self, seed: int) -> int:
        """The number of wrong values."""
        fresh = make_inputs(PROBLEM, PROBLEM.max_tokens, 7919 * seed + self._rank)
        for kept, new in zip(self._tensors(), (fresh.x, fresh.indices, fresh.weights), strict=True):
            kept.copy_(new)
        plan = self._plan
        np.frombuffer(plan._call, np.uint8)[:] = np.frombuffer(self._arguments, np.uint8)
        plan._num_calls += 1
        plan._launch_call(NOT_RECORDING)
        plan.wait()
        return count_wrong(self.out, reference(PROBLEM, self.inputs, plan.group.world_size))


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("num_eager", [0, 1, 2])
def test_replays_and_calls_take_turns(variant: str, num_eager: int) -> None:
    """Buffers alternate from call to call: a number that came twice would give the data of the call before."""
    run = Run(PROBLEM, 3, variant=variant, seed=5)

    def work(group: ThreadGroup) -> None:
        plan = Plan(
            group, PROBLEM, variant=variant, schedule_seed=5, timeout_s=60, options=run.options()
        )
        num_wrong = 0

        def call(seed: int) -> int:
            inputs = make_inputs(PROBLEM, PROBLEM.max_tokens, 31 * seed + group.rank)
            out = plan(inputs.x, inputs.indices, inputs.weights)
            return count_wrong(out, reference(PROBLEM, inputs, group.world_size))

        for seed in range(num_eager):
            num_wrong += call(seed)
        graph = Replayed(plan, group.rank)
        for seed in range(5):
            num_wrong += graph.replay(seed)
        num_wrong += call(99)
        num_wrong += graph.replay(100)
        delivered = dispatched(plan)
        plan.close()
        assert num_wrong == 0
        assert plan._epoch == num_eager
        assert sum(delivered.num_rows) > 0

    run_threads(3, work)
