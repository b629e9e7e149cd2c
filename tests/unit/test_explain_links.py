"""Slow links: between hosts and within, where others are known badly, and in few calls."""

from __future__ import annotations

from functools import partial

import msgspec
import numpy as np
import pytest

from kprof.analysis import Summary, find
from kprof.analysis.findings import Finding, explain_trace
from patterns import bodies
from patterns.bodies import Plant, grid
from patterns.machine import Await, Body, Machine, Put, Steps, Track, Travel, Work
from synthetic import with_ranks

RANKS_OF_HOST = 4


def run_of(
    travel: Travel, body: Body | None = None, *, ranks: int = 8, calls: int = 6, seed: int = 61
) -> Machine:
    """Calls of a body, or of an exchange among all."""
    machine = Machine(ranks, seed=seed, noise=0.04)
    for _ in range(calls):
        machine.call(grid(machine, 4), body or bodies.exchange(ranks, 4, Plant()), travel=travel)
    return machine


def equal(_source: int, _other: int) -> float:
    return 1200.0


def findings_on_two_hosts(run: Machine) -> tuple[Finding, ...]:
    trace = run.trace()
    hosts = [f"node{info.rank // RANKS_OF_HOST}" for info in trace.ranks]
    infos = [
        msgspec.structs.replace(info, host=host)
        for info, host in zip(trace.ranks, hosts, strict=True)
    ]
    return find(Summary.of(with_ranks(trace, infos))).findings


