"""Replays of whole calls as arrays: exact without an edit, and with one what the run without the cause is."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from kprof.analysis.findings import explain_trace
from kprof.analysis.replay.graph import build_graph
from kprof.analysis.replay.replay import Change, Edit, Replay
from kprof.analysis.replay.spans import load_spans
from kprof.trace import Trace
from simulation import HELD_BACK, TOPOLOGIES, Cause, Kind, Scenario, Sizes, draw_scenario, simulate
from synthetic import TraceBuilder

REGIONS = """
REGION(WORK, "work", compute)
REGION(SEND, "send", send, peer:8, slot:24)
REGION(WAIT, "wait", wait, peer:8, slot:24)
REGION(LOCK, "lock", sync)
FLOW(SEND, WAIT)
"""

LOCK_REGIONS = """
REGION(R_LOCK, "lock", sync)
REGION(R_ADD, "add", compute)
"""


def replay_of(trace: Trace) -> Replay:
    ordinals = trace.frame("SELECT DISTINCT ordinal FROM events")["ordinal"].tolist()
    return Replay(build_graph(load_spans(trace, ordinals), 200.0))


def gains_of(replay: Replay, edits: list[Edit]) -> np.ndarray:
    """What every call gets shorter: edits x calls, in ns."""
    gains: np.ndarray = replay.graph.call_end - replay.call_ends(edits)
    return gains


def assert_exact(replay: Replay) -> None:
    assert (replay.span_ends(Edit()) == replay.graph.spans.end).all()
    assert (gains_of(replay, [Edit(), Edit()]) == 0).all()


@pytest.mark.parametrize("seed", range(12))
def test_the_unedited_replay_hits_every_measured_end(seed: int) -> None:
    assert_exact(replay_of(simulate(draw_scenario(np.random.default_rng([2, seed]))).trace()))


@pytest.mark.slow
@pytest.mark.parametrize("topology", [*TOPOLOGIES, *HELD_BACK])
def test_undoing_a_slow_block_gives_the_run_without_it(topology: str) -> None:
    slow = Cause(Kind.SLOW, 3.0, (1.0, 1.0, 0.0), ranks=(1,), blocks=(2,))
    scenario = Scenario(topology=topology, sizes=Sizes(3, 4, 3), num_calls=3, causes=(slow,))
    run, without = simulate(scenario), simulate(scenario, [])
    replay = replay_of(run.trace())
    spans = replay.graph.spans
    chosen = (spans.rank == 1) & (spans.block == 2) & (spans.call < 2) & ~replay.graph.is_wait
    at = np.flatnonzero(chosen)
    edit = Edit(own=Change(at, replay.graph.own_ns[at] * 3 / 4))
    predicted = gains_of(replay, [edit])[0]
    gained = np.array(run.lengths_ns) - without.lengths_ns
    assert gained[0] > 0
    assert predicted == pytest.approx(gained, abs=0.02 * run.lengths_ns[0])


def test_a_slow_look_at_data_that_came_long_before_is_no_long_transfer() -> None:
    """Rank 0 works for 100 ms. What rank 1 sent after 10 ms has been there for long when it looks."""
    build = TraceBuilder(REGIONS, num_ranks=2)
    ms = 1_000_000
    for call in range(4):
        begin = 200 * ms * call
        build.launch(call + 1, "exchange", num_blocks=1)
        for rank, num_works in ((0, 10), (1, 1)):
            build_span = partial(build.span, rank=rank, launch=call + 1, block=0)
            for work in range(num_works):
                build_span(region="work", start_ns=begin + 10 * ms * work, duration_ns=10 * ms)
            sent = begin + 10 * ms * num_works + 100
            build_span(region="send", start_ns=sent - 100, duration_ns=100, peer=1 - rank, slot=0)
            look = 1_000 if call == 2 else 80
            waited = begin + 100 * ms + 300 - sent if rank == 1 else look
            build_span(region="wait", start_ns=sent, duration_ns=waited, peer=1 - rank, slot=0)
    replay = replay_of(build.trace())
    spans = replay.graph.spans
    at = np.flatnonzero((spans.rank == 0) & (spans.region == spans.region_names.index("work")))
    edit = Edit(own=Change(at, np.full(len(at), 5.0 * ms)))
    assert gains_of(replay, [edit])[0] == pytest.approx([50 * ms] * 4, abs=2_000)


def test_where_every_wait_is_for_data_on_its_way_the_shortest_is_no_look() -> None:
    """Data comes 800 ns after its send. The later waits begin 300 ns after it, so they take 500 ns."""
    build = TraceBuilder(REGIONS, num_ranks=2)
    build.launch(1, "stages", num_blocks=1)
    first, second = (partial(build.span, rank=rank, launch=1, block=0) for rank in (0, 1))
    free = 0
    for part in range(4):
        sent = 1_500 * (part + 1)
        came = sent + 800
        first(region="work", start_ns=sent - 1_500, duration_ns=1_400)
        first(region="send", start_ns=sent - 100, duration_ns=100, peer=1, slot=part)
        second(region="wait", start_ns=free, duration_ns=came - free, peer=0, slot=part)
        second(region="work", start_ns=came, duration_ns=1_000)
        free = came + 1_000
    replay = replay_of(build.trace())
    spans = replay.graph.spans
    at = np.flatnonzero((spans.rank == 0) & (spans.region == spans.region_names.index("work")))
    edit = Edit(own=Change(at, np.full(len(at), 400.0)))
    assert gains_of(replay, [edit])[0].tolist() == [1_600]


def test_a_late_launch_is_undone_by_its_gap() -> None:
    late = Cause(Kind.LATE_START, 30_000.0, (1.0, 0.0), ranks=(2,))
    scenario = Scenario(topology="staged", sizes=Sizes(3, 2, 2), num_calls=2, causes=(late,))
    run, without = simulate(scenario), simulate(scenario, [])
    replay = replay_of(run.trace())
    graph = replay.graph
    of_rank = (graph.launch_rank == 2) & (graph.launch_before < 0) & (graph.launch_call == 0)
    at = np.flatnonzero(of_rank)
    predicted = gains_of(replay, [Edit(launch_gap=Change(at, np.full(len(at), 30_000.0)))])[0]
    gained = np.array(run.lengths_ns) - without.lengths_ns
    assert predicted == pytest.approx(gained, abs=300)


def _ends_without_cause(scenario: Scenario) -> tuple[Replay, np.ndarray, np.ndarray]:
    """The replay of a run, ends of its spans without what a cause adds to them, and their truth."""
    run, without = simulate(scenario), simulate(scenario, [])
    replay, other = replay_of(run.trace()), replay_of(without.trace())
    saved = replay.graph.own_ns - other.graph.own_ns
    work = np.flatnonzero(~replay.graph.is_wait & (saved > 0))
    gaps = np.flatnonzero(other.graph.spans.previous >= 0)
    gap = (replay.graph.gap_ns - other.graph.gap_ns)[gaps]
    edit = Edit(own=Change(work, saved[work]), gap=Change(gaps, gap))
    assert_exact(replay)
    return replay, replay.span_ends(edit), other.graph.spans.end


@pytest.mark.slow
@pytest.mark.parametrize("topology", ["ring", "halo", "butterfly"])
def test_any_free_place_is_taken_by_the_next_block(topology: str) -> None:
    """Without its cause a slow block ends before others do, and the next block takes its place."""
    slow = Cause(Kind.SLOW, 4.0, (1.0,), ranks=(1,), blocks=(1,))
    sizes = Sizes(4, 12, 3)
    scenario = Scenario(
        topology=topology, sizes=sizes, num_calls=1, causes=(slow,), room=4, noise=0.1, seed=5
    )
    replay, ends, truth = _ends_without_cause(scenario)
    places = replay.graph.spans.processor
    other = replay_of(simulate(scenario, []).trace()).graph.spans.processor
    assert (places != other).any(), "no block took another place: the test says nothing"
    # Shortest gaps and looks are estimates; a wrong place is off by the work of a block.
    assert np.abs(ends - truth).max() < 500


def test_a_lock_goes_to_who_comes_first() -> None:
    """The late block comes last for the lock; without its delay it is among the first."""
    late = Cause(Kind.DELAY, 40_000.0, (1.0,), ranks=(0,), blocks=(0,), region="work")
    hold = Cause(Kind.SLOW, 20.0, (1.0,), ranks=(0,), region="add")
    scenario = Scenario(
        topology="locks", sizes=Sizes(2, 8, 2), num_calls=1, causes=(hold, late), noise=0.1
    )
    run, without = simulate(scenario), simulate(scenario, [0])
    replay = replay_of(run.trace())
    assert_exact(replay)
    graph, spans = replay.graph, replay.graph.spans
    of_block = (spans.rank == 0) & (spans.block == 0) & ~graph.is_wait
    delayed = np.flatnonzero(of_block)[[int(np.argmax(graph.own_ns[of_block]))]]
    gain = gains_of(replay, [Edit(own=Change(delayed, np.full(1, 40_000.0)))])[0, 0]
    assert gain == pytest.approx(run.lengths_ns[0] - without.lengths_ns[0], abs=100)
    holders = graph.queue >= 0
    is_first = np.flatnonzero(holders & (spans.rank == 0) & (spans.block == 0))
    assert graph.releaser[is_first[0]] >= 0, "the late block is not the last one to come"


def test_who_comes_to_a_free_lock_has_not_waited_for_it() -> None:
    """A look that took long by chance is no wait for a lock that was let go long before."""
    build = TraceBuilder(LOCK_REGIONS, 1)
    for block, (start, look) in enumerate([(0, 10), (5000, 60), (9000, 10)]):
        build.span(0, "lock", start, look, block=block)
        build.span(0, "add", start + look, 100, block=block)
    replay = replay_of(build.trace())
    assert_exact(replay)
    spans = replay.graph.spans
    first = np.flatnonzero((spans.block == 1) & spans.is_of("sync"))
    ends = replay.span_ends(Edit(gap=Change(first, np.full(1, 4000.0))))
    assert ends[first] == 1060


def test_the_recorded_order_stays_where_a_lock_is_not_handed_to_who_came_first() -> None:
    build = TraceBuilder(LOCK_REGIONS, 1)
    for block, (start, got) in enumerate([(0, 10), (100, 2120), (200, 1110)]):
        build.span(0, "lock", start, got - start, block=block)
        build.span(0, "add", got, 1000, block=block)
    replay = replay_of(build.trace())
    assert_exact(replay)
    assert (replay.graph.queue < 0).all()


def test_data_that_was_there_before_its_wait_does_not_come_later_than_that() -> None:
    """The second wait found its data there: with the first one gone, it may have to wait for the second send."""
    build = TraceBuilder(REGIONS, 2)
    build.span(0, "send", 0, 100, peer=1, slot=0)
    build.span(0, "send", 100, 400, peer=1, slot=1)
    build.span(1, "wait", 0, 1100, peer=0, slot=0)
    build.span(1, "wait", 1100, 20, peer=0, slot=1)
    replay = replay_of(build.trace())
    assert_exact(replay)
    first = np.flatnonzero(replay.graph.spans.slot == 0)
    ends = replay.span_ends(Edit(travel=Change(first, np.full(len(first), 1000.0))))
    # The data of the second one takes 1000 ns, as seen on this link, or what was left of the time
    # it had: 620.
    assert ends.max() == 1120


def test_a_circle_from_clocks_that_are_off_is_cut() -> None:
    """Each wait ends before the send that releases it, by the clocks: the earlier end cannot depend on the later."""
    build = TraceBuilder(REGIONS, 2)
    for rank in (0, 1):
        build.span(rank, "wait", 0, 100, peer=1 - rank, slot=rank)
        build.span(rank, "send", 90, 200, peer=1 - rank, slot=1 - rank)
    assert_exact(replay_of(build.trace()))


def test_dependencies_that_make_a_circle_keep_their_lengths() -> None:
    """Rank 1 leaves its last barrier before rank 0 enters it, and rank 0 enters it after data that
    rank 1 sends later."""
    build = TraceBuilder(REGIONS + 'REGION(BARRIER, "barrier", sync)', 2)
    for turn in range(20):
        for rank in (0, 1):
            build.span(rank, "barrier", 100 * turn, 80)
    build.span(0, "wait", 2000, 50, peer=1, slot=0)
    build.span(0, "barrier", 2050, 10)
    build.span(1, "barrier", 2000, 10)
    build.span(1, "send", 2020, 10, peer=0, slot=0)
    assert_exact(replay_of(build.trace()))


def test_launches_of_no_length_at_one_instant_are_in_some_order() -> None:
    """Each has ended when the other begins: a window of time can leave that of two launches."""
    build = TraceBuilder(REGIONS, 1)
    for launch, kernel in enumerate(("dispatch", "compute", "combine")):
        build.launch(launch, kernel)
        build.span(0, "work", 500, launch=launch)
    assert_exact(replay_of(build.trace()))


def test_blocks_of_no_length_take_nobodys_place_at_one_instant() -> None:
    build = TraceBuilder(REGIONS, 1)
    build.span(0, "work", 0, 100, block=0)
    for block in (1, 2, 3):
        build.span(0, "work", 500, block=block)
    assert_exact(replay_of(build.trace()))


def test_blocks_on_a_slow_processor_are_that_processor() -> None:
    """Two of eight SMs are slow, of a kernel whose blocks move: the same blocks come to lie on them,
    because the others are free earlier."""
    random = np.random.default_rng(3)
    build = TraceBuilder('REGION(W, "work", compute)', 1)
    for call in range(8):
        build.launch(call, "kernel", 40)
        free_ns = [0] * 16
        for block in range(40):
            place = block if block < 16 else free_ns.index(min(free_ns))
            usual_ns = 17_000 if place // 2 in (2, 3) else 10_000
            took_ns = round(usual_ns * random.uniform(0.97, 1.03))
            at = {"launch": call, "block": block, "processor": place // 2}
            build.span(0, "work", 1_000_000 * call + free_ns[place], took_ns, **at)
            free_ns[place] += took_ns + 100
    (only,) = explain_trace(build.trace({"num_processors": 8})).findings
    assert (only.kind.name, only.processors, only.blocks) == ("slow", (2, 3), ())
