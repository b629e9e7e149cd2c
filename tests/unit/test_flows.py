"""Which send released which wait: what is joined, and what is left alone because nothing decides it."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kprof import analysis
from kprof.analysis import Summary
from kprof.capture.manifest import EventCounts
from kprof.trace import Trace
from kprof.trace.flows.ends import FlowEnds
from kprof.trace.flows.pairing import Doubt, Ends, pair
from synthetic import TraceBuilder

REGIONS = """
REGION(R_SEND,      "send",      send, peer:8, slot:8)
REGION(R_WAIT,      "wait",      wait, peer:8, slot:8)
REGION(R_SEND_FLAG, "send-flag", send, peer:8, slot:8)
REGION(R_WAIT_FLAG, "wait-flag", wait, peer:8, slot:8)
FLOW(R_SEND, R_WAIT)
FLOW(R_SEND_FLAG, R_WAIT_FLAG)
"""


class Run:
    """Launches one after the other, 1000 ns apart. A send takes 10 ns and is there 100 ns after it began."""

    def __init__(self, num_ranks: int = 2, **options: Any) -> None:
        self.build = TraceBuilder(REGIONS, num_ranks, bound_ns=1.0, **options)
        self._number = -1

    def launch(self, kernel: str) -> None:
        self._number += 1
        self.build.launch(self._number, kernel)

    def send(self, slot: int = 0, flag: str = "", at: int = 0, src: int = 0) -> None:
        start_ns = 1000 * self._number + at
        self._add(src, f"send{flag}", start_ns, 10, peer=1 - src, slot=slot)

    def wait(self, slot: int = 0, flag: str = "", at: int = 0, src: int = 0, **place: int) -> None:
        start_ns = 1000 * self._number + at
        self._add(1 - src, f"wait{flag}", start_ns, 100, peer=src, slot=slot, **place)

    def _add(self, rank: int, region: str, start_ns: int, duration_ns: int, **more: int) -> None:
        self.build.span(rank, region, start_ns, duration_ns, launch=self._number, **more)

    def trace(self, *, dropped: int = 0) -> Trace:
        """`dropped`: how many records every rank has lost."""
        return self.build.trace({"counts": EventCounts(dropped=dropped)})


def flows(trace: Trace) -> list[tuple[int, int]]:
    """Starts of sends and of the waits that they released."""
    table = trace.frame("SELECT send_start_ns, wait_start_ns FROM flows ORDER BY ALL")
    return [(int(send), int(wait)) for send, wait in table.itertuples(index=False)]


def token_flags(run: Run) -> None:
    """Receivers wait for every row."""
    run.launch("dispatch_send")
    run.send()
    run.launch("dispatch_recv")
    run.wait()


def rank_flags(run: Run) -> None:
    """Rows are sent by the same kernel, and receivers wait for one flag, which another kernel sends."""
    run.launch("dispatch_send")
    run.send()
    run.send(flag="-flag", at=500)
    run.launch("dispatch_recv_ranks")
    run.wait(flag="-flag")


@pytest.mark.parametrize(
    "variants", [[token_flags] * 3 + [rank_flags] * 3, [rank_flags, token_flags] * 3]
)
def test_variants_that_share_a_kernel_keep_their_flows(variants: list[Any]) -> None:
    run = Run()
    for variant in variants:
        variant(run)
    expected = [
        (2000 * i + (500 if variant is rank_flags else 0), 2000 * i + 1000)
        for i, variant in enumerate(variants)
    ]
    trace = run.trace()
    assert flows(trace) == expected
    table = analysis.unmatched_flows(Summary.of(trace)).set_index("send_region")
    assert table[["flows", "unmatched_sends", "unmatched_waits"]].to_numpy().tolist() == [
        [3, 3, 0],
        [3, 0, 0],
    ]


def test_two_buffers_in_turn_are_not_taken_for_each_other() -> None:
    run = Run()
    run.launch("send")
    run.send()
    for _ in range(3):
        run.launch("send")
        run.send()
        run.launch("wait")
        run.wait()
    run.launch("wait")
    run.wait()
    assert flows(run.trace()) == [(0, 2000), (1000, 4000), (3000, 6000), (5000, 7000)]


def test_a_wait_is_for_the_latest_launch_that_sent() -> None:
    run = Run()
    for kernel in ("send", "send", "send", "wait", "send", "wait"):
        run.launch(kernel)
        run.send() if kernel == "send" else run.wait()
    assert flows(run.trace()) == [(2000, 3000), (4000, 5000)]


def test_two_launches_that_wait_share_what_one_sent_by_slot() -> None:
    run = Run()
    for _ in range(2):
        run.launch("send")
        run.send(slot=1)
        run.send(slot=2, at=20)
        run.launch("wait")
        run.wait(slot=1)
        run.launch("wait_more")
        run.wait(slot=2)
        run.wait(slot=1, at=200)
    assert flows(run.trace()) == [(0, 1000), (20, 2000), (3000, 4000), (3020, 5000)]


def test_launches_without_an_order_are_not_guessed_at() -> None:
    """Rank 0 has launches of one kernel and rank 1 of another, and not as many."""
    run = Run()
    for kernel in ("send", "send", "wait"):
        run.launch(kernel)
        run.send() if kernel == "send" else run.wait()
    ranks = tuple(
        msgspec.structs.replace(
            info, launches=tuple(each for each in info.launches if each.kernel == kernel)
        )
        for info, kernel in zip(run.build.manifest().ranks, ("send", "wait"), strict=True)
    )
    assert flows(run.build.trace(ranks=ranks)) == []


def test_lost_sends_of_a_launch_do_not_shift_the_others() -> None:
    run = Run()
    for i in range(3):
        run.launch("send")
        if i != 1:
            run.send()
        run.launch("wait")
        run.wait()
    assert flows(run.trace(dropped=1)) == [(0, 1000), (4000, 5000)]


def test_several_waits_for_one_send_are_all_released_by_it() -> None:
    run = Run()
    run.launch("both")
    run.send()
    for block in range(3):
        run.wait(at=10 * block, block=block)
    trace = run.trace()
    assert flows(trace) == [(0, 0), (0, 10), (0, 20)]
    row = analysis.unmatched_flows(Summary.of(trace)).iloc[0]
    assert (row["unmatched_sends"], row["unmatched_waits"]) == (0, 0)
    # Another send may have released some of them and be lost.
    assert flows(run.trace(dropped=1)) == []


def ring(sends: list[int], waits: list[int], *, is_aligned: bool = True) -> Run:
    """One launch uses a slot again and again."""
    run = Run(is_aligned=is_aligned)
    run.launch("ring")
    for at in sends:
        run.send(at=at)
    for at in waits:
        run.wait(at=at)
    return run


def test_times_of_clocks_that_are_not_aligned_decide_nothing() -> None:
    """Of sends at 0, 200 and 400 the first one released the wait, if the clocks can tell."""
    for is_aligned, expected in ((True, [(0, 10)]), (False, [])):
        assert flows(ring([0, 200, 400], [10], is_aligned=is_aligned).trace()) == expected


def test_a_slot_that_did_not_fit_its_field_meets_nobody() -> None:
    run = Run()
    run.launch("both")
    for slot in (254, 255):
        run.send(slot=slot)
        run.wait(slot=slot)
    assert len(flows(run.trace())) == 1


def test_a_selection_shows_flows_of_the_whole_capture() -> None:
    trace = ring([0, 200, 400], [10, 210, 410]).trace()
    # The first send and the last wait are outside: what is left is not joined anew.
    assert flows(trace.select(time_ns=(200, 405))) == [(200, 210)]


def test_a_selection_of_launches_knows_the_others() -> None:
    run = Run()
    for variant in (rank_flags, rank_flags, token_flags):
        variant(run)
    assert flows(run.trace().select(launches=(0, 5))) == []
    assert flows(run.trace().select(launches=(4, 5))) == [(4000, 5000)]


@pytest.mark.parametrize(("max_ends", "parts"), [(100, 1), (15, 1), (14, 1), (13, 2), (7, 3)])
def test_a_launch_with_a_little_too_many_ends_is_read_at_once(max_ends: int, parts: int) -> None:
    """Every part reads all events of the launch, for the other parts' ends too."""
    run = Run()
    run.launch("both")
    for slot in range(10):
        run.send(slot=slot, at=slot)
        run.wait(slot=slot, at=slot)
    trace = run.trace()
    slices = list(FlowEnds.of(trace, trace.flow_sides).slices(max_ends))
    assert [chosen.parts for chosen in slices] == [parts] * parts


