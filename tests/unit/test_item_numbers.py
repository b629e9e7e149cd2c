"""Findings about items and their numbers, and kinds of findings with a planted case that no topology has."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec
import numpy as np
import pytest

from kprof import analysis
from kprof import report as reports
from kprof.analysis import DoubtKind, Finding, Summary
from kprof.analysis.findings import When
from kprof.analysis.findings.doubts import doubts_of
from kprof.analysis.wording import duration
from kprof.capture.directory import event_schema
from kprof.recording.launches.wanted import Wanted
from kprof.report.machine import finding_row
from kprof.report.page import to_html
from kprof.trace import Trace
from patterns import bodies
from patterns.machine import Await, Idle, Machine, Put, Steps, Track, Work
from recorded import analysed, recording
from simulation import Cause, Kind, Scenario, Sizes, simulate
from synthetic import TraceBuilder, with_rank_fields, with_ranks


def found_in(num_calls: int, *causes: Cause) -> analysis.Findings:
    scenario = Scenario(
        topology="all_to_all", sizes=Sizes(4, 4, 6), num_calls=num_calls, causes=causes, seed=5
    )
    return analysis.find(Summary.of(simulate(scenario).trace()))


def found_by(
    body: Callable[[Track], Steps],
    *,
    num_ranks: int,
    num_blocks: int,
    num_calls: int,
    noise: float = 0.05,
) -> analysis.Findings:
    """Of calls in which every block of every rank does the same."""
    machine = Machine(num_ranks, noise=noise)
    for _ in range(num_calls):
        machine.call(bodies.grid(machine, num_blocks), body)
    return analysis.find(Summary.of(machine.trace()))


@pytest.mark.slow
def test_more_items_are_named_with_their_numbers_even_where_they_cost_too_little() -> None:
    more = Cause(Kind.MORE_ITEMS, 1.0, (1.0,) * 3, ranks=(3,))
    (finding,) = found_in(3, more).findings
    # 4 blocks send 6 items each in 3 calls, and rank 3 twice as many.
    assert "send: 144 events there, 72 elsewhere (median)" in finding.details
    assert finding.factor == 2.0
    # One call says nothing about others.
    (finding,) = found_in(1, Cause(Kind.MORE_ITEMS, 1.0, (1.0,), ranks=(3,))).findings
    assert finding.when is When.ONCE
    late = Cause(Kind.DELAY, 1e6, (1.0,) * 3, ranks=(1,), blocks=(0,), region="send")
    found = found_in(3, more, late)
    assert [f.kind.name for f in found.findings] == ["slow"]
    assert found.rest.below.startswith(
        "Rank 3 has 2.0x as many items in send as others; balancing it "
    )
    assert found.rest.below.endswith("less than the 3 % of a finding")


def test_waiting_for_a_slow_rank_more_often_gives_it_no_more_items() -> None:
    """Every second wait is for rank 5, which works for longer; all work equally often."""
    random = np.random.default_rng(34)
    build = TraceBuilder('REGION(W, "work", compute)\nREGION(T, "wait", wait, peer:8)', 24)
    for place in range(24 * 4):
        rank, block, start = place // 4, place % 4, 0
        for i in range(12):
            work, wait = map(int, random.integers(200, 2000, 2))
            work, wait = (work + wait, 0) if rank == 5 else (work, wait)
            at = {"rank": rank, "block": block}
            build.span(**at, region="work", start_ns=start, duration_ns=work)
            if wait:
                peer = 5 if i % 2 else int(random.integers(24))
                build.span(**at, region="wait", start_ns=start + work, duration_ns=wait, peer=peer)
            start += work + wait
    found = analysis.find(Summary.of(build.trace()))
    assert "uneven_work" not in [finding.kind.name for finding in found.findings]
    assert "rank 5 " in found.headline.lower()


@pytest.mark.slow
def test_ranks_inside_a_plane_have_more_neighbors_and_not_more_items() -> None:
    body = bodies.halo(4, 2, 5, bodies.Plant(), 6)
    found = found_by(body, num_ranks=8, num_blocks=5, num_calls=8)
    assert [finding.sentence for finding in found.findings] == []
    assert "items" not in (found.rest.below or "")


def test_what_two_ranks_are_waited_for_is_an_item_of_neither() -> None:
    """A sweep over three by three ranks, from one corner after the other; all do as many cells."""

    def body(me: Track) -> Steps:
        y, x = divmod(me.rank, 3)
        for octant, (dx, dy) in enumerate([(1, 1), (-1, 1), (1, -1), (-1, -1)]):
            for plane in range(3):
                slot = (octant * 3 + plane) * 4 + me.block
                for there, rank in ((x - dx, me.rank - dx), (y - dy, me.rank - 3 * dy)):
                    if 0 <= there < 3:
                        yield Await("pull", rank, slot)
                yield Work("math", 1500)
                for there, rank in ((x + dx, me.rank + dx), (y + dy, me.rank + 3 * dy)):
                    if 0 <= there < 3:
                        yield Put("push", rank, slot, 160)

    found = found_by(body, num_ranks=9, num_blocks=4, num_calls=6)
    assert [finding.sentence for finding in found.findings] == []
    assert "items" not in (found.rest.below or "")


def test_inner_ranks_of_a_tree_merge_longer_lists_and_are_not_slow() -> None:
    def body(me: Track) -> Steps:
        yield Work("load", 4_000)
        step = 1
        while step < 16 and not me.rank & step:
            yield Await("pull", me.rank + step, me.block)
            yield Work("sum", 300 + 160 * step)
            step *= 2
        if step < 16:
            yield Put("push", me.rank - step, me.block, 300)

    found = found_by(body, num_ranks=16, num_blocks=4, num_calls=8, noise=0.03)
    assert [finding.sentence for finding in found.findings] == []


def test_one_of_the_servers_of_a_job_has_more_items() -> None:
    """Ranks 0-2 add up what ranks 3-6 push; rank 1 has twice as many parts to add up."""
    servers, workers = range(3), range(3, 7)

    def body(me: Track) -> Steps:
        others = workers if me.rank in servers else servers
        if me.rank in workers:
            yield Work("math", 3_000)
            for server in servers:
                yield Put("push", server, me.block, 150)
        for other in others:
            yield Await("pull" if me.rank in servers else "up-wait", other, me.block)
        for _ in range((8 if me.rank == 1 else 4) if me.rank in servers else 0):
            yield Work("sum", 700)
        for worker in workers if me.rank in servers else ():
            yield Put("up", worker, me.block, 110)

    found = found_by(body, num_ranks=7, num_blocks=4, num_calls=8).findings
    named = [(finding.kind.name, finding.ranks, finding.region) for finding in found]
    assert named == [("uneven_work", (1,), "sum")]


def test_the_first_of_three_stages_gets_from_nobody_in_the_first_round() -> None:
    """Two chunks of layers on each of three ranks, one after the other: rank 0 sends no gradients of its
    first chunk, and waits before each item."""

    def body(me: Track) -> Steps:
        for place in (me.rank + 3, me.rank):
            for item in range(6):
                slot = 8 * (6 * place + item) + me.block
                if place < 5:
                    yield Await("pull", (place + 1) % 3, slot)
                if me.rank == 0:
                    yield Idle(600)
                yield Work("math", 1_800)
                if place > 0:
                    yield Put("push", (place - 1) % 3, slot - 48, 120)

    found = found_by(body, num_ranks=3, num_blocks=3, num_calls=7).findings
    assert [(finding.kind.name, finding.ranks) for finding in found] == [("idle_gap", (0,))]


def test_calls_of_five_sizes_give_no_rank_more_items_but_the_one_that_has() -> None:
    """As many steps as a draft had tokens; rank 2 has twice as many."""
    sizes = [1, 2, 3, 3, 1, 4, 4, 1, 5, 2, 1, 5, 4, 5, 1, 3, 3, 2, 4, 3, 2, 5, 4, 3]

    def body(me: Track) -> Steps:
        for _ in range(sizes[me.call] * (2 if me.rank == 2 else 1)):
            yield Work("load", 900)
        for i in (1, 2, 3):
            yield Put("push", (me.rank + i) % 4, me.block, 150)
        for i in (1, 2, 3):
            yield Await("pull", (me.rank - i) % 4, me.block)

    found = found_by(body, num_ranks=4, num_blocks=4, num_calls=len(sizes)).findings
    assert [(finding.kind.name, finding.ranks) for finding in found] == [("uneven_work", (2,))]


@pytest.mark.slow
def test_of_calls_of_five_sizes_a_third_may_be_of_the_larger_ones() -> None:
    """Every call does five steps, and keeps so many of them."""
    sizes = [2, 2, 2, 2, 2, 2, 1, 5, 2, 3, 1, 4, 2, 5, 1, 3, 2, 1, 3]

    def body(me: Track) -> Steps:
        for _ in range(5):
            yield Work("math", 800)
        for i in (1, 2, 3, 4):
            yield Put("push", (me.rank + i) % 5, me.block, 150)
        for i in (1, 2, 3, 4):
            yield Await("pull", (me.rank - i) % 5, me.block)
        for _ in range(sizes[me.call]):
            yield Work("load", 500)

    found = found_by(body, num_ranks=5, num_blocks=6, num_calls=len(sizes)).findings
    assert [finding.sentence for finding in found] == []


def test_a_block_that_takes_the_longest_tile_from_a_counter_has_more_items() -> None:
    """Every block takes one tile of four steps, one in five takes a second one, and in every call
    another block takes one of 20."""
    random = np.random.default_rng(3)
    order = [random.permutation(60).tolist() for _ in range(8)]

    def steps(rank: int, block: int, call: int) -> Iterator[tuple[str, int]]:
        tiles = 2 if block in order[call][:12] else 1
        for _ in range(4 * tiles + (16 if block == order[call][-1] else 0)):
            yield "step", int(random.integers(480, 500))

    build = TraceBuilder('REGION(STEP, "step", compute)', 1).calls(8, 60, steps)
    (finding,) = analysis.find(Summary.of(build.trace())).findings
    assert (finding.kind.name, finding.when) == ("uneven_work", When.MOVING)
    # In the call in which it has them, not of all.
    assert finding.factor > 4
    assert finding.share > 0.5


@pytest.mark.slow
def test_a_finding_is_about_the_calls_that_it_makes_longer() -> None:
    findings = analysed("all_to_all-balanced-4xH200-skew3").found.findings
    assert findings[0].sentence.startswith("combine/reduce runs on only 11-32 of 132 blocks; ")
    late = next(f for f in findings if f.kind.name == "late_start")
    assert late.calls == (2, 3)
    assert late.costly_calls == (3,)
    assert late.sentence.endswith(" would save up to 5 %, all in call 3")
    # It gains more than the one before it, which hides it.
    assert any(line.startswith("Fix the findings above first") for line in late.details)


def test_blocks_that_were_left_out_are_not_said_to_be_idle() -> None:
    whole = recording("all_to_all-token_flags-4xH200-skew3-264blocks")
    infos = [msgspec.structs.replace(i, recorded_part="--blocks 0-40") for i in whole.ranks]
    manifest = msgspec.structs.replace(whole.manifest, ranks=tuple(infos))
    columns = ", ".join(event_schema().names)
    recorded = Trace.from_table(
        manifest, whole.sql(f"SELECT {columns} FROM raw_events WHERE block <= 40 AND launch < 5")
    )
    assert Wanted(calls=3, blocks=(0, 1)).of_launches().describe() == "--blocks 0-1"
    for trace, past in ((recorded, "recorded"), (whole.select(blocks=[*range(41)]), "selected")):
        doubts = doubts_of(Summary.of(trace))
        doubt = next(d for d in doubts if d.kind is DoubtKind.PART_OF_LAUNCHES)
        assert doubt.sentence.startswith(f"Only part of each launch was {past} (--blocks")
        assert doubt.takes_out == {"uneven_blocks"}


REGIONS = """
REGION(R_TILE, "tile", compute)
"""


def on_one_cpu_rank() -> Trace:
    """64 blocks with 2 tiles each, but block 17, which has 79."""
    build = TraceBuilder(REGIONS, num_ranks=4)
    for block in range(64):
        for i in range(79 if block == 17 else 2):
            build.span(0, "tile", 1000 * i, 900, block=block)
    trace = build.trace()
    return with_ranks(trace, with_rank_fields(trace, target="cpu", num_cores=8).ranks[:1])


@pytest.mark.slow
def test_blocks_of_one_rank_on_a_cpu_are_judged_by_counts_and_compared_with_no_other_rank() -> None:
    report = reports.build(on_one_cpu_rank())
    (finding,) = report.findings
    assert finding.sentence == "Block 17 of rank 0 has 39.5x as much to do as the others in tile"
    assert finding.details[0].startswith("Events in tile: block 17: 79, block 0: 2, ")
    assert not finding.is_timed
    assert report.facts[0] == "1 of 4 ranks"
    assert not report.are_times_known
    page = to_html(report)
    assert "vs. median rank" not in page
    assert "block 17" in page


def test_where_findings_explain_little_the_parts_of_a_call_stand_below_them() -> None:
    report = reports.build_from(analysed("all_to_all-pipelined-4xH200-skew3-264blocks").summary)
    page = to_html(report)
    screen = page[page.index('id="verdict"') : page.index("<details")]
    assert screen.count("of a typical call is dispatch/send") == 1
    # What no finding explains is not what is in no region.
    assert "unexplained: in no region" not in screen


@pytest.mark.slow
def test_the_matrix_says_which_waits_are_not_in_it() -> None:
    report = reports.build_from(analysed("all_reduce-oneshot_lock-4xH200").summary)
    locked = report.tables["waits_by_region"].set_index("region").loc["lock/acquire", "wait_ns"]
    said = f"Excludes {duration(locked)} of waits without a target rank, such as locks"
    assert report.waits_for_nobody == said
    assert said in to_html(report)


GEMM_AND_REDUCE = 'REGION(G, "gemm", compute)\nREGION(R, "reduce", compute)'


@pytest.mark.slow
@pytest.mark.parametrize("is_slow", [False, True])
def test_blocks_that_have_a_region_to_themselves_are_no_fault(is_slow: bool) -> None:
    """Four of 16 blocks reduce, with as many items each: so the kernel was written. What is a fault
    is named alone where it costs more."""

    def steps(rank: int, block: int, call: int) -> Iterator[tuple[str, int]]:
        yield "gemm", 40_000 if is_slow and block == 9 else 20_000 + 31 * ((call + 3 * block) % 7)
        for _ in range(2 if block < 4 else 0):
            yield "reduce", 4_000

    build = TraceBuilder(GEMM_AND_REDUCE, 1).calls(8, 16, steps)
    report = reports.build_from(Summary.of(build.trace()))
    (finding,) = report.findings
    named = (finding.kind.name, finding.is_by_design)
    assert named == (("slow", False) if is_slow else ("uneven_blocks", True))
    assert finding.blocks == ((9,) if is_slow else (0, 1, 2, 3))
    assert bool(reports.check_bars(report, ["findings>0"])) == is_slow
    assert finding_row(finding)["is_by_design"] != is_slow


@pytest.mark.parametrize("item_ns", [400, 2_000])
def test_the_ends_of_a_chain_of_blocks_are_worth_no_sentence(item_ns: int) -> None:
    """Two of 24 blocks reduce for all of them, which takes 7 % of a call, or 28 %."""

    def steps(rank: int, block: int, call: int) -> Iterator[tuple[str, int]]:
        for _ in range(4 if block < 2 else 0):
            yield "reduce", item_ns
        yield "gemm", 20_000 + 31 * ((call + 3 * block) % 7)

    build = TraceBuilder(GEMM_AND_REDUCE, 1).calls(8, 24, steps)
    found = analysis.find(Summary.of(build.trace())).findings
    assert [finding.kind.name for finding in found] == ["uneven_blocks"] * (item_ns == 2_000)


def test_blocks_with_another_role_leave_the_others_evenly_busy() -> None:
    """Six of eight blocks take tiles from a counter, seven or eight each; two add up."""

    def steps(rank: int, block: int, call: int) -> Iterator[tuple[str, int]]:
        region, num_items = ("gemm", 7 + (block + call) % 2) if block < 6 else ("reduce", 6)
        for _ in range(num_items):
            yield region, 2_500

    build = TraceBuilder(GEMM_AND_REDUCE, 1).calls(8, 8, steps)
    found = analysis.find(Summary.of(build.trace())).findings
    assert [finding.sentence for finding in found] == []


def test_more_items_of_all_ranks_are_compared_with_other_calls() -> None:
    def steps(rank: int, block: int, call: int) -> list[tuple[str, int]]:
        return [("gemm", 2_000)] * (8 if call % 5 == 4 else 2)

    build = TraceBuilder('REGION(G, "gemm", compute)', 2).calls(15, 4, steps, num_ranks=2)
    (finding,) = analysis.find(Summary.of(build.trace())).findings
    assert (
        finding.fact == "All ranks have 4.0x as many items in gemm in every 5th call as in others"
    )


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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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
