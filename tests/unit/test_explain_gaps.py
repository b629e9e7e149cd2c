"""Time between events is compared only with time between such events, and is no event itself."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kprof.analysis.findings import Finding, explain_trace
from synthetic import TraceBuilder

REGIONS = """
REGION(R_ADD,  "add",  compute, row:24)
REGION(R_SEND, "send", send,    peer:8, slot:24)
REGION(R_WAIT, "wait", wait,    peer:8, slot:24)
FLOW(R_SEND, R_WAIT)
"""
NUM_CALLS, NUM_BLOCKS, NUM_SENDS = 6, 8, 8
ADD_NS, SEND_NS = 10_000, 50
# Of a block in a call: the time without a region before every send, and what every send takes.
Sends = Callable[[int, int, int], tuple[int, int]]


def findings_of(sends: Sends, num_ranks: int = 2) -> tuple[Finding, ...]:
    """Of blocks that add, send one lap after the other, and wait for what others sent."""
    build = TraceBuilder(REGIONS, num_ranks)
    for call in range(NUM_CALLS):
        build.launch(call, "kernel", NUM_BLOCKS)
        for rank in range(num_ranks):
            for block in range(NUM_BLOCKS):
                _add_block(build, call, rank, block, sends)
    return explain_trace(build.trace()).findings


def _add_block(build: TraceBuilder, call: int, rank: int, block: int, sends: Sends) -> None:
    # Everybody takes about as long, but no two of them the same time.
    start_ns = 100_000 * call + 7 * block + 3 * rank
    place = {"rank": rank, "block": block, "launch": call}
    add_ns = ADD_NS + (37 * block + 11 * rank + 5 * call) % 100
    build.span(**place, region="add", start_ns=start_ns, duration_ns=add_ns, row=block)
    end_ns = start_ns + add_ns
    for turn in range(NUM_SENDS):
        gap_ns, send_ns = sends(call, block, turn)
        sent = {"peer": (rank + 1) % build.num_ranks, "slot": NUM_SENDS * block + turn}
        start_ns, end_ns = end_ns + gap_ns, end_ns + gap_ns + send_ns
        build.span(**place, region="send", start_ns=start_ns, duration_ns=send_ns, **sent)
    for turn in range(NUM_SENDS):
        came = {"peer": (rank - 1) % build.num_ranks, "slot": NUM_SENDS * block + turn}
        build.span(**place, region="wait", start_ns=end_ns, duration_ns=200, **came)
        end_ns += 200


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_work_without_a_region_before_the_first_of_several_laps_is_no_slow_event(
    num_ranks: int,
) -> None:
    def sends(_call: int, block: int, turn: int) -> tuple[int, int]:
        return (6000 + 13 * block if turn == 0 else 0), SEND_NS + turn

    assert findings_of(sends, num_ranks) == ()


def test_time_before_some_laps_is_no_event_of_their_region() -> None:
    def sends(call: int, block: int, turn: int) -> tuple[int, int]:
        is_late = turn > 0 and (turn + block + call) % 4 == 3
        return (3000 if is_late else 0), SEND_NS + turn

    (finding,) = findings_of(sends)
    assert (finding.kind.name, finding.region) == ("idle_gap", "send")
    assert (finding.ranks, finding.blocks, finding.period) == ((), (), 0)


def test_events_are_not_compared_with_less_than_the_clock_can_tell() -> None:
    def sends(call: int, block: int, turn: int) -> tuple[int, int]:
        return 1, (3000 if (turn + block + call) % 4 == 3 else 0)

    (finding,) = findings_of(sends)
    assert (finding.kind.name, finding.region) == ("slow_events", "send")
    # The clock of these traces has steps of 1 ns.
    assert finding.factor == pytest.approx(3000, rel=0.01)
    sent_ns = NUM_CALLS * 2 * NUM_BLOCKS * NUM_SENDS // 4 * 3000
    assert finding.gain_ns < sent_ns
