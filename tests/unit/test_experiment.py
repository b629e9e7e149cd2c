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
from synthetic import TraceBuilder

REGIONS = """
REGION(R_PACK, "pack", compute)
REGION(R_SEND, "send", send, peer:8, slot:24)
REGION(R_WAIT, "wait", wait, peer:8, slot:24)
REGION(R_REDUCE, "reduce", compute)
REGION(R_PLAN, "plan", compute)
FLOW(R_SEND, R_WAIT)
"""
NUM_CALLS = 5
ITEMS = 4
ONE_BLOCK = (0, 1)


def exchange(
    pack_ns: Sequence[int] = (2000, 5000),
    *,
    plan_ns: int = 0,
    num_blocks: int = 1,
    slow_block: int = -1,
) -> Summary:
    """Ranks that pack and reduce for each other, block by block; rank 0 plans before that."""
    build = TraceBuilder(REGIONS, len(pack_ns))
    ranks = range(len(pack_ns))
    for call in range(NUM_CALLS):
        build.launch(call, "exchange", num_blocks)
        for block in range(num_blocks):
            place = {"launch": call, "block": block}
            end = {}
            for rank in ranks:
                now = call * 1_000_000
                if plan_ns and rank == 0:
                    build.span(0, "plan", now, plan_ns, **place)
                    now += plan_ns
                for _ in range(ITEMS):
                    is_slow = rank == len(pack_ns) - 1 and block == slow_block
                    length = pack_ns[rank] * (3 if is_slow else 1) + 3 * call
                    build.span(rank, "pack", now, length, **place)
                    now += length
                peers = [peer for peer in ranks if peer != rank]
                for peer in peers:
                    sent: dict[str, Any] = {"peer": peer, "slot": block}
                    build.span(rank, "send", now, 50, **sent, **place)
                    now += 50
                end[rank] = now
            for rank in ranks:
                now = end[rank]
                for peer in ranks:
                    if peer == rank:
                        continue
                    ready = max(now + 20, end[peer] + 200)
                    waited: dict[str, Any] = {"peer": peer, "slot": block}
                    build.span(rank, "wait", now, ready - now, **waited, **place)
                    now = ready
                build.span(rank, "reduce", now, 3000, **place)
    return Summary.of(build.trace())


def finding(**facts: Any) -> Finding:
    """A finding that was made up: of all calls, 3 us each."""
    usual = {
        "region": "pack",
        "calls": tuple(range(NUM_CALLS)),
        "costly_calls": tuple(range(NUM_CALLS)),
        "gains_ns": (8000.0,) * NUM_CALLS,
        "id": "made/up",
    }
    return Finding(kind=named("slow"), **(usual | facts))


def test_all_other_ranks_get_slower_and_calls_do_not() -> None:
    summary = exchange((2000, 2000, 5000))
    (found, *_) = find(summary).findings
    assert (found.ranks, found.region) == ((2,), "pack")
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
    tried = experiment_of(summary, finding(region="plan", ranks=(0,)))
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
    assert tried.region == "pack"


def test_a_place_that_is_no_cause_is_promised_to_be_none() -> None:
    """The others are slow: made slower, they make calls longer."""
    tried = experiment_of(exchange(), finding(ranks=(0,)), least_effect=-1.0)
    assert float(shown_of(tried, tried.promised_ns).mean()) == pytest.approx(1.0)


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
    text = REGIONS.replace("FLOW(R_SEND, R_WAIT)", "")
    build = TraceBuilder(text, 2)
    for rank in (0, 1):
        build.span(rank, "pack", 0, 2000 + 3000 * rank)
        build.span(rank, "wait", 6000, 500, peer=1 - rank)
    made_up = finding(ranks=(1,), costly_calls=(0,), calls=(0,), gains_ns=(3000.0,))
    with pytest.raises(SelectionError, match="nothing says which waits"):
        experiment_of(Summary.of(build.trace()), made_up)


DELAYS_NS = (0.0, 1000.0, 2000.0)
BASE_NS = 100_000.0


def promised(share: float) -> Experiment:
    """A call has four spans to delay, and this part of a delay shows."""
    lengths = BASE_NS + 4 * share * np.array(DELAYS_NS)[:, None] + np.zeros((3, NUM_CALLS))
    calls = tuple(range(NUM_CALLS))
    return Experiment("pack", True, {0: (ONE_BLOCK,)}, DELAYS_NS, calls, lengths, 4.0, False)


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
