"""What differs between places where no single one of them stands out."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from kprof import analysis
from kprof.analysis import Summary
from kprof.analysis.findings.differences import By, Difference
from patterns.bodies import grid
from patterns.classes import CLASSES, draw
from patterns.machine import Machine, Steps, Track, Work
from synthetic import TraceBuilder

NUM_CALLS, NUM_RANKS, NUM_BLOCKS = 6, 4, 8


def differences_of(
    send_ns: Callable[[int, int], int], start_ns: Callable[[int, int], int] = lambda _c, _r: 0
) -> tuple[Difference, ...]:
    """Of calls in which every block loads once, then works, and the call ends with the last rank;
    lengths by call and rank."""

    def body(me: Track) -> Steps:
        yield Work("load", send_ns(me.call, me.rank) + 10 * me.block)
        yield Work("math", 20_000)

    machine = Machine(NUM_RANKS, seed=1, noise=0.0)
    for call in range(NUM_CALLS):
        late = {rank: float(start_ns(call, rank)) for rank in range(NUM_RANKS)}
        machine.call(grid(machine, NUM_BLOCKS), body, late=late)
    return analysis.find(Summary.of(machine.trace())).rest.differences


def test_most_ranks_are_slow_and_which_ones_changes_from_call_to_call() -> None:
    (found,) = differences_of(lambda call, rank: 5_000 if rank == call % NUM_RANKS else 40_000)
    assert (found.region, found.by) == ("load", By.RANK_OF_CALL)
    assert 0.5 < found.share < 0.6
    assert 7 < found.factor < 9


def test_equal_ranks_do_not_differ() -> None:
    assert differences_of(lambda _call, _rank: 40_000) == ()


def test_what_hides_behind_a_late_start_is_tried_with_it() -> None:
    """Ranks 0 to 2 send for as long as rank 3 is late: to mend either alone gains nothing."""
    (found,) = differences_of(
        lambda _call, rank: 5_000 if rank == NUM_RANKS - 1 else 40_000,
        lambda _call, rank: 35_000 if rank == NUM_RANKS - 1 else 0,
    )
    assert (found.region, found.slow, found.with_starts) == ("load", (0, 1, 2), True)
    assert 0.5 < found.share < 0.6


def test_what_a_finding_takes_away_is_not_compared() -> None:
    """Items that were one too many took 3462x less time than others, it was said."""
    build = TraceBuilder('REGION(R_ITEM, "item", compute)', num_ranks=4)
    for rank in range(4):
        for block in range(NUM_BLOCKS):
            for i in range(12 if rank == 3 else 4):
                build.span(rank, "item", 1000 * i, 1000, block=block)
    found = analysis.find(Summary.of(build.trace()))
    assert [finding.ranks for finding in found.findings] == [(3,)]
    assert found.rest.differences == ()


def test_one_long_event_that_may_be_chance_is_stated() -> None:
    """Of few events one in 500 may be long: no cause, but not nothing either."""
    case = draw("cliff", np.random.default_rng([771234, 19, sorted(CLASSES).index("cliff")]))
    found = analysis.find(Summary.of(case.trace(case.run(case.everything))))
    assert not found.findings
    largest = found.rest.differences[0]
    assert (largest.by, largest.slow) == (By.EVENT, (0, 1, 1))
    assert largest.share == pytest.approx(0.27, abs=0.01)
    assert found.rest.sentence == (
        "One event stands out, perhaps by chance: math takes 4.3x as long as usual once "
        "(rank 0, block 1, call 1): up to 27 %"
    )
