"""Explanations: the planted cause comes first, with what it costs and when, and nothing else is named."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from kprof.analysis.findings import Explanation, Finding, LimitKind, When, explain_trace
from kprof.analysis.findings.candidates.candidate import basis_of
from kprof.analysis.findings.candidates.excess import Cells, find_deviations
from kprof.analysis.findings.greedy import Search, candidates_of
from kprof.analysis.replay.load import calls_to_replay
from kprof.analysis.summary import Summary
from patterns.machine import Machine, Steps, Track, Work
from recorded import analysed
from simulation import Cause, Kind, Scenario, Sizes, draw_balanced, simulate, true_gains
from synthetic import TraceBuilder

pytestmark = pytest.mark.slow

ALWAYS = (1.0,) * 12
BLOCKS = 48


def run_of(cause: Cause, topology: str = "halo", **changes: object) -> Scenario:
    base = Scenario(topology=topology, sizes=Sizes(4, 6, 4), num_calls=12, causes=(cause,), seed=3)
    return replace(base, **changes)  # type: ignore[arg-type]


def only_finding(scenario: Scenario, error: float = 0.03) -> Finding:
    """The finding of a run, which says what the run without its cause gains, up to this share of the run."""
    run = simulate(scenario)
    explanation = explain_trace(run.trace())
    assert len(explanation.findings) == 1, explanation.findings
    (finding,) = explanation.findings
    (gain,) = true_gains(scenario)
    assert finding.gain_ns == pytest.approx(gain, abs=error * sum(run.lengths_ns))
    assert finding.share == pytest.approx(finding.gain_ns / explanation.total_ns)
    return finding


def test_a_straggler_that_moves_is_one_finding() -> None:
    path = tuple((call % 4, call % 6) for call in range(12))
    finding = only_finding(run_of(Cause(Kind.SLOW, 3.0, ALWAYS, path=path)))
    assert finding.when is When.MOVING
    assert set(finding.places) == set(path)


def test_a_rank_with_three_times_the_items_is_uneven_work() -> None:
    more = Cause(Kind.MORE_ITEMS, 2.0, ALWAYS, ranks=(1,))
    # Without the surplus the other items are dealt out to other blocks, which no replay knows.
    scenario = run_of(more, topology="all_to_all", sizes=Sizes(4, 4, 6))
    finding = only_finding(scenario, error=0.05)
    assert (finding.kind.name, finding.ranks, finding.blocks) == ("uneven_work", (1,), ())
    assert finding.factor == pytest.approx(3.0, rel=0.05)


def test_the_second_cause_is_measured_without_the_first() -> None:
    late = Cause(Kind.LATE_START, 30_000.0, ALWAYS, ranks=(0,))
    slow = Cause(Kind.SLOW, 3.0, ALWAYS, ranks=(2,), blocks=(4,))
    scenario = run_of(late, causes=(late, slow), topology="all_to_all")
    run = simulate(scenario)
    explanation = explain_trace(run.trace())
    kinds = {finding.kind.name for finding in explanation.findings}
    assert kinds == {"late_start", "slow"}
    everything = sum(run.lengths_ns) - sum(simulate(scenario, []).lengths_ns)
    together = sum(finding.gain_ns for finding in explanation.findings)
    assert together == pytest.approx(everything, abs=0.03 * sum(run.lengths_ns))
    assert sum(finding.share for finding in explanation.findings) < 1


@pytest.mark.parametrize("seed", range(8))
def test_a_balanced_run_has_no_finding(seed: int) -> None:
    scenario = draw_balanced(np.random.default_rng([40, seed]))
    assert explain_trace(simulate(scenario).trace()).findings == ()


def test_the_first_calls_of_a_cold_run_are_left_out() -> None:
    weights = (1.0, 0.3) + (0.0,) * 10
    scenario = run_of(Cause(Kind.SLOW, 5.0, weights))
    explanation = explain_trace(simulate(scenario).trace())
    assert explanation.warm_up == (0, 1)
    assert explanation.findings == ()
    assert explanation.ordinals == tuple(range(2, 12))


def test_of_a_large_capture_calls_are_taken_by_their_lengths(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("kprof.analysis.replay.load.MAX_SPANS", 2500)
    weights = tuple(float(call == 8) for call in range(12))
    explanation = explain_trace(simulate(run_of(Cause(Kind.SLOW, 2.0, weights))).trace())
    assert explanation.num_calls == 12
    assert 2 <= len(explanation.ordinals) <= 5
    assert 8 in explanation.ordinals


def on_one_rank(calls: int, body: Callable[[int, Track], Steps]) -> Explanation:
    """So many calls of many blocks, explained."""
    machine = Machine(1, seed=5, noise=0.03, num_blocks=BLOCKS)
    for call in range(calls):
        machine.call([Track(0, block) for block in range(BLOCKS)], partial(body, call))
    return explain_trace(machine.trace())


def test_barriers_of_single_blocks_are_no_lock() -> None:
    """They belong to category sync, too, but many blocks leave theirs at a time."""

    def body(_: int, me: Track) -> Steps:
        for item in range(4):
            yield Work("math", 5000 + 37 * me.block * item % 900)
            yield Work("mutex", 300 + 53 * (me.block + item) % 1500)

    limits = {limit.kind for limit in on_one_rank(3, body).limits}
    assert LimitKind.LOCK not in limits


def test_a_recording_names_the_next_steps_of_its_ladder() -> None:
    first, second, third = analysed("all_to_all-token_flags-4xH200-skew3-264blocks").found.findings[
        :3
    ]
    steps = {(finding.kind.name, finding.region) for finding in (first, second)}
    assert steps == {
        ("uneven_blocks", "combine/send"),
        ("uneven_blocks", "expert"),
    }
    assert min(first.share, second.share) > 0.25
    # What catches the eye costs least: rank 3 sends three times the tokens.
    assert (third.kind.name, third.ranks) == ("uneven_work", (3,))
    assert third.share < 0.1


def test_slow_calls_among_calls_that_differ_a_little_are_no_sizes() -> None:
    """As on a GPU whose clock goes up and down: 2.2 to 2.9 us, and 83 us in two of eight calls."""
    took_us = (83.0, 2.2, 2.1, 2.4, 2.6, 83.0, 2.9, 2.7)

    def body(call: int, _: Track) -> Steps:
        yield Work("math", took_us[call] * 1000)

    (finding,) = on_one_rank(8, body).findings
    assert (finding.kind.name, finding.calls) == ("slow_call", (0, 5))


def test_what_grows_at_all_places_is_measured_from_the_shortest_call() -> None:
    def body(call: int, _: Track) -> Steps:
        for _ in range(5):
            yield Work("math", 2000 * (1 + 0.7 * call / 14))
        yield Work("store", 4000)

    (finding,) = on_one_rank(14, body).findings
    assert (finding.kind.name, finding.region) == ("slow_call", "math")
    assert finding.when is When.GROWING
    # 10 us grow to 16.5 us, beside 4 us.
    assert finding.share == pytest.approx(3.25 / 17.25, abs=0.015)


def test_a_block_that_is_slow_in_hundreds_of_calls() -> None:
    """The chance that all of them are its own has factors that no float holds."""
    calls, num_slow, num_blocks = 2200, 200, 4
    rng = np.random.default_rng(5)
    slow = set(rng.choice(calls, num_slow, replace=False).tolist())
    build = TraceBuilder('REGION(R_WORK, "work", compute)', num_ranks=1)
    for call in range(calls):
        build.launch(call + 1, "kernel", num_blocks=num_blocks)
        for block in range(num_blocks):
            length_ns = int(rng.integers(10_000, 10_300))
            if block == 1 and call in slow:
                length_ns = 3 * length_ns // 2
            build.span(0, "work", 100_000 * call, length_ns, launch=call + 1, block=block)
    (finding,) = explain_trace(build.trace()).findings
    assert (finding.places, len(finding.calls)) == (((0, 1),), num_slow)


@pytest.mark.parametrize(
    "phases",
    [
        (1500, 1500, 1500, 5000, 5000),
        (1000, 2000, 4000),
        (1000, 2000, 4000, 8000),
    ],
)
def test_a_second_phase_of_a_region_is_no_slow_event(phases: tuple[int, ...]) -> None:
    def body(_: int, __: Track) -> Steps:
        for took in phases:
            yield Work("math", took)

    assert on_one_rank(10, body).findings == ()


def test_more_items_everywhere_in_every_second_call_are_nothing_to_balance() -> None:
    def body(call: int, _: Track) -> Steps:
        for _ in range(6 if call % 2 else 3):
            yield Work("math", 1500)

    assert on_one_rank(12, body).findings == ()


def test_where_nothing_takes_any_time_nothing_stands_out() -> None:
    rank, call = np.divmod(np.arange(8), 2)
    cells = Cells(call, rank, np.zeros(8, np.int64), np.ones(8), np.zeros(8))
    assert find_deviations(cells, 0.0, 2) == ([], 0.0)


def test_what_gains_more_than_its_waits_and_work_is_refused() -> None:
    run = simulate(run_of(Cause(Kind.SLOW, 3.0, ALWAYS, ranks=(1,))))
    replayed = calls_to_replay(Summary.of(run.trace()))
    assert replayed is not None
    basis = basis_of(replayed.graph)
    candidates = candidates_of(basis)
    search = Search(basis, candidates)
    work_ns = np.array([candidate.saved_ns.sum() for candidate in candidates])
    assert all(
        search._carries(one, np.array([ns])) for one, ns in zip(candidates, work_ns, strict=True)
    )
    assert not any(
        search._carries(one, np.array([2 * ns]))
        for one, ns in zip(candidates, work_ns, strict=True)
    )


def test_an_interval_contains_what_leaving_out_one_call_gives() -> None:
    occasional = (0.0,) * 4 + (1.0,) + (0.0,) * 7
    found = only_finding(run_of(Cause(Kind.SLOW, 4.0, occasional, ranks=(1,))), error=0.05)
    assert found.interval_ns[0] == 0.0
