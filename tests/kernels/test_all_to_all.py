"""The all-to-all on the CPU target: right on every case that it must handle, under many interleavings. The rules of
signals.h, each broken on purpose: what it then does wrong is seen, so the rule is needed.

The missing fences are seen by ThreadSanitizer only (tests/native/test_sanitizers.py).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from ranks import Run, run_ranks
from thread_ranks import ThreadGroup, run_threads
from waits import waited_s
from widths import SEEDS, WARP_WIDTHS

from changed_kernels import breaking
from combinations import all_pairs
from delivery import dispatched
from instrumented_kernels.all_to_all import PeerTimeoutError, Plan, Problem
from instrumented_kernels.all_to_all.routing import Inputs, make_inputs
from kprof.devices.groups import SoloGroup

SMALL = Problem(num_experts=8, top_k=3, hidden=40, max_tokens=6)


def with_tokens(problem: Problem, counts: list[int]):
    """Rank r sends counts[r] tokens."""
    return lambda rank, call: make_inputs(problem, counts[rank], 100 * call + rank)


def with_experts(problem: Problem, choose):
    """Every token's experts are choose(rank), a list of K experts."""

    def make(rank: int, call: int) -> Inputs:
        inputs = make_inputs(problem, problem.max_tokens, 100 * call + rank)
        row = torch.tensor(choose(rank), dtype=torch.int32)
        return Inputs(inputs.x, row.repeat(problem.max_tokens, 1).contiguous(), inputs.weights)

    return make


def changing_shapes(rank: int, call: int) -> Inputs:
    return make_inputs(SMALL, [0, 6, 1, 4, 2, 5][(call + rank) % 6], call)


CASES = {
    "shapes change": Run(SMALL, 2, num_calls=12, inputs=changing_shapes),
    "n == M, 2 ranks": Run(SMALL, 2),
    "n == M, 4 ranks": Run(SMALL, 4),
    "n == M, 8 ranks": Run(SMALL, 8),
    "one rank": Run(SMALL, 1),
    "a rank with no tokens": Run(SMALL, 4, inputs=with_tokens(SMALL, [3, 0, 6, 1])),
    "no tokens at all": Run(SMALL, 2, inputs=with_tokens(SMALL, [0, 0])),
    "every token to one rank": Run(SMALL, 2, inputs=with_experts(SMALL, lambda rank: [5, 6, 7])),
    "an expert with none": Run(SMALL, 4, inputs=with_experts(SMALL, lambda rank: [0, 3, 5])),
    "a pair with none": Run(
        SMALL, 4, inputs=with_experts(SMALL, lambda rank: [2 * rank, 2 * rank + 1, 7 - 2 * rank])
    ),
    "K = 1": Run(Problem(8, 1, 40, 6), 4),
    "K = E": Run(Problem(4, 4, 40, 6), 2),
    "K above a batch of rows": Run(Problem(24, 11, 40, 3), 2),
    "K above a warp": Run(Problem(72, 67, 16, 2), 1),
    "D = 2880": Run(Problem(8, 2, 2880, 2), 2),
    "odd D": Run(Problem(8, 2, 37, 3), 2),
    "D = 1": Run(Problem(8, 2, 1, 3), 2),
    "one block": Run(SMALL, 4, grid=1),
    "fewer blocks than ranks": Run(SMALL, 8, grid=3),
    "blocks no multiple of ranks": Run(SMALL, 4, grid=7),
    "four warps": Run(SMALL, 2, warps_per_block=4),
    "more warps than parts of a row": Run(Problem(8, 2, 600, 2), 2, grid=9),
}
VARIANTS = ["rank_flags", "token_flags", "fused", "balanced", "pipelined"]


@pytest.mark.amd
@pytest.mark.parametrize(
    ("name", "warp_width", "variant"), all_pairs(list(CASES), WARP_WIDTHS, VARIANTS)
)
def test_matches_float64(name: str, warp_width: int, variant: str) -> None:
    case = CASES[name]
    results = run_ranks(replace(case, warp_width=warp_width, variant=variant))
    assert [result.num_wrong for result in results] == [0] * case.world_size


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("seed", SEEDS)
def test_every_schedule_is_right(seed: int, variant: str) -> None:
    results = run_ranks(Run(SMALL, 4, variant, num_calls=3, seed=seed))
    assert sum(result.num_wrong for result in results) == 0


# What an expert gets is x; these apply the stand-in for the expert where the rows lie.
HAS_EXPERT_IN_PLACE = ("rank_flags", "token_flags")


@pytest.mark.amd
@pytest.mark.parametrize("variant", VARIANTS)
def test_dispatch_delivers_every_row_once_grouped_by_expert(variant: str) -> None:
    run = Run(SMALL, 4, variant, num_calls=2)
    results = run_ranks(run)
    delivered = set()
    for rank, result in enumerate(results):
        factor = 1 + rank if variant in HAS_EXPERT_IN_PLACE else 1
        received = result.dispatched[1]
        for local_expert, (rows, origins) in enumerate(
            zip(received.rows, received.origins, strict=True)
        ):
            for row, (flat, source) in zip(rows, origins, strict=True):
                inputs = run.inputs_of(int(source), 1)
                token, k = divmod(int(flat), SMALL.top_k)
                assert int(inputs.indices[token, k]) == rank * 2 + local_expert
                np.testing.assert_array_equal(row, (inputs.x[token].float() * factor).half())
                delivered.add((int(source), int(flat)))
    assert len(delivered) == 4 * SMALL.max_tokens * SMALL.top_k


