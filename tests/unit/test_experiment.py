"""Experiments about findings: what is delayed, what the replay promises, and what measured lengths say."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from kprof.analysis import Finding, Limit, Summary, find
from kprof.analysis.findings.experiment import Experiment, experiment_of, judge, shown_of
from kprof.analysis.findings.kinds import named
from kprof.analysis.findings.limits import LimitKind
from kprof.analysis.findings.when import When
from kprof.capture.verified import Verdict
from kprof.errors import SelectionError
from patterns.bodies import grid
from patterns.machine import Await, Machine, Put, Steps, Track, Work

NUM_CALLS = 5
ITEMS = 4
ONE_BLOCK = (0, 1)


def exchange(
    pack_ns: Sequence[int] = (2000, 5000),
    *,
    plan_ns: int = 0,
    num_blocks: int = 1,
    slow_block: int = -1,
    has_flows: bool = True,
) -> Summary:
    """Ranks that load and add up for each other, block by block; rank 0 does some math before that."""
    num_ranks = len(pack_ns)

    def body(me: Track) -> Steps:
        if plan_ns and me.rank == 0:
            yield Work("math", plan_ns)
        is_slow = (me.rank, me.block) == (num_ranks - 1, slow_block)
        for _ in range(ITEMS):
            yield Work("load", pack_ns[me.rank] * (3 if is_slow else 1))
        peers = [peer for peer in range(num_ranks) if peer != me.rank]
        for peer in peers:
            yield Put("push", peer, me.block, 50)
        for peer in peers:
            yield Await("pull", peer, me.block)
        yield Work("sum", 3000)

    machine = Machine(num_ranks, seed=1, noise=0.0)
    for _ in range(NUM_CALLS):
        machine.call(grid(machine, num_blocks), body)
    return Summary.of(machine.trace(has_flows=has_flows))


def finding(**facts: Any) -> Finding:
    """A finding that was made up: of all calls, 3 us each."""
    usual = {
        "region": "load",
        "calls": tuple(range(NUM_CALLS)),
        "costly_calls": tuple(range(NUM_CALLS)),
        "gains_ns": (8000.0,) * NUM_CALLS,
        "id": "made/up",
    }
    return Finding(kind=named("slow"), **(usual | facts))


def test_all_other_ranks_get_slower_and_calls_do_not() -> None:
    summary = exchange((2000, 2000, 5000))
    (found, *_) = find(summary).findings
    assert (found.ranks, found.region) == ((2,), "load")
    tried = experiment_of(summary, found)
    assert tried.is_at_others
    assert tried.blocks == {0: (ONE_BLOCK,), 1: (ONE_BLOCK,)}
    assert tried.most == ITEMS
    # 40 and 80 % of what a call gains, over its items.
    gain = found.gain_ns / NUM_CALLS / ITEMS
    assert tried.delays_ns == pytest.approx((0.0, 0.4 * gain, 0.8 * gain))
    lengths = tried.promised_ns.mean(axis=1)
    assert lengths == pytest.approx([lengths[0]] * 3)
    assert shown_of(tried, tried.promised_ns) == pytest.approx([0.0] * NUM_CALLS)


def test_of_a_block_all_others_get_slower_also_those_of_its_rank() -> None:
    summary = exchange((2000, 2000), num_blocks=4, slow_block=2)
    (found, *_) = find(summary).findings
    assert (found.ranks, found.blocks) == ((1,), (2,))
    tried = experiment_of(summary, found)
    assert tried.blocks == {0: ((0, 4),), 1: ((0, 2), (3, 4))}


def test_what_one_rank_alone_does_gets_slower_itself() -> None:
    summary = exchange((2000, 2000), plan_ns=9000)
    tried = experiment_of(summary, finding(region="math", ranks=(0,)))
    assert not tried.is_at_others
    assert tried.blocks == {0: (ONE_BLOCK,)}
    assert tried.most == 1
    assert float(shown_of(tried, tried.promised_ns).mean()) == pytest.approx(1.0)
    assert tried.promised_ns[2] - tried.promised_ns[0] == pytest.approx(tried.delays_ns[2])


def test_pairs_of_rank_and_block_are_those_pairs() -> None:
    summary = exchange((2000, 2000), num_blocks=3)
    at = finding(places=((0, 1), (1, 2)), ranks=(0, 1), blocks=(1, 2))
    tried = experiment_of(summary, at, least_effect=-1.0)
    assert tried.blocks == {0: ((0, 1), (2, 3)), 1: ((0, 2),)}


def test_without_a_region_it_is_the_one_that_takes_longest() -> None:
    tried = experiment_of(exchange(), finding(region=None, ranks=(1,)))
    assert tried.region == "load"


def test_a_place_that_is_no_cause_is_promised_to_be_none() -> None:
    """The others are slow: made slower, they make calls longer."""
    tried = experiment_of(exchange(), finding(ranks=(0,)), least_effect=-1.0)
    assert float(shown_of(tried, tried.promised_ns).mean()) == pytest.approx(1.0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("facts", "why"),
    [
        ({"is_timed": False}, "it rests on counts"),
        ({"links": ((0, 1),)}, "it is about a link"),
        ({"ranks": (0,), "processors": (3,)}, "it is about an SM"),
        ({"ranks": (0,), "when": When.MOVING}, "its place changes from call to call"),
        ({"ranks": (0,)}, "others hide it"),
        ({"ranks": (1,), "gains_ns": (90.0,) * NUM_CALLS}, "9 ns for each span is too short"),
    ],
)
def test_what_cannot_be_tried_is_said(facts: dict[str, Any], why: str) -> None:
    with pytest.raises(SelectionError, match=f"finding made/up cannot be tried.*{re.escape(why)}"):
        experiment_of(exchange(), finding(**facts))


def test_the_design_is_no_place() -> None:
    with pytest.raises(SelectionError, match="it is about the design"):
        experiment_of(exchange(), Limit(LimitKind.TRANSFERS, None, 1.0, 0.1))


def test_ranks_that_nothing_joins_are_not_tried() -> None:
    with pytest.raises(SelectionError, match="nothing says which waits"):
        experiment_of(exchange(has_flows=False), finding(ranks=(1,)))


DELAYS_NS = (0.0, 1000.0, 2000.0)
BASE_NS = 100_000.0


def promised(share: float) -> Experiment:
    """A call has four spans to delay, and this part of a delay shows."""
    lengths = BASE_NS + 4 * share * np.array(DELAYS_NS)[:, None] + np.zeros((3, NUM_CALLS))
    calls = tuple(range(NUM_CALLS))
    return Experiment("load", True, {0: (ONE_BLOCK,)}, DELAYS_NS, calls, lengths, 4.0, False)


def measured(share: float, noise_ns: float = 200.0, num_rounds: int = 6) -> np.ndarray:
    """Lengths by delay, round and call; a round as a whole is slower than another, too."""
    rng = np.random.default_rng(7)
    shape = (3, num_rounds, NUM_CALLS)
    drift = 3 * noise_ns * rng.standard_normal((1, num_rounds, 1))
    shown = 4 * share * np.array(DELAYS_NS)[:, None, None]
    lengths: np.ndarray = BASE_NS + shown + drift + noise_ns * rng.standard_normal(shape)
    return lengths


@pytest.mark.parametrize(
    ("should", "is_so", "verdict"),
    [
        (0.0, 0.0, Verdict.CONFIRMED),
        (1.0, 1.0, Verdict.CONFIRMED),
        (3.0, 3.1, Verdict.CONFIRMED),
        (0.0, 1.0, Verdict.NOT_CONFIRMED),
        (1.0, 0.3, Verdict.NOT_CONFIRMED),
        (0.0, -0.6, Verdict.NOT_CONFIRMED),
    ],
)
def test_a_promise_is_held_to_what_was_measured(
    should: float, is_so: float, verdict: Verdict
) -> None:
    found = judge(promised(should), measured(is_so))
    assert found.verdict is verdict
    assert found.low <= found.shown <= found.high
    assert found.low - 0.001 <= is_so <= found.high + 0.001
    assert found.promised_shown == pytest.approx(should)
    assert found.call_ns[0] == pytest.approx(BASE_NS, rel=0.02)


@pytest.mark.parametrize("is_so", [0.0, 0.5, 1.0])
def test_noise_says_nothing(is_so: float) -> None:
    assert judge(promised(0.5), measured(is_so, noise_ns=20_000.0)).verdict is Verdict.TOO_NOISY


def test_a_round_that_was_disturbed_counts_little() -> None:
    lengths = measured(0.0)
    lengths[1, 3] *= 30
    found = judge(promised(0.0), lengths)
    assert found.shown == pytest.approx(judge(promised(0.0), measured(0.0)).shown, abs=0.05)


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_calls_that_lost_their_core_count_little(share: float) -> None:
    """A fifth of all calls of all runs take ten times as long."""
    wide = promised(share)
    wide = replace(wide, calls=tuple(range(40)), promised_ns=np.repeat(wide.promised_ns, 8, axis=1))
    lengths = np.tile(measured(share), (1, 1, 8))
    is_late = np.random.default_rng(3).random(lengths.shape) < 0.2
    found = judge(wide, np.where(is_late, 10 * lengths, lengths))
    assert found.verdict is Verdict.CONFIRMED
    assert found.shown == pytest.approx(share, abs=0.1)
    assert found.call_ns[0] == pytest.approx(BASE_NS, rel=0.02)


def test_calls_that_are_missing_are_not_promised_either() -> None:
    whole = promised(0.0)
    whole.promised_ns[:, 1:] += 4 * np.array(DELAYS_NS)[:, None]
    some = replace(whole, promised_ns=whole.promised_ns[:, :1])
    assert judge(some, measured(0.0)[:, :, :1]).verdict is Verdict.CONFIRMED
