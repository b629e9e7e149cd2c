"""The simulator: programs run as written, and causes change only what they say."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from kprof import analysis
from kprof.analysis import Summary
from simulation import (
    HELD_BACK,
    TOPOLOGIES,
    Cause,
    Kind,
    Scenario,
    Sizes,
    draw_scenario,
    simulate,
    true_gains,
)
from simulation.program import Op, Program, ProgramWriter
from simulation.run import Engine, Times

pytestmark = pytest.mark.slow


def _run(writer: ProgramWriter, room: int = 0) -> tuple[Program, list[int], list[int]]:
    """Every operation takes its mean, data travels for 100 ns, nothing lies between operations."""
    program = writer.program()
    times = Times(
        program.mean_ns.astype(int).tolist(),
        [0] * len(program),
        [100] * len(program),
        [[0] * program.num_ranks] * program.num_stages,
    )
    run = Engine(program, times, 0, room).run()
    return program, run.starts, run.ends


def test_a_wait_ends_when_the_data_has_arrived() -> None:
    writer = ProgramWriter(2)
    sender, receiver = writer.track(0, 0), writer.track(1, 0)
    sender.work("prepare", 1000)
    sender.send(1, slot=7)
    receiver.wait(0, slot=7)
    _, starts, ends = _run(writer)
    assert (starts[1], ends[1]) == (1000, 1400)
    assert (starts[2], ends[2]) == (0, 1500)


def test_a_barrier_opens_for_all_when_the_last_one_comes() -> None:
    writer = ProgramWriter(2)
    for rank in range(2):
        track = writer.track(rank, 0)
        track.work("prepare", 1000 * (rank + 1))
        track.barrier("all")
        track.work("finish", 10)
    _, starts, ends = _run(writer)
    assert ends[1] == ends[4] == 2200
    assert starts[2] == starts[5] == 2200


def test_a_lock_is_held_by_one_at_a_time_in_the_order_in_which_they_come() -> None:
    writer = ProgramWriter(1)
    for block in range(3):
        track = writer.track(0, block)
        track.work("prepare", 300 - 100 * block)
        track.locked("sum", "add", 500)
    _, starts, ends = _run(writer)
    held = [(starts[i], ends[i]) for i in (8, 5, 2)]
    assert held == [(140, 640), (680, 1180), (1220, 1720)]


def test_a_block_without_room_starts_when_another_one_ends() -> None:
    writer = ProgramWriter(1)
    for length in (500, 300, 100):
        writer.track(0, block=len(writer.tracks)).work("work", length)
    _, starts, _ = _run(writer, room=2)
    assert starts == [0, 0, 450]


@pytest.mark.parametrize("topology", [*TOPOLOGIES, *HELD_BACK])
@pytest.mark.parametrize("num_ranks", [2, 5])
def test_every_topology_runs_and_its_flows_are_whole(topology: str, num_ranks: int) -> None:
    scenario = Scenario(topology=topology, sizes=Sizes(num_ranks, 3, 2), num_calls=2)
    run = simulate(scenario)
    trace = run.trace()
    sends = sum(int((call.program.op == Op.SEND).sum()) for call in run.calls)
    assert trace.num_events() == sum(len(call.program) for call in run.calls)
    assert len(trace.frame("SELECT 1 FROM flows")) == sends
    lengths = analysis.calls(Summary.of(trace))["length_ns"].tolist()
    assert lengths == run.lengths_ns


def test_without_its_cause_a_run_has_the_same_random_numbers() -> None:
    slow = Cause(Kind.SLOW, 2.0, (1.0, 0.0), ranks=(1,), blocks=(2,))
    planted = Scenario(sizes=Sizes(3, 4, 2), num_calls=2, causes=(slow,))
    before, after = simulate(planted), simulate(planted, [])
    for call in range(2):
        program = before.calls[call].program
        with_it = np.array(before.calls[call].ends) - np.array(before.calls[call].starts)
        without = np.array(after.calls[call].ends) - np.array(after.calls[call].starts)
        changed = (with_it != without) & (program.op <= Op.SEND)
        expected = slow.is_at(program, call) & (program.op <= Op.SEND) & (call == 0)
        assert (changed == expected).all()


def test_more_items_leave_the_noise_of_the_others_alone() -> None:
    more = Cause(Kind.MORE_ITEMS, 1.0, (1.0,), ranks=(0,))
    planted = Scenario(sizes=Sizes(2, 2, 2), num_calls=1, causes=(more,))
    with_it, without = simulate(planted).calls[0], simulate(planted, []).calls[0]
    known = dict(
        zip(
            with_it.program.key.tolist(),
            (np.array(with_it.ends) - with_it.starts).tolist(),
            strict=True,
        )
    )
    sends = np.flatnonzero(without.program.op == Op.SEND)
    durations = np.array(without.ends) - without.starts
    assert len(with_it.program) > len(without.program)
    assert all(known[int(without.program.key[i])] == durations[i] for i in sends)


def test_a_delay_that_nobody_waits_for_costs_nothing() -> None:
    early = Cause(Kind.DELAY, 2000.0, (1.0,), ranks=(0,), blocks=(0,), region="finish")
    last = replace(early, amount=50_000.0, ranks=(1,))
    scenario = Scenario(
        topology="ring", sizes=Sizes(2, 2, 2), num_calls=1, causes=(early, last), noise=0.0
    )
    of_early, of_last = true_gains(scenario)
    assert of_early == 0
    assert of_last == pytest.approx(48_000, abs=1000)


def test_drawn_scenarios_are_worth_finding_and_can_be_drawn_again() -> None:
    first = draw_scenario(np.random.default_rng(3))
    assert first == draw_scenario(np.random.default_rng(3))
    assert max(true_gains(first)) >= 0.05 * sum(simulate(first).lengths_ns)
