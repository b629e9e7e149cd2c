"""What holds for every run: gains are true, they add up to no more than there is, and names are only names."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kprof.analysis.findings import Explanation, Finding, explain_trace
from simulation import Cause, Kind, Run, Scenario, Sizes, draw_scenario, simulate, true_gains

pytestmark = pytest.mark.slow

FEW = settings(max_examples=8, derandomize=True)
CALLS = 6
SIZES = Sizes(4, 4, 3)
TOPOLOGIES = ("all_to_all", "ring", "halo", "torus", "barriers")
WITH_WAVES = ("ring", "tree", "pipeline", "halo", "butterfly")
amounts = st.floats(1.0, 4.0)
places = st.tuples(st.integers(0, 3), st.integers(0, 3))
ALWAYS = (1.0,) * CALLS


@st.composite
def runs(draw: st.DrawFn, room: int = 0) -> Scenario:
    """One cause, in one place of a small run; with `room` blocks at once on a rank, or all."""
    rank, block = draw(places)
    kind = draw(st.sampled_from((Kind.SLOW, Kind.LATE_START, Kind.DELAY)))
    amount = draw(amounts) * (1.0 if kind is Kind.SLOW else 8000.0)
    blocks = None if kind is Kind.LATE_START else (block,)
    region = "prepare" if kind is Kind.DELAY else None
    cause = Cause(kind, amount, ALWAYS, ranks=(rank,), blocks=blocks, region=region)
    topology = draw(
        st.sampled_from(WITH_WAVES if room else TOPOLOGIES)
        if kind is not Kind.DELAY
        else st.sampled_from(("ring",) if room else ("all_to_all", "ring"))
    )
    seed = draw(st.integers(0, 1000))
    return Scenario(topology, SIZES, CALLS, (cause,), noise=0.04, seed=seed, room=room)


def explained(run: Run) -> Explanation:
    return explain_trace(run.trace())


@FEW
@given(runs())
def test_what_a_finding_says_is_what_the_run_without_it_takes(scenario: Scenario) -> None:
    run = simulate(scenario)
    total, (gain,) = sum(run.lengths_ns), true_gains(scenario)
    findings = explained(run).findings
    if gain < 0.05 * total:
        return
    (cause,) = scenario.causes
    assert (findings[0].ranks, findings[0].blocks) == (cause.ranks, cause.blocks or ())
    assert findings[0].gain_ns == pytest.approx(gain, abs=max(0.03 * total, 0.1 * gain))


@FEW
@given(st.integers(0, 10_000))
def test_gains_in_order_never_add_up_to_more_than_there_is(seed: int) -> None:
    scenario = draw_scenario(np.random.default_rng([71, seed]), num_causes=3)
    run = simulate(scenario)
    explanation = explained(run)
    lengths = np.array([run.lengths_ns[call] for call in explanation.ordinals], dtype=float)
    gains = np.array([finding.gains_ns for finding in explanation.findings])
    assert (gains.sum(axis=0) <= lengths).all()
    assert sum(finding.share for finding in explanation.findings) <= 1
    for finding in explanation.findings:
        low, high = finding.interval_ns
        assert low <= finding.gain_ns <= high


@settings(FEW, max_examples=16)
@given(st.sampled_from((0, 2)).flatmap(runs), st.permutations(range(4)), st.permutations(range(4)))
def test_other_numbers_of_ranks_and_blocks_are_other_names_and_nothing_else(
    scenario: Scenario, ranks: list[int], blocks: list[int]
) -> None:
    """Blocks that wait for room get it in the order of their numbers, as far as a replay can tell:
    other numbers are another order, and gains differ by that."""
    run = simulate(scenario)
    findings = explained(run).findings
    others = explained(replace(run, ranks=tuple(ranks), blocks=tuple(blocks))).findings
    expected = [_renamed(finding, ranks, blocks) for finding in findings]
    assert [_renamed(finding, range(4), range(4)) for finding in others] == expected
    gains = [finding.gain_ns for finding in findings]
    rel = 0.005 if scenario.room else 0.0
    assert [finding.gain_ns for finding in others] == pytest.approx(gains, rel=rel, abs=0.5)


def _renamed(
    finding: Finding, ranks: list[int] | range, blocks: list[int] | range
) -> tuple[object, ...]:
    return (
        finding.kind,
        sorted(ranks[rank] for rank in finding.ranks),
        sorted(blocks[block] for block in finding.blocks),
        sorted((ranks[rank], blocks[block]) for rank, block in finding.places),
        finding.region,
        finding.calls,
        finding.when,
    )