def network(source: int, destination: int) -> float:
    """Data takes five times as long between the hosts."""
    return 1200.0 * (1 if source // RANKS_OF_HOST == destination // RANKS_OF_HOST else 5)


def is_gain(finding: Finding, run: Machine, without: Machine) -> bool:
    gain = sum(run.lengths) - sum(without.lengths)
    return finding.gain_ns == pytest.approx(gain, rel=0.15)


@pytest.mark.slow
def test_a_slow_network_interface_is_named_beside_a_network_that_is_slower() -> None:
    run = run_of(lambda source, other: network(source, other) * (2.5 if source == 2 else 1))
    first, *others = findings_on_two_hosts(run)
    assert first.links == ((2, -1),)
    assert others == []
    assert is_gain(first, run, run_of(network))


@pytest.mark.slow
def test_a_network_that_is_slower_is_no_fault_and_gains_all_of_it() -> None:
    run = run_of(network)
    (only,) = findings_on_two_hosts(run)
    start = "Transfers on 32 links between hosts node0 and node1 are 5.0x slower than within hosts"
    assert only.sentence.startswith(f"{start}; that costs up to ")
    assert is_gain(only, run, run_of(equal))


@pytest.mark.slow
def test_of_two_links_between_hosts_only_one_that_is_slower_than_the_other_is_a_fault() -> None:
    ring = partial(run_of, body=bodies.chain(8, 4, Plant()), seed=62)
    (only,) = findings_on_two_hosts(ring(network))
    assert (only.links, only.is_by_design) == (((3, 4), (7, 0)), True)
    run = ring(lambda s, d: network(s, d) * (3 if (s, d) == (3, 4) else 1))
    (only,) = findings_on_two_hosts(run)
    assert (only.links, only.is_by_design) == (((3, 4),), False)
    assert is_gain(only, run, ring(network))


def twice_to_all(me: Track) -> Steps:
    """All data within the host is there before the first wait, then before none."""
    peers = [(me.rank + i) % 8 for i in range(1, 8)]
    peers.sort(key=lambda peer: peer // RANKS_OF_HOST != me.rank // RANKS_OF_HOST)
    for flow, wait, ns in (("push", "pull", 400), ("up", "up-wait", 50)):
        for peer in peers:
            yield Put(flow, peer, me.block, ns)
        for peer in peers:
            yield Await(wait, peer, me.block)


def test_a_network_is_slow_in_a_region_in_which_nobody_waits_for_data_within_a_host_too() -> None:
    slow, without = (run_of(travel, twice_to_all, seed=62) for travel in (network, equal))
    (only,) = findings_on_two_hosts(slow)
    assert is_gain(only, slow, without)


def test_what_is_a_fault_comes_before_a_network_that_costs_more() -> None:
    run = run_of(lambda s, d: 14_000.0 if (s, d) == (1, 2) else 1.2 * network(s, d))
    first, last = findings_on_two_hosts(run)
    assert first.links == ((1, 2),)
    assert len(last.links) == 32
    assert last.gain_ns > first.gain_ns
    assert not last.is_hidden


def test_a_network_that_is_slow_one_way_is_named_that_way() -> None:
    def body(me: Track) -> Steps:
        for flow, wait in (("push", "pull"), ("up", "up-wait")):
            peers = [(me.rank + i) % 8 for i in range(1, 8)]
            for peer in peers:
                yield Put(flow, peer, me.block, 100)
            for peer in peers:
                yield Await(wait, peer, me.block)

    def travel(source: int, other: int) -> float:
        return 3000.0 * (2.3 if source < RANKS_OF_HOST <= other else 1)

    slow, without = (run_of(each, body, seed=65) for each in (travel, lambda _s, _d: 3000.0))
    (only,) = findings_on_two_hosts(slow)
    there, back = range(RANKS_OF_HOST), range(RANKS_OF_HOST, 8)
    assert only.links == tuple((one, other) for one in there for other in back)
    assert not only.is_by_design
    assert is_gain(only, slow, without)


@pytest.mark.slow
@pytest.mark.parametrize("times", [1.3, 2.8])
def test_a_network_that_is_as_slow_as_most_is_silent(times: float) -> None:
    slower = run_of(lambda s, d: 3000 * (times if s // 4 != d // 4 else 1))
    assert findings_on_two_hosts(slower) == ()


def noisy(travel: Travel) -> Travel:
    random = np.random.default_rng(63)
    return lambda source, other: travel(source, other) * float(np.exp(random.normal(0, 0.08)))


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [4, 8])
@pytest.mark.parametrize(("links", "are_all"), [(((3, 2),), False), (((-1, 2),), True)])
def test_a_slow_link_that_hides_the_others_into_its_rank_is_not_all_of_them(
    ranks: int, links: tuple[tuple[int, int], ...], are_all: bool
) -> None:
    """Rank 2 waits for rank 3 first; were all as slow, some of the others would come later."""

    def travel(source: int, other: int) -> float:
        return 7000.0 if other == 2 and (are_all or source == 3) else 1000.0

    (only,) = explain_trace(run_of(noisy(travel), ranks=ranks).trace()).findings
    assert only.links == links


def test_all_links_into_a_rank_are_named_where_only_the_first_one_is_ever_waited_for() -> None:
    run = run_of(lambda _source, other: 7000.0 if other == 2 else 1000.0, ranks=4)
    (only,) = explain_trace(run.trace()).findings
    assert only.links == ((-1, 2),)


def test_pauses_that_are_short_after_long_calls_do_not_hide_what_a_link_costs() -> None:
    """All ranks begin together: that they would begin as long after their own ends is chance."""

    def run(*, is_slow: bool) -> Machine:
        machine = Machine(8, seed=64, noise=0.04)
        for longer in (0.0, 900.0, 300.0, 1200.0, 600.0):
            slow_ns = 6000.0 + longer if is_slow else 1000.0

            def travel(source: int, other: int, slow_ns: float = slow_ns) -> float:
                return slow_ns if (source, other) == (5, 2) else 1000.0

            machine.call(grid(machine, 4), bodies.exchange(8, 4, Plant(), 1), travel=travel)
            machine.clock += round(2000 - longer)
        return machine

    slow = run(is_slow=True)
    (only,) = explain_trace(slow.trace()).findings
    assert only.links == ((5, 2),)
    assert is_gain(only, slow, run(is_slow=False))


def cube(travel: Travel) -> Machine:
    """An all-gather over a hypercube: a step for each dimension, with twice the data of the step
    before, which takes longer to send, to travel and to store."""

    def body(me: Track) -> Steps:
        for step in range(3):
            peer, slot = me.rank ^ 1 << step, 4 * step + me.block
            yield Put("push", peer, slot, 250 * 2**step)
            yield Await("pull", peer, slot)
            yield Work("store", 220 * 2**step)

    def of_step(source: int, destination: int) -> float:
        return (600 + 250 * (source ^ destination)) * travel(source, destination)

    return run_of(of_step, body, calls=8, seed=64)


def test_links_that_all_ranks_use_in_a_step_that_sends_more_are_not_slow() -> None:
    assert find(Summary.of(cube(lambda _source, _other: 1.0).trace())).findings == ()


@pytest.mark.slow
@pytest.mark.parametrize("slow", [(0, 1), (2, 6)])
def test_a_link_slower_than_others_of_its_step_is_named_alone(slow: tuple[int, int]) -> None:
    run = cube(lambda *link: 3.0 if link == slow else 1.0)
    (only,) = find(Summary.of(run.trace())).findings
    assert only.links == (slow,)
    assert is_gain(only, run, cube(lambda _source, _other: 1.0))


def test_the_only_link_between_hosts_of_its_region_is_a_network_and_no_slow_link() -> None:
    """Rank 0 sends to the other host's first rank ("up"), and both pass it on within their hosts."""

    def body(me: Track) -> Steps:
        leader = me.rank - me.rank % RANKS_OF_HOST
        for item in range(3):
            slot = 8 * item + me.block
            if me.rank == 0:
                yield Put("up", RANKS_OF_HOST, slot, 400)
            elif me.rank == leader:
                yield Await("up-wait", 0, slot)
            if me.rank != leader:
                yield Await("pull", leader, slot)
            for member in range(leader + 1, leader + RANKS_OF_HOST) if me.rank == leader else ():
                yield Put("push", member, slot, 250)
            yield Work("math", 700)

    machine = run_of(lambda s, d: network(s, d) * 0.55, body, calls=8, seed=64)
    assert [finding.sentence for finding in findings_on_two_hosts(machine)] == []
