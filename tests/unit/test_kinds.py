"""Kinds of findings, each with a planted case that no simulated topology has."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from kprof import analysis
from kprof.analysis import Finding, Summary
from synthetic import TraceBuilder, with_ranks


def findings_of(build: TraceBuilder) -> tuple[Finding, ...]:
    return analysis.find(Summary.of(build.trace())).findings


def cold_start(
    slow_turns: tuple[int, ...], num_blocks: int = 8, num_turns: int = 12, every: int = 1
) -> TraceBuilder:
    """Calls, of which in one of `every` some of the events of every block take 9 us, the others 1."""
    build = TraceBuilder('REGION(R_ADD, "add", compute)', 2)
    for launch in range(4 * every):
        build.launch(launch, "kernel")
        for rank in range(2):
            for block in range(num_blocks):
                now_ns = 1_000_000 * launch
                for turn in range(num_turns):
                    is_slow = turn in slow_turns and launch % every == 0
                    length_ns = 9_000 if is_slow else 1_000
                    build.span(rank, "add", now_ns, length_ns, block=block, launch=launch)
                    now_ns += length_ns
    return build


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
    build = TraceBuilder('REGION(R_ADD, "add", compute)', 1)
    for launch in range(num_calls):
        build.launch(launch, "kernel", 40)
        for block in range(40):
            now_ns = 1_000_000 * launch
            for turn in range(8):
                is_long = (block, turn) in ((7 * launch % 40, 3), ((11 * launch + 5) % 40, 6))
                length_ns = (4_000 if is_long else 1_000) + (13 * block + 7 * turn + launch) % 31
                build.span(0, "add", now_ns, length_ns, block=block, launch=launch)
                now_ns += length_ns
    found = [finding for finding in findings_of(build) if finding.kind.name == "slow_events"]
    assert [finding.region for finding in found] == ["add"] * (num_calls == 12)


@pytest.mark.parametrize(("num_turns", "num_found"), [(2, 0), (4, 0), (5, 1)])
def test_four_later_events_tell_a_cold_start(num_turns: int, num_found: int) -> None:
    found = findings_of(cold_start((0,), num_turns=num_turns))
    assert [finding.kind.name for finding in found] == ["cold_start"] * num_found


@pytest.mark.parametrize("slow_turns", [(5,), (0, 6)])
def test_slow_events_elsewhere_are_no_cold_start(slow_turns: tuple[int, ...]) -> None:
    names = [finding.kind.name for finding in findings_of(cold_start(slow_turns))]
    assert names == ["slow_events"]


@pytest.mark.parametrize("num_slow", [3, 13])
def test_most_blocks_are_not_slower_than_the_few_at_the_edges(num_slow: int) -> None:
    """Some of 20 blocks store 2.4 us, the others 1.2; all multiply for 6 us."""
    build = TraceBuilder('REGION(R_MUL, "multiply", compute)\nREGION(R_OUT, "store", compute)', 1)
    for launch in range(10):
        build.launch(launch, "kernel", 20)
        for block in range(20):
            at = {"rank": 0, "block": block, "launch": launch}
            start, jitter = 1_000_000 * launch, (13 * block + 7 * launch) % 31
            length_ns = (2_400 if 7 * block % 20 < num_slow else 1_200) + jitter
            build.span(region="multiply", start_ns=start, duration_ns=6_000, **at)
            build.span(region="store", start_ns=start + 6_000, duration_ns=length_ns, **at)
    found = findings_of(build)
    assert [len(finding.blocks) for finding in found] == [3] * (num_slow == 3)


@pytest.mark.parametrize("is_across", [True, False])
def test_reads_from_another_host_are_slower_and_no_slow_events(is_across: bool) -> None:
    """Each of eight ranks on two hosts reads from all others. It takes 2.2 times as long from the other
    host, or as often from anywhere."""
    build = TraceBuilder('REGION(R_GET, "get", recv, peer:8)\nREGION(R_ADD, "add", compute)', 8)
    for launch in range(6):
        build.launch(launch, "kernel", 3)
        for rank, block in np.ndindex(8, 3):
            now_ns = 1_000_000 * launch
            for turn in range(14):
                peer = (rank + 1 + (turn + block) % 7) % 8
                is_far = rank // 4 != peer // 4 if is_across else (3 * rank + turn + block) % 7 < 4
                length_ns = (2_200 if is_far else 1_000) + (13 * block + 7 * turn + launch) % 31
                at = {"block": block, "launch": launch}
                build.span(rank, "get", now_ns, length_ns, peer=peer, **at)
                build.span(rank, "add", now_ns + length_ns, 300, **at)
                now_ns += length_ns + 300
    trace = build.trace()
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
