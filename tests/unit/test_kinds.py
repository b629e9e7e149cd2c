"""Kinds of findings, each with a planted case that no simulated topology has."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest

from kprof import analysis
from kprof.analysis import Finding, Summary
from synthetic import TraceBuilder, with_ranks


def findings_of(build: TraceBuilder) -> tuple[Finding, ...]:
    return analysis.find(Summary.of(build.trace())).findings


def cold_start(slow_turns: tuple[int, ...], num_turns: int = 12, every: int = 1) -> TraceBuilder:
    """Calls, of which in one of `every` some of the events of every block take 9 us, the others 1."""

    def steps(rank: int, block: int, call: int) -> Iterator[tuple[str, int]]:
        for turn in range(num_turns):
            yield "add", 9_000 if turn in slow_turns and call % every == 0 else 1_000

    return TraceBuilder('REGION(R_ADD, "add", compute)', 2).calls(4 * every, 8, steps, num_ranks=2)


def test_a_cold_start_is_the_first_event_of_every_track() -> None:
    (finding,) = findings_of(cold_start((0,)))
    assert (finding.kind.name, finding.region, finding.ranks) == ("cold_start", "add", ())
    # Each call takes 20 us instead of 12.
    assert finding.share == pytest.approx(8 / 20, rel=0.02)
    assert finding.factor == pytest.approx(9.0)
    assert finding.sentence == (
        "The first add on every track is 9.0x slower than later ones; fixing it would save up to 40 %"
    )
    assert finding.where_ns is not None


def test_a_cold_start_may_come_in_every_fourth_call() -> None:
    (finding,) = findings_of(cold_start((0,), every=4))
    assert (finding.kind.name, finding.position, finding.calls) == (
        "cold_start",
        "first",
        (0, 4, 8, 12),
    )
    assert finding.fact == (
        "The first add on every track is 9.0x slower than later ones in every 4th call"
    )


@pytest.mark.parametrize("num_calls", [4, 12])
def test_few_long_events_in_every_call_are_found(num_calls: int) -> None:
    """Two of 320 events of a call, elsewhere each time, take 4 us in place of 1, and the call 11 in place
    of 8. In few calls that is chance."""

    def steps(rank: int, block: int, call: int) -> Iterator[tuple[str, int]]:
        for turn in range(8):
            is_long = (block, turn) in ((7 * call % 40, 3), ((11 * call + 5) % 40, 6))
            yield "add", (4_000 if is_long else 1_000) + (13 * block + 7 * turn + call) % 31

    build = TraceBuilder('REGION(R_ADD, "add", compute)', 1).calls(num_calls, 40, steps)
    found = [finding for finding in findings_of(build) if finding.kind.name == "slow_events"]
    assert [finding.region for finding in found] == ["add"] * (num_calls == 12)


@pytest.mark.parametrize(
    ("slow_turns", "num_turns", "named"),
    [
        # Four later events tell a cold start.
        ((0,), 2, []),
        ((0,), 4, []),
        ((0,), 5, ["cold_start"]),
        ((5,), 12, ["slow_events"]),
        ((0, 6), 12, ["slow_events"]),
    ],
)
def test_what_is_a_cold_start(
    slow_turns: tuple[int, ...], num_turns: int, named: list[str]
) -> None:
    found = findings_of(cold_start(slow_turns, num_turns))
    assert [finding.kind.name for finding in found] == named


@pytest.mark.parametrize("num_slow", [3, 13])
def test_most_blocks_are_not_slower_than_the_few_at_the_edges(num_slow: int) -> None:
    """Some of 20 blocks store 2.4 us, the others 1.2; all multiply for 6 us."""

    def steps(rank: int, block: int, call: int) -> Iterator[tuple[str, int]]:
        yield "multiply", 6_000
        is_slow = 7 * block % 20 < num_slow
        yield "store", (2_400 if is_slow else 1_200) + (13 * block + 7 * call) % 31

    regions = 'REGION(R_MUL, "multiply", compute)\nREGION(R_OUT, "store", compute)'
    found = findings_of(TraceBuilder(regions, 1).calls(10, 20, steps))
    assert [len(finding.blocks) for finding in found] == [3] * (num_slow == 3)


@pytest.mark.parametrize("is_across", [True, False])
def test_reads_from_another_host_are_slower_and_no_slow_events(is_across: bool) -> None:
    """Each of eight ranks on two hosts reads from all others. It takes 2.2 times as long from the other
    host, or as often from anywhere."""

    def steps(rank: int, block: int, call: int) -> Iterator[tuple[str, int] | tuple[str, int, int]]:
        for turn in range(14):
            peer = (rank + 1 + (turn + block) % 7) % 8
            is_far = rank // 4 != peer // 4 if is_across else (3 * rank + turn + block) % 7 < 4
            yield "get", (2_200 if is_far else 1_000) + (13 * block + 7 * turn + call) % 31, peer
            yield "add", 300

    regions = 'REGION(R_GET, "get", recv, peer:8)\nREGION(R_ADD, "add", compute)'
    trace = TraceBuilder(regions, 8).calls(6, 3, steps, num_ranks=8).trace()
    on_hosts = [msgspec.structs.replace(info, host=f"node{info.rank // 4}") for info in trace.ranks]
    found = analysis.find(Summary.of(with_ranks(trace, on_hosts))).findings
    assert [finding.kind.name for finding in found] == ["slow_events"] * (not is_across)


@pytest.mark.parametrize("is_lock", [True, False])
def test_a_lock_may_be_declared_as_a_wait(is_lock: bool) -> None:
    """Block 5 of 12 holds a lock for 2,200 ns, the others for 200; or all wait for something that nobody
    recorded, and then block 5 works as long."""
    build = TraceBuilder(
        'REGION(R_ADD, "add", compute)\nREGION(R_TURN, "turn", wait)\nREGION(R_PUT, "put", compute)',
        1,
    )
    for launch in range(8):
        build.launch(launch, "kernel", 12)
        free_ns = 0
        for turn in range(12):
            block = (turn + 5 * launch) % 12
            begin_ns, came_ns = 1_000_000 * launch, 1_000_000 * launch + 1_000 + 37 * turn
            got_ns = max(came_ns, free_ns) + 25 if is_lock else came_ns + 500 + 311 * turn % 1_777
            free_ns = got_ns + (2_200 if block == 5 else 200) + (7 * turn + launch) % 11
            at = {"rank": 0, "block": block, "launch": launch}
            build.span(region="add", start_ns=begin_ns, duration_ns=came_ns - begin_ns, **at)
            build.span(region="turn", start_ns=came_ns, duration_ns=got_ns - came_ns, **at)
            build.span(region="put", start_ns=got_ns, duration_ns=free_ns - got_ns, **at)
    found = findings_of(build)
    if is_lock:
        (finding,) = found
        named = (finding.kind.name, finding.blocks, finding.region)
        assert named == ("slow", (5,), "put")
        # Also where block 5 is not the last one.
        assert len(finding.costly_calls) == 8
    else:
        assert all(len(finding.costly_calls) < 8 for finding in found)