def test_slices_of_a_large_launch_add_up() -> None:
    run = Run()
    run.launch("both")
    for slot in range(40):
        run.send(slot=slot % 20, at=200 * slot)
        run.wait(slot=slot % 20, at=200 * slot + 10)
    trace = run.trace()
    ends = FlowEnds.of(trace, trace.flow_sides)
    slices = list(ends.slices(max_ends=16))
    assert len(slices) == 5
    found = [len(ends.pair(*ends.read(part))[0]) for part in slices]
    assert found == [8, 8, 8, 8, 8]


def columns(rows: list[tuple[int, ...]]) -> Ends:
    """Rows of (src, dst, epoch, slot, start_ns) that last 5 ns; an event's id is its position."""
    values = np.array(rows, dtype=np.int64).reshape(-1, 5)
    count = len(values)
    zero = np.zeros(count, dtype=np.int64)
    src, dst, epoch, slot, start_ns = values.T
    ids = np.arange(count)
    yes = np.ones(count, np.bool_)
    return Ends(
        zero, src, dst, epoch, slot, zero, start_ns, start_ns + 5, ids, zero, zero, zero, yes
    )


TRUSTED = Doubt(np.zeros(1, np.bool_), 0.0, np.zeros(1, np.bool_))


def test_huge_slots_and_ranks_do_not_overflow() -> None:
    big = (1 << 24) - 1
    rows = [(4000 + i, 4095 - i, 1 << 30, big - i % 3, i) for i in range(50)]
    s, w = pair(columns(rows), columns(rows[::-1]), TRUSTED)
    assert sorted(zip(s.tolist(), w.tolist(), strict=True)) == [(i, 49 - i) for i in range(50)]


