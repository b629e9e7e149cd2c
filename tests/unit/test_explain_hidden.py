"""Causes that are hard to see: nobody waits for them, others hide them, or there is little to compare with."""

from __future__ import annotations

from dataclasses import replace

from benchmarks import explanation_accuracy
from kprof.analysis.findings import Finding, explain_trace
from simulation import Cause, Kind, Scenario, Sizes, simulate

CALLS = 3
ALWAYS = (1.0,) * CALLS


def findings_of(topology: str, sizes: Sizes, *causes: Cause, **others: object) -> list[Finding]:
    scenario = Scenario(topology=topology, sizes=sizes, num_calls=CALLS, causes=causes, seed=5)
    scenario = replace(scenario, **others)  # type: ignore[arg-type]
    return list(explain_trace(simulate(scenario).trace()).findings)


def test_one_link_is_slow_where_nobody_waits_for_any_other() -> None:
    slow = Cause(Kind.SLOW_LINK, 40_000.0, (1.0,), link=(9, 10))
    (finding,) = findings_of("all_to_all", Sizes(16, 2, 4), slow, num_calls=1)
    assert (finding.kind.name, finding.link) == ("slow_transfer", (9, 10))
    assert finding.share > 0.2


def test_all_that_one_rank_sends_is_slow_where_only_that_rank_sends_such_data() -> None:
    slow = Cause(Kind.SLOW_LINK, 16_000.0, ALWAYS, link=(0, -1))
    (finding,) = findings_of("server", Sizes(12, 4, 2), slow)
    assert (finding.kind.name, finding.link) == ("slow_transfer", (0, -1))


def test_one_link_to_a_server_is_slow() -> None:
    slow = Cause(Kind.SLOW_LINK, 6000.0, ALWAYS, link=(1, 0))
    (finding,) = findings_of("server", Sizes(3, 4, 2), slow)
    assert (finding.kind.name, finding.link) == ("slow_transfer", (1, 0))


def test_a_link_that_only_hidden_data_of_another_region_can_be_compared_with() -> None:
    slow = Cause(Kind.SLOW_LINK, 30_000.0, ALWAYS, link=(5, -1))
    (finding,) = findings_of("staged", Sizes(8, 8, 4), slow)
    assert (finding.kind.name, finding.link) == ("slow_transfer", (5, -1))


def test_links_are_not_slow_by_less_than_the_clocks_are_off() -> None:
    slow = Cause(Kind.SLOW, 3.4, ALWAYS, ranks=(1,), region="reduce")
    (finding,) = findings_of(
        "tree", Sizes(4, 4, 4), slow, clock_error_ns=98.3, noise=0.04, seed=435270107
    )
    assert (finding.kind.name, finding.ranks) == ("slow", (1,))


def test_an_event_of_one_block_is_no_event_all_over_the_run() -> None:
    late = Cause(Kind.DELAY, 19_477.0, (1.0,) * 7, ranks=(3,), blocks=(2,), region="send")
    (finding,) = findings_of(
        "staged",
        Sizes(6, 6, 5),
        late,
        num_calls=7,
        noise_shape="spikes",
        noise=0.045,
        seed=508299562,
    )
    assert (finding.kind.name, finding.ranks, finding.blocks) == ("slow", (3,), (2,))


def test_a_slow_rank_has_slow_events_too() -> None:
    rank = Cause(Kind.SLOW, 1.09, (1.0,), ranks=(6,))
    items = Cause(Kind.SLOW_ITEMS, 10.79, (1.0,), region="copy", every=2)
    first, second = findings_of(
        "staged",
        Sizes(8, 8, 3),
        rank,
        items,
        num_calls=1,
        noise=0.045,
        seed=86690805,
        travel_ns=457,
    )
    assert (first.kind.name, first.ranks) == ("slow", (6,))
    assert (second.kind.name, second.region) == ("slow_events", "copy")


def test_slow_events_are_seen_where_most_of_their_time_is_a_slow_ranks() -> None:
    rank = Cause(Kind.SLOW, 1.87, ALWAYS, ranks=(1,), region="send")
    items = Cause(Kind.SLOW_ITEMS, 8.76, ALWAYS, region="send", every=4)
    first, second = findings_of("all_to_all", Sizes(4, 4, 5), rank, items, noise=0.02)
    assert (first.kind.name, first.ranks) == ("slow", (1,))
    assert 2.3 < first.factor < 3.5
    assert (second.kind.name, second.region, second.period) == ("slow_events", "send", 4)


def test_a_rank_whose_data_only_some_wait_for_is_named_once() -> None:
    slow = Cause(Kind.SLOW_LINK, 4700.0, ALWAYS, link=(-1, 0))
    (finding,) = findings_of("all_to_all", Sizes(6, 3, 3), slow)
    assert (finding.kind.name, finding.link) == ("slow_transfer", (-1, 0))


def test_of_a_block_slow_everywhere_and_its_items_on_one_rank_the_larger_comes_first() -> None:
    items = Cause(Kind.MORE_ITEMS, 3.0, ALWAYS, ranks=(2,), blocks=(2,))
    block = Cause(Kind.SLOW, 1.9, ALWAYS, blocks=(2,))
    first, second = findings_of("barriers", Sizes(3, 4, 3), items, block)
    assert (first.kind.name, first.ranks, first.blocks) == ("slow", (), (2,))
    assert (second.kind.name, second.ranks, second.blocks) == ("uneven_work", (2,), (2,))


def test_of_two_ranks_one_has_a_block_with_more_items() -> None:
    more = Cause(Kind.MORE_ITEMS, 3.0, ALWAYS, ranks=(1,), blocks=(1,))
    (finding,) = findings_of("all_to_all", Sizes(2, 4, 3), more)
    assert (finding.kind.name, finding.ranks, finding.blocks) == ("uneven_work", (1,), (1,))


def test_what_only_one_rank_does_is_slow_on_that_rank() -> None:
    slow = Cause(Kind.SLOW, 3.0, (0.0, 1.0) + (0.0,) * 6, ranks=(1,))
    (finding,) = findings_of("server", Sizes(2, 4, 5), slow, num_calls=8)
    assert (finding.kind.name, finding.ranks, finding.calls) == ("slow", (1,), (1,))


def test_spikes_in_one_call_are_no_causes_that_hide_each_other() -> None:
    """A balanced run of the benchmark: two blocks took long in one of five calls, and were named."""
    assert explanation_accuracy.judge(116, 2026112220).said == ()
