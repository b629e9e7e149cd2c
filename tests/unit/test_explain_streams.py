"""Ranks that launch a call after their own last one, as streams do; exchanges in two levels; a lock in a loop;
a rank that stumbles; a slow warp."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kprof.analysis.findings import Finding, explain_trace
from patterns.machine import Await, Body, Drop, Grab, Machine, Meet, Put, Steps, Track, Work

NUM_BLOCKS, CALLS = 3, 5
FAST_NS, SLOW_NS = 700, 4_500


def run(
    num_ranks: int,
    body: Body,
    late: dict[int, float] | None = None,
    pause_ns: int = 2_500,
    travel: Callable[[int, int], float] | None = None,
) -> Machine:
    machine = Machine(num_ranks, seed=7, noise=0.03, num_blocks=NUM_BLOCKS, pause_ns=pause_ns)
    for _ in range(CALLS):
        tracks = [Track(rank, block) for rank in range(num_ranks) for block in range(NUM_BLOCKS)]
        machine.call(tracks, body, late=late, travel=travel)
    return machine


def finding_of(machine: Machine, without: Machine) -> Finding:
    """The only finding, which gains what the run without its cause is shorter."""
    (found,) = explain_trace(machine.trace()).findings
    gain = sum(machine.lengths) - sum(without.lengths)
    assert found.gain_ns == pytest.approx(gain, rel=0.1)
    return found


def ring(num_ranks: int, slow: int = -1) -> Body:
    """Work on what has come round so far; the last sum is long where the rank is slow."""

    def body(me: Track) -> Steps:
        for step in range(num_ranks - 1):
            slot = me.block * num_ranks + step
            yield Work("math", 4_000 * (1.6 if me.rank == slow else 1))
            yield Put("push", (me.rank + 1) % num_ranks, slot)
            yield Await("pull", (me.rank - 1) % num_ranks, slot)
        yield Work("store", 1_500)

    return body


def test_a_rank_that_launches_late_every_time() -> None:
    """Its first launch counts from the start of the run, the others from the end of the one before."""
    late, on_time = run(6, ring(6), {2: 12_000}), run(6, ring(6))
    found = finding_of(late, on_time)
    assert (found.kind.name, found.ranks) == ("late_start", (2,))
    assert explain_trace(on_time.trace()).findings == ()


def test_a_rank_that_ends_last_begins_last_and_is_not_late() -> None:
    """Rank 0 always ends a transfer after the slow rank: nothing changes from call to call."""
    found = finding_of(run(2, ring(2, slow=1)), run(2, ring(2)))
    assert (found.kind.name, found.ranks, found.region) == ("slow", (1,), "math")


def star(me: Track) -> Steps:
    """Rank 0 adds up what the others have, and ends before they have heard of it."""
    others = [rank for rank in range(5) if rank != 0]
    if me.rank == 0:
        for rank in others:
            yield Await("up-wait", rank, me.block)
            yield Work("sum", 900)
        for rank in others:
            yield Put("push", rank, me.block)
    else:
        yield Work("math", 9_000)
        yield Put("up", 0, me.block)
        yield Await("pull", 0, me.block)
        yield Work("store", 1_500)


def test_a_rank_that_launches_late_where_the_others_never_begin_at_once() -> None:
    found = finding_of(run(5, star, {2: 6_000}), run(5, star))
    assert (found.kind.name, found.ranks) == ("late_start", (2,))


def test_a_second_launch_that_is_late_on_all_ranks_in_one_call() -> None:
    def stages(late_ns: float) -> Machine:
        machine = Machine(4, seed=7, noise=0.03)
        for call in range(CALLS):
            late = {rank: late_ns for rank in range(4) if call == 3}
            tracks = [[Track(r, b) for r in range(4) for b in range(NUM_BLOCKS)] for _ in range(2)]
            machine.stages([(tracks[0], ring(4), {}), (tracks[1], ring(4), late)])
        return machine

    found = finding_of(stages(15_000), stages(0))
    assert found.fact == "All ranks start late in 1 of 5 calls (call 3)"


def two_levels(me: Track) -> Steps:
    """Ranks 0 to 3 and 4 to 7 exchange among themselves, and then each with the one of the others."""
    group = [rank for rank in range(8) if rank // 4 == me.rank // 4 and rank != me.rank]
    across = (me.rank + 4) % 8
    yield Work("math", 7_000)
    for rank in group:
        yield Put("push", rank, me.block)
    for rank in group:
        yield Await("pull", rank, me.block)
    yield Work("sum", 2_000)
    yield Put("up", across, me.block)
    yield Await("up-wait", across, me.block)
    yield Work("store", 1_500)


def travel_ns(src: int, dst: int) -> float:
    return FAST_NS if src // 4 == dst // 4 else SLOW_NS


def test_data_that_only_crosses_is_not_compared_with_data_that_never_does() -> None:
    for pause_ns in (0, 2_500):
        balanced = run(8, two_levels, pause_ns=pause_ns, travel=travel_ns)
        assert explain_trace(balanced.trace()).findings == ()


def test_a_crossing_that_is_slower_than_the_others() -> None:
    def travel(src: int, dst: int) -> float:
        return travel_ns(src, dst) * (2.5 if (src, dst) == (1, 5) else 1)

    found = finding_of(
        run(8, two_levels, pause_ns=0, travel=travel),
        run(8, two_levels, pause_ns=0, travel=travel_ns),
    )
    assert (found.kind.name, found.links) == ("slow_transfer", ((1, 5),))


def test_of_a_crossing_exchange_a_slow_rank_is_the_cause() -> None:
    def body(me: Track) -> Steps:
        for step in two_levels(me):
            is_slow = isinstance(step, Work) and step.region == "sum" and me.rank == 2
            yield Work("sum", 6_500) if is_slow else step

    pair = [run(8, one, pause_ns=0, travel=travel_ns) for one in (body, two_levels)]
    found = finding_of(*pair)
    assert (found.kind.name, found.ranks, found.region) == ("slow", (2,), "sum")


def test_a_slow_block_costs_more_than_a_lock_that_it_found_free() -> None:
    """Who comes late finds the lock free: without what makes it late, it does not wait for those before it."""

    def body(me: Track) -> Steps:
        for _ in range(4):
            yield Work("math", 6_000 * (1.6 if me.block == 5 else 1))
            yield Grab("lock")
            yield Work("sum", 200)
            yield Drop("lock")

    machine = Machine(1, seed=7, noise=0.03, num_blocks=8)
    for _ in range(CALLS):
        machine.call([Track(0, block) for block in range(8)], body)
    explanation = explain_trace(machine.trace())
    (found,) = explanation.findings
    assert (found.kind.name, found.blocks, found.region) == ("slow", (5,), "math")
    assert found.gain_ns > max(limit.gain_ns for limit in explanation.limits)


def test_what_one_rank_stumbles_over_now_and_then() -> None:
    """As often in every block and call, so that neither its blocks nor its usual time stand out."""

    def body(stumbles: float) -> Body:
        def steps(me: Track) -> Steps:
            for step in range(5):
                chance = machine.random("stumble", me.rank, me.block, me.call, step).random()
                yield Work("math", 4_000 * (3 if me.rank == 2 and chance < stumbles else 1))
                yield Meet((me.call, step), 4 * NUM_BLOCKS)

        return steps

    machine = Machine(4, seed=7, noise=0.03)
    runs = [run(4, body(stumbles), pause_ns=0) for stumbles in (0.15, 0.0)]
    found = finding_of(*runs)
    assert (found.kind.name, found.ranks, found.region) == ("slow_events", (2,), "math")


def test_a_slow_warp_of_a_block_gains_what_it_takes_longer() -> None:
    """The other warps of the block are as fast as everywhere: half of the excess is not theirs."""

    def warps(factor: float) -> Machine:
        def body(me: Track) -> Steps:
            yield Work("load", 2_000)
            for _ in range(6):
                yield Work("math", 4_000 * (factor if (me.block, me.warp) == (2, 1) else 1))
            yield Meet((me.call, me.block), 2)

        machine = Machine(1, seed=7, noise=0.03)
        for _ in range(CALLS):
            machine.call([Track(0, block, warp) for block in range(6) for warp in range(2)], body)
        return machine

    found = finding_of(warps(1.6), warps(1.0))
    assert (found.kind.name, found.blocks, found.region) == ("slow", (2,), "math")
    assert found.factor == pytest.approx(1.6, abs=0.1)


PAUSES_NS = (3_400, 3_900, 3_300, 4_600, 3_700, 4_200, 3_500, 4_500, 3_600)


def run_on(num_ranks: int, body: Body, late: dict[int, float] | None = None) -> Machine:
    """Calls after pauses that are the same for all ranks, and differ more than the ends of ranks do."""
    machine = Machine(num_ranks, seed=7, noise=0.08, travel_ns=900, num_blocks=NUM_BLOCKS)
    for machine.pause_ns in PAUSES_NS:
        tracks = [Track(rank, block) for rank in range(num_ranks) for block in range(NUM_BLOCKS)]
        machine.call(tracks, body, late=late)
    return machine


def split(me: Track) -> Steps:
    """Ranks 0 to 4 ask ranks 5 to 7, which end first, for their part of every step."""
    for step in range(3):
        slot = me.block * 3 + step
        if me.rank < 5:
            experts = [5 + (me.rank + i) % 3 for i in range(3)]
            yield Work("math", 2_200)
            for rank in experts:
                yield Put("push", rank, slot, 90)
            for rank in experts:
                yield Await("up-wait", rank, slot)
        else:
            askers = [(me.rank + i) % 5 for i in range(5)]
            for rank in askers:
                yield Await("pull", rank, slot)
            yield Work("sum", 1_800)
            for rank in askers:
                yield Put("up", rank, slot, 60)


def test_who_begins_after_its_own_end_is_not_late_whatever_the_pauses_are() -> None:
    assert explain_trace(run_on(8, split).trace()).findings == ()


@pytest.mark.slow
def test_a_rank_with_a_slow_send_that_launches_late_has_two_causes() -> None:
    """Each has its own gain: whatever makes the host late does not make the kernel slow."""

    def body(slow: int) -> Body:
        def steps(me: Track) -> Steps:
            yield Work("math", 2_200)
            for step in range(6):
                other = me.rank ^ (1 << step % 3)
                yield Put("push", other, me.block * 6 + step, 1_700 if me.rank == slow else 350)
                yield Await("pull", other, me.block * 6 + step)
                yield Work("sum", 800)

        return steps

    late = {3: 4_000.0}
    found = explain_trace(run_on(8, body(3), late).trace()).findings
    assert {(f.kind.name, f.ranks) for f in found} == {("slow", (3,)), ("late_start", (3,))}
    both, neither = (sum(run_on(8, body(s), d).lengths) for s, d in ((3, late), (-1, None)))
    only_late = sum(run_on(8, body(-1), late).lengths)
    only_slow = sum(run_on(8, body(3)).lengths)
    first, second = (f.gain_ns for f in found)
    is_slow_first = found[0].kind.name == "slow"
    assert first == pytest.approx(both - (only_late if is_slow_first else only_slow), rel=0.1)
    assert second == pytest.approx((only_late if is_slow_first else only_slow) - neither, rel=0.1)