def choices(sends: list[int], waits: list[int]) -> list[list[int]]:
    """Every way to give each wait (they end at the given times) a send of its own, in order, that began by then."""
    if not waits:
        return [[]]
    found = []
    for i in range(len(sends) - len(waits) + 1):
        if sends[i] <= waits[0]:
            rest = [[i + 1 + j for j in way] for way in choices(sends[i + 1 :], waits[1:])]
            found += [[i, *way] for way in rest]
    return found


@pytest.mark.slow
@settings(max_examples=300)
@given(
    st.lists(
        st.tuples(
            st.lists(st.integers(0, 40), max_size=5, unique=True),
            st.lists(st.integers(0, 40), max_size=5, unique=True),
        ),
        min_size=1,
        max_size=6,
    ),
    st.booleans(),
)
def test_what_is_joined_is_what_every_possible_order_agrees_on(slots: Any, is_lossy: bool) -> None:
    sends = [(0, 1, 0, slot, at) for slot, (starts, _) in enumerate(slots) for at in starts]
    waits = [(0, 1, 0, slot, at) for slot, (_, starts) in enumerate(slots) for at in starts]
    random.Random(len(sends)).shuffle(sends)
    expected = set()
    for slot, (begun, waited) in enumerate(slots):
        begun, waited = sorted(begun), sorted(waited)
        n, m = len(begun), len(waited)
        if is_lossy and max(n, m) > 1:
            continue
        if n == 1:
            expected |= {(slot, begun[0], at) for at in waited}
        elif n == m:
            expected |= {(slot, *both) for both in zip(begun, waited, strict=True)}
        elif n > 1 and n >= m:
            ways = choices(begun, [at + 5 for at in waited])
            agreed = [i for i in range(m) if {way[i] for way in ways} == {i}]
            # The n-th must be possible at all.
            if list(range(m)) in ways:
                expected |= {(slot, begun[i], waited[i]) for i in agreed}
    s, w = pair(
        columns(sends), columns(waits), Doubt(np.array([is_lossy]), 0.0, np.zeros(1, np.bool_))
    )
    found = {
        (sends[i][3], sends[i][4], waits[j][4]) for i, j in zip(s.tolist(), w.tolist(), strict=True)
    }
    assert found == expected


