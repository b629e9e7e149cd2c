"""What happens between calls and between events is laid to what caused it, and named as what it is.

Time between events is compared only with time between such events, and is no event itself.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kprof.analysis.findings import Finding, explain_trace, find
from kprof.analysis.summary import Summary
from patterns.bodies import grid
from patterns.machine import Await, Body, Idle, Machine, Put, Steps, Track, Work
from synthetic import TraceBuilder

NUM_RANKS, NUM_BLOCKS, NUM_CALLS = 4, 4, 6
QUEUE = """
REGION(R_COPY, "copy", send,    slot:24)
REGION(R_ITEM, "item", wait,    slot:24)
REGION(R_MATH, "math", compute)
REGION(R_PULL, "pull", wait)
FLOW_IN_BLOCK(R_COPY, R_ITEM)
"""


def findings_of(*bodies: Body) -> tuple[tuple[Finding, ...], Machine]:
    """Of launches of one kernel, each after the one before it on its rank, and not of all ranks."""
    machine = Machine(num_ranks=NUM_RANKS, seed=5)
    machine.kernels = ["only"] * len(bodies)
    machine.stages([(grid(machine, NUM_BLOCKS), body, {}) for body in bodies])
    return explain_trace(machine.trace()).findings, machine


def test_a_rank_that_begins_late_because_it_ended_late_does_not_start_late() -> None:
    def body(store_ns: float) -> Body:
        def block(me: Track) -> Steps:
            yield Work("load", 3000)
            yield Put("push", (me.rank + 1) % NUM_RANKS, me.block)
            yield Await("pull", (me.rank - 1) % NUM_RANKS, me.block)
            # Nobody waits for it, but for the end of the launch.
            yield Work("store", store_ns if me.rank == 1 and me.block == 2 else 500)

        return block

    usual, slow = body(500), body(20_000)
    found, machine = findings_of(usual, usual, usual, slow, usual, usual)
    (finding,) = found
    assert (finding.kind.name, finding.ranks, finding.blocks) == ("slow", (1,), (2,))
    assert (finding.region, finding.calls) == ("store", (3,))
    # No call has the others' time before that end a second time.
    assert finding.total_ns <= machine.lengths[0]
    assert finding.gain_ns == pytest.approx(19_500, rel=0.1)


def test_gaps_before_several_regions_are_gaps() -> None:
    def block(me: Track) -> Steps:
        yield Work("load", 3000)
        for step in range(1, NUM_RANKS):
            yield Put("push", (me.rank + step) % NUM_RANKS, me.block)
            if me.rank == 2:
                yield Idle(2000)
        for step in range(1, NUM_RANKS):
            yield Await("pull", (me.rank - step) % NUM_RANKS, me.block)

    machine = Machine(num_ranks=NUM_RANKS, seed=5)
    for _ in range(NUM_CALLS):
        machine.call(grid(machine, NUM_BLOCKS), block)
    (finding,) = explain_trace(machine.trace()).findings
    assert (finding.kind.name, finding.ranks, finding.blocks) == ("idle_gap", (2,), ())


def test_without_a_common_clock_warps_of_a_block_still_wait_for_each_other() -> None:
    build = TraceBuilder(QUEUE, NUM_RANKS, is_aligned=False)
    for call in range(NUM_CALLS):
        build.launch(call, "kernel", NUM_BLOCKS)
        # In every call all ranks end with rank 1, whose copies take 2000 ns and not 400.
        end_ns = 100_000 * call + 8 * 2000 + 300 + 500
        for rank in range(NUM_RANKS):
            copy_ns = 2000 if rank == 1 else 400
            for block in range(NUM_BLOCKS):
                place = {"rank": rank, "block": block, "launch": call}
                now = 100_000 * call + 7 * block
                done_ns = now
                for slot in range(8):
                    took = {"start_ns": now, "duration_ns": copy_ns, "slot": slot}
                    build.span(**place, warp=0, region="copy", **took)
                    now += copy_ns
                    waited = {"start_ns": done_ns, "duration_ns": max(50, now + 50 - done_ns)}
                    build.span(**place, warp=1, region="item", **waited, slot=slot)
                    done_ns += waited["duration_ns"]
                    build.span(**place, warp=1, region="math", start_ns=done_ns, duration_ns=300)
                    done_ns += 300
                rest_ns = max(50, end_ns + 7 * block - done_ns)
                build.span(**place, warp=1, region="pull", start_ns=done_ns, duration_ns=rest_ns)
    (finding,) = find(Summary.of(build.trace())).findings
    assert (finding.kind.name, finding.ranks, finding.blocks) == ("slow", (1,), ())
    # What is left are eight copies of 400 ns.
    assert finding.share == pytest.approx(8 * 1600 / (8 * 2000 + 800), abs=0.05)


SENDING_BLOCKS, NUM_SENDS = 8, 8
ADD_NS, SEND_NS = 10_000, 50
# Of a block in a call: the time without a region before every send, and what every send takes.
Sends = Callable[[int, int, int], tuple[int, int]]


def findings_of_sends(sends: Sends, num_ranks: int = 2) -> tuple[Finding, ...]:
    """Of blocks that load, send one lap after the other, and wait for what others sent."""

    def body(me: Track) -> Steps:
        yield Work("load", ADD_NS)
        for turn in range(NUM_SENDS):
            gap_ns, send_ns = sends(me.call, me.block, turn)
            if gap_ns:
                yield Idle(gap_ns)
            slot = NUM_SENDS * me.block + turn
            yield Put("push", (me.rank + 1) % num_ranks, slot, send_ns)
        for turn in range(NUM_SENDS):
            yield Await("pull", (me.rank - 1) % num_ranks, NUM_SENDS * me.block + turn)

    machine = Machine(num_ranks, seed=5, noise=0.005)
    for _ in range(NUM_CALLS):
        machine.call(grid(machine, SENDING_BLOCKS), body)
    return explain_trace(machine.trace()).findings


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_work_without_a_region_before_the_first_of_several_laps_is_no_slow_event(
    num_ranks: int,
) -> None:
    def sends(_call: int, block: int, turn: int) -> tuple[int, int]:
        return (6000 + 13 * block if turn == 0 else 0), SEND_NS + turn

    assert findings_of_sends(sends, num_ranks) == ()


def test_time_before_some_laps_is_no_event_of_their_region() -> None:
    def sends(call: int, block: int, turn: int) -> tuple[int, int]:
        is_late = turn > 0 and (turn + block + call) % 4 == 3
        return (3000 if is_late else 0), SEND_NS + turn

    (finding,) = findings_of_sends(sends)
    assert (finding.kind.name, finding.region) == ("idle_gap", "push")
    assert (finding.ranks, finding.blocks, finding.period) == ((), (), 0)


def test_events_are_not_compared_with_less_than_the_clock_can_tell() -> None:
    def sends(call: int, block: int, turn: int) -> tuple[int, int]:
        return 1, (3000 if (turn + block + call) % 4 == 3 else 0)

    (finding,) = findings_of_sends(sends)
    assert (finding.kind.name, finding.region) == ("slow_events", "push")
    # The clock of these traces has steps of 1 ns.
    assert finding.factor == pytest.approx(3000, rel=0.01)
    sent_ns = NUM_CALLS * 2 * SENDING_BLOCKS * NUM_SENDS // 4 * 3000
    assert finding.gain_ns < sent_ns
