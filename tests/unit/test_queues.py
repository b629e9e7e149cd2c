"""Queues between warps of a block: what a what-if promises is what a run with that change takes.

A run is worked out item by item: producers fill places of a queue in turn, consumers take all of them in
order. It is then recorded, replayed with one thing changed, and worked out again with that thing changed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from kprof.analysis.findings import Limit, LimitKind, explain_trace
from kprof.analysis.summary import Summary
from kprof.analysis.waiting import role_waits
from kprof.trace import Trace
from synthetic import TraceBuilder

REGIONS = """
REGION(R_LOAD, "producer/load", send, slot:32)
REGION(R_ROOM, "producer/wait-room", wait, slot:32)
REGION(R_TAKE, "consumer/wait-item", wait, slot:32)
REGION(R_USE, "consumer/use", send, slot:32)
FLOW_IN_BLOCK(R_LOAD, R_TAKE)
FLOW_IN_BLOCK(R_USE, R_ROOM)
"""
LOOK_NS = 10


@dataclass(frozen=True)
class Run:
    """What a block does. A wait takes a look at least, `handover_ns` lies between spans. Each consumer uses every
    item, and the last one frees its place. With `by_place` slots are places, which are used again; else they
    are items. With `always_waits` producers also look at places that were never taken."""

    num_items: int = 96
    num_producers: int = 1
    num_places: int = 4
    load_ns: Callable[[int], int] = lambda _: 400
    use_ns: Callable[[int], int] = lambda _: 400
    handover_ns: int = 0
    num_consumers: int = 1
    by_place: bool = False
    always_waits: bool = False

    def play(self, build: TraceBuilder | None = None, launch: int = 0, start_ns: int = 0) -> int:
        """When the last item is used; into `build` all spans."""
        filled, used = [0] * self.num_items, [0] * self.num_items
        consumers = [start_ns] * self.num_consumers
        producers = [start_ns] * self.num_producers

        def span(region: str, warp: int, item: int, begin: int, end: int) -> int:
            if build is not None:
                slot = item % self.num_places if self.by_place else item
                build.span(0, region, begin, end - begin, warp=warp, launch=launch, slot=slot)  # fmt: skip
            return end + self.handover_ns

        for item in range(self.num_items):
            producer = item % self.num_producers
            now, warp = producers[producer], self.num_consumers + producer
            before = item - self.num_places
            if before >= 0 or self.always_waits:
                end = max(now + LOOK_NS, used[before] if before >= 0 else 0)
                now = span("producer/wait-room", warp, before, now, end)
            filled[item] = now + self.load_ns(item)
            producers[producer] = span("producer/load", warp, item, now, filled[item])
            for consumer, now in enumerate(consumers):
                end = max(now + LOOK_NS, filled[item])
                now = span("consumer/wait-item", consumer, item, now, end)
                # The second one is slower.
                end = now + self.use_ns(item) + 20 * consumer
                used[item] = max(used[item], end)
                consumers[consumer] = span("consumer/use", consumer, item, now, end)
        return used[-1] - start_ns


def trace_of(run: Run) -> Trace:
    """Three calls of it."""
    build = TraceBuilder(REGIONS, 1)
    for launch in range(3):
        build.launch(launch, "queue", num_blocks=1)
        run.play(build, launch, 1_000_000 * launch)
    return build.trace()


def limits_of(run: Run) -> dict[LimitKind, Limit]:
    return {limit.kind: limit for limit in explain_trace(trace_of(run)).limits}


STARVED = Run(load_ns=lambda _: 1200)
BURSTS = Run(
    load_ns=lambda item: 520 if item % 32 < 16 else 300, use_ns=lambda _: 410, num_places=2
)
FINE = Run(num_producers=2, load_ns=lambda _: 100, use_ns=lambda _: 120, handover_ns=30)


def test_starved_consumers_need_more_producers() -> None:
    found = limits_of(STARVED)
    limit = found[LimitKind.FEW_PRODUCERS]
    promised = limit.gain_ns / 3
    assert promised == pytest.approx(
        STARVED.play() - replace(STARVED, num_producers=2).play(), rel=0.02
    )
    assert LimitKind.SHALLOW_QUEUE not in found
    assert replace(STARVED, num_places=8).play() == pytest.approx(STARVED.play(), rel=0.001)
    sentence = limit.sentence
    assert sentence.startswith(
        "Too few warps run producer/load, and the others wait for them; changing this alone"
    )
    assert limit.advice.startswith("run it on twice as many warps")


def test_producers_that_are_held_back_need_more_places() -> None:
    """Loads are slow and fast in turns, and the queue is too short to bridge the slow ones."""
    limit = limits_of(BURSTS)[LimitKind.SHALLOW_QUEUE]
    changed = replace(BURSTS, num_places=4).play()
    assert limit.gain_ns / 3 == pytest.approx(BURSTS.play() - changed, rel=0.02)
    assert limit.sentence.startswith("Warps stall before producer/load")


SHARED = replace(BURSTS, num_consumers=2)


@pytest.mark.parametrize(
    "run",
    [
        SHARED,
        replace(BURSTS, by_place=True),
        replace(BURSTS, by_place=True, always_waits=True),
        replace(SHARED, by_place=True),
        replace(SHARED, by_place=True, always_waits=True),
        replace(SHARED, num_places=1),
    ],
)
@pytest.mark.parametrize("load_ns", [BURSTS.load_ns, STARVED.load_ns])
def test_slots_may_be_places_and_several_warps_may_take_an_item(
    run: Run, load_ns: Callable[[int], int]
) -> None:
    run = replace(run, load_ns=load_ns)
    found = limits_of(run)
    for kind, changed in (
        (LimitKind.FEW_PRODUCERS, replace(run, num_producers=2)),
        (LimitKind.SHALLOW_QUEUE, replace(run, num_places=2 * run.num_places)),
    ):
        saved = run.play() - changed.play()
        if saved > 0.035 * run.play():
            assert found[kind].gain_ns / 3 == pytest.approx(saved, rel=0.03), kind
        elif saved < 0.025 * run.play():
            assert kind not in found


def test_small_items_cost_by_their_number() -> None:
    limit = limits_of(FINE)[LimitKind.SMALL_ITEMS]
    one = FINE
    twice = replace(
        one,
        num_items=one.num_items // 2,
        num_places=one.num_places // 2,
        load_ns=lambda _: 200,
        use_ns=lambda _: 240,
    )
    assert limit.gain_ns / 3 == pytest.approx(one.play() - twice.play(), rel=0.15)


def test_who_works_all_the_time_is_not_told_to_change_the_queue() -> None:
    busy = Run(load_ns=lambda _: 200, use_ns=lambda _: 1000)
    kinds = limits_of(busy).keys()
    assert not kinds & {LimitKind.FEW_PRODUCERS, LimitKind.SHALLOW_QUEUE, LimitKind.SMALL_ITEMS}


def test_what_a_role_waits_for() -> None:
    """The consumer waits 2 of 3 parts of its time, for items; the producer only looks."""
    rows = role_waits(Summary.of(trace_of(STARVED))).set_index("region")
    taking, filling = rows.loc["consumer/wait-item"], rows.loc["producer/wait-room"]
    assert (taking["role"], taking["waits_for"], taking["count"]) == (
        "consumer",
        "producer/load",
        288,
    )
    assert taking["share"] == pytest.approx(0.67, abs=0.01)
    assert (filling["role"], filling["waits_for"], filling["count"]) == (
        "producer",
        "consumer/use",
        276,
    )
    assert filling["share"] == pytest.approx(10 / 1210, rel=0.05)