NUMBERS = st.lists(st.integers(0, 40), max_size=5, unique=True).map(sorted)


@pytest.mark.slow
@settings(max_examples=300)
@given(st.lists(st.tuples(NUMBERS, NUMBERS), min_size=1, max_size=6), st.booleans())
def test_within_a_block_the_last_of_all_sends_released_a_wait(slots: Any, is_lossy: bool) -> None:
    sends = [(0, 0, 0, slot, at) for slot, (starts, _) in enumerate(slots) for at in starts]
    waits = [(0, 0, 0, slot, at) for slot, (_, starts) in enumerate(slots) for at in starts]
    expected = set()
    for slot, (begun, waited) in enumerate(slots):
        in_turn = list(zip(begun, waited, strict=False))
        # One send is another matter.
        if len(begun) < 2 or is_lossy:
            continue
        if len(begun) == len(waited) and all(sent <= at + 5 for sent, at in in_turn):
            expected |= {(slot, *both) for both in in_turn}
        else:
            last = [max((sent for sent in begun if sent <= at + 5), default=None) for at in waited]
            expected |= {
                (slot, sent, at) for sent, at in zip(last, waited, strict=True) if sent is not None
            }
    doubt = Doubt(np.array([is_lossy]), 0.0, np.ones(1, np.bool_))
    s, w = pair(columns(sends), columns(waits), doubt)
    found = {
        (sends[i][3], sends[i][4], waits[j][4]) for i, j in zip(s.tolist(), w.tolist(), strict=True)
    }
    assert {flow for flow in found if len(slots[flow[0]][0]) > 1} == expected


IN_BLOCK = """
REGION(R_FILL, "fill", send, slot:8)
REGION(R_FULL, "full", wait, slot:8)
REGION(R_SEND, "send", send, peer:8, slot:8)
REGION(R_WAIT, "wait", wait, peer:8, slot:8)
FLOW_IN_BLOCK(R_FILL, R_FULL)
FLOW(R_SEND, R_WAIT)
"""


def queues() -> TraceBuilder:
    """Two ranks, two launches, three blocks: warp 0 fills slots 0 and 1 in turn, warps 1 and 2 each wait for one."""
    build = TraceBuilder(IN_BLOCK, 2, bound_ns=1.0)
    for launch in range(2):
        build.launch(launch, "gemm")
        for rank in range(2):
            for block in range(3):
                for turn in range(3):
                    for slot in range(2):
                        start_ns = 10_000 * launch + 1000 * turn + 100 * slot + block
                        where = {"launch": launch, "block": block, "slot": slot}
                        build.span(rank, "fill", start_ns, 50, warp=0, **where)
                        build.span(rank, "full", start_ns + 20, 60, warp=1 + slot, **where)
    return build


def test_warps_of_a_block_are_joined_by_slot_and_turn() -> None:
    flows = queues().trace().frame("SELECT * FROM flows")
    assert len(flows) == 2 * 2 * 3 * 3 * 2
    assert set(flows["send_region"]) == {"fill"}
    for flow in flows.itertuples():
        assert (flow.src, flow.send_block, flow.send_warp) == (flow.dst, flow.wait_block, 0)
        assert flow.wait_warp == 1 + flow.slot
        assert flow.wait_start_ns == flow.send_start_ns + 20