@pytest.mark.parametrize(
    ("variant", "region"),
    [
        ("rank_flags", "dispatch/wait-flag"),
        ("token_flags", "dispatch/wait-counts"),
        ("pipelined", "dispatch/wait-token"),
    ],
)
def test_a_rank_that_never_sends_is_named(variant: str, region: str) -> None:
    """Where a limit passes before the other ranks have sent, one of them is named, and rightly: more patience finds rank 3."""
    for timeout_s in (0.3, 3.0, 30.0):
        message = message_of_rank_2(variant, timeout_s)
        if " for rank 3, " in message:
            break
    assert waited_s(message, 2, 3) >= timeout_s
    assert f", epoch 1, in {region};" in message


def message_of_rank_2(variant: str, timeout_s: float) -> str:
    """What rank 2 of four gets to read when rank 3 never calls."""

    def work(group: ThreadGroup) -> str:
        options = Run(SMALL, 4).options()
        plan = Plan(group, SMALL, variant=variant, timeout_s=timeout_s, options=options)
        if group.rank == 3:
            group.barrier()  # its heap must outlive what the others send
            return ""
        inputs = make_inputs(SMALL, 4, group.rank)
        with pytest.raises(PeerTimeoutError) as error:
            plan(inputs.x, inputs.indices, inputs.weights)
        with pytest.raises(RuntimeError, match="create a new plan"):
            plan(inputs.x, inputs.indices, inputs.weights)
        group.barrier()
        return str(error.value)

    return run_threads(4, work)[2]


@pytest.mark.parametrize("variant", VARIANTS)
def test_hundreds_of_calls_with_a_slow_rank_and_no_barrier(variant: str) -> None:
    def dawdle(rank: int, call: int) -> None:
        if rank == 2 and call % 10 == 0:
            time.sleep(0.005)

    run = Run(SMALL, 4, variant, num_calls=150, grid=2, inputs=changing_shapes, before_call=dawdle)
    assert sum(result.num_wrong for result in run_ranks(run)) == 0


GOOD = make_inputs(SMALL, 4, 1)
OUT_OF_RANGE = GOOD.indices.clone().index_fill_(1, torch.tensor([0]), 8)
REPEATED = GOOD.indices.clone()


REPEATED[2, 1] = REPEATED[2, 0]


TOO_MANY = make_inputs(SMALL, 7, 1)
BAD_INPUTS = {
    "index out of range": (replace(GOOD, indices=OUT_OF_RANGE), "indices must lie in 0 .. 7"),
    "negative index": (replace(GOOD, indices=-GOOD.indices - 1), "indices must lie in 0 .. 7"),
    "repeated expert": (replace(GOOD, indices=REPEATED), "token 2 names an expert twice"),
    "dtype of x": (replace(GOOD, x=GOOD.x.float()), "x must be torch.float16"),
    "dtype of indices": (replace(GOOD, indices=GOOD.indices.long()), "indices must be torch.int32"),
    "row length": (replace(GOOD, x=GOOD.x[:, :8].contiguous()), r"x must have shape \[4, 40\]"),
    "contiguity": (
        replace(GOOD, x=torch.zeros(40, 4, dtype=torch.float16).t()),
        "x must be contiguous",
    ),
    "device": (replace(GOOD, x=GOOD.x.to("meta")), "x is on meta"),
    "n > M": (TOO_MANY, "x has 7 tokens, the plan holds 6"),
}


@pytest.mark.parametrize(("inputs", "message"), BAD_INPUTS.values(), ids=BAD_INPUTS.keys())
def test_bad_inputs_are_refused_before_any_launch(inputs: Inputs, message: str) -> None:
    plan = Plan(SoloGroup(), SMALL)
    with pytest.raises((ValueError, TypeError), match=message):
        plan(inputs.x, inputs.indices, inputs.weights)
    assert dispatched(plan).num_rows.sum() == 0


@pytest.mark.parametrize(
    ("problem", "grid", "message"),
    [
        (Problem(9, 3, 40, 6), None, "9 experts cannot be divided evenly among 2 ranks"),
        (Problem(2, 3, 40, 6), None, "K = 3 distinct experts of E = 2"),
        (Problem(8, 3, 0, 6), None, "must be positive"),
        (SMALL, 100_000, "cannot be resident at once"),
        (SMALL, -1, "cannot be resident at once"),
    ],
)
def test_bad_plans_are_refused(problem: Problem, grid: int | None, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        run_ranks(Run(problem, 2, grid=grid))


def test_ranks_with_different_shapes_are_refused() -> None:
    def work(group: ThreadGroup) -> None:
        Plan(group, replace(SMALL, max_tokens=6 + group.rank), options=Run(SMALL, 2).options())

    with pytest.raises(ValueError, match="they must be equal"):
        run_threads(2, work)


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
