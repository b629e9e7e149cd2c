"""The rules of signals.h, each broken on purpose: what the all-to-all then does wrong is seen, so
the rule is needed.

The missing fences are seen by ThreadSanitizer only (tests/native/test_sanitizers.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from ranks import Run, run_ranks
from thread_ranks import ThreadGroup, run_threads

from changed_kernels import breaking
from delivery import dispatched
from instrumented_kernels.all_to_all import PeerTimeoutError, Plan, Problem
from instrumented_kernels.all_to_all.routing import Inputs, make_inputs

RUSHED = Problem(num_experts=8, top_k=3, hidden=8192, max_tokens=32)
WIDE = Problem(num_experts=8, top_k=3, hidden=512, max_tokens=8)
NUM_CALLS = 12
# A fault shows when a rank is ahead at the right moment, which is up to the scheduler: it is looked for until it shows.
MOST_ROUNDS = 300
MOST_SEEDS = 300


def rushing_inputs(rank: int, call: int) -> Inputs:
    """Rank 1 is busy with itself. Rank 0 has nothing in every other call, and is then a call ahead of rank 1."""
    num_tokens = 0 if rank == 0 and call % 2 == 0 else RUSHED.max_tokens
    inputs = make_inputs(RUSHED, num_tokens, 100 * call + rank)
    of_rank_1 = torch.tensor([4, 5, 7], dtype=torch.int32).repeat(num_tokens, 1)
    return Inputs(inputs.x, of_rank_1, inputs.weights)


def rows_too_many(
    *broken: str,
    is_enough: Callable[[int], bool] = lambda _: True,
    timeout_s: float = 60.0,
) -> int:
    """Rows that dispatch delivered to rank 1 in calls in which nobody had sent them. Makes NUM_CALLS calls, and as
    many again until these rows are enough."""

    def work(group: ThreadGroup) -> int:
        options = Run(RUSHED, 2).options()
        plan = breaking(Plan, *broken)(
            group, RUSHED, variant="token_flags", grid=2, timeout_s=timeout_s, options=options
        )
        surplus = 0
        prepared = [rushing_inputs(group.rank, call) for call in range(NUM_CALLS)]
        for _ in range(MOST_ROUNDS):
            group.barrier()
            for call, inputs in enumerate(prepared):
                plan(inputs.x, inputs.indices, inputs.weights, is_async=True)
                if group.rank == 1:
                    sent = RUSHED.top_k * RUSHED.max_tokens * (1 + call % 2)
                    surplus += max(0, int(dispatched(plan).num_rows.sum()) - sent)
            if is_enough(group.all_gather(surplus)[1]):
                break
        plan.wait()
        plan.close()
        return surplus

    return run_threads(2, work)[1]


def test_a_rank_that_is_a_call_ahead_disturbs_nobody() -> None:
    assert rows_too_many() == 0


def test_with_one_buffer_a_call_receives_rows_of_the_next() -> None:
    assert rows_too_many("two buffers", is_enough=lambda surplus: surplus > 0) > 0


def test_waiting_for_equal_epochs_misses_a_rank_that_is_a_call_ahead() -> None:
    """Two buffers hide it: a flag of the same parity is two calls older or this one. So both rules are broken
    here."""
    with pytest.raises(PeerTimeoutError, match=r"waited \d+\.\d s for rank"):
        rows_too_many("two buffers", "peers may be ahead", is_enough=lambda _: False, timeout_s=1.0)


def shows_a_fault(run: Run) -> bool:
    """Wrong values, or a rank that waits for what was overtaken."""
    try:
        return sum(result.num_wrong for result in run_ranks(run)) > 0
    except PeerTimeoutError:
        return True


@pytest.mark.parametrize("variant", ["token_flags", "pipelined"])
def test_without_a_warp_sync_a_flag_is_ahead_of_the_row(variant: str) -> None:
    right = Run(WIDE, 2, variant, num_calls=20, seed=1)
    assert not shows_a_fault(right)
    faulty = replace(right, broken=("warp sync",), timeout_s=2.0)
    assert any(shows_a_fault(replace(faulty, seed=seed)) for seed in range(1, 1 + MOST_SEEDS))
