"""Causes that are hard to see: nobody waits for them, others hide them, or there is little to compare with."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks import explanation_accuracy
from kprof.analysis.findings import Finding, explain_trace
from simulation import Cause, Kind, Scenario, Sizes, simulate

CALLS = 3
ALWAYS = (1.0,) * CALLS


def findings_of(topology: str, sizes: Sizes, *causes: Cause, **others: object) -> list[Finding]:
    scenario = Scenario(topology=topology, sizes=sizes, num_calls=CALLS, causes=causes, seed=5)
    scenario = replace(scenario, **others)  # type: ignore[arg-type]
    return list(explain_trace(simulate(scenario).trace()).findings)


def link(amount: float, src: int, dst: int) -> Cause:
    return Cause(Kind.SLOW_LINK, amount, ALWAYS, link=(src, dst))


ONE_CALL = {"num_calls": 1}
# By what is hard to see: the run, its causes, what else is special, and fields of its findings, in order.
HIDDEN = {
    "one link, where nobody waits for any other": (
        ("all_to_all", Sizes(16, 2, 4)), [link(40_000.0, 9, 10)], ONE_CALL,
        [{"kind": "slow_transfer", "link": (9, 10)}]),
    "all that one rank sends, where only that rank sends such data": (
        ("server", Sizes(12, 4, 2)), [link(16_000.0, 0, -1)], {}, [{"kind": "slow_transfer", "link": (0, -1)}]),
    "one link to a server": (
        ("server", Sizes(3, 4, 2)), [link(6000.0, 1, 0)], {}, [{"kind": "slow_transfer", "link": (1, 0)}]),
    "a link that only hidden data of another region can be compared with": (
        ("staged", Sizes(8, 8, 4)), [link(30_000.0, 5, -1)], {}, [{"kind": "slow_transfer", "link": (5, -1)}]),
    "one link in every fourth call, in which it hides the others into its rank": (
        ("butterfly", Sizes(8, 4, 4)), [Cause(Kind.SLOW_LINK, 9000.0, (0.0, 0.0, 0.0, 1.0) * 3, link=(2, 3))],
        {"num_calls": 12}, [{"kind": "slow_transfer", "link": (2, 3), "calls": (3, 7, 11)}]),
    "a rank whose data only some wait for": (
        ("all_to_all", Sizes(6, 3, 3)), [link(4700.0, -1, 0)], {}, [{"kind": "slow_transfer", "link": (-1, 0)}]),
    "no link that is slow by less than the clocks are off": (
        ("tree", Sizes(4, 4, 4)), [Cause(Kind.SLOW, 3.4, ALWAYS, ranks=(1,), region="reduce")],
        {"clock_error_ns": 98.3, "noise": 0.04, "seed": 435270107}, [{"kind": "slow", "ranks": (1,)}]),
    "an event of one block, and no event all over the run": (
        ("staged", Sizes(6, 6, 5)),
        [Cause(Kind.DELAY, 19_477.0, (1.0,) * 7, ranks=(3,), blocks=(2,), region="send")],
        {"num_calls": 7, "noise_shape": "spikes", "noise": 0.045, "seed": 508299562},
        [{"kind": "slow", "ranks": (3,), "blocks": (2,)}]),
    "a slow rank that has slow events, too": (
        ("staged", Sizes(8, 8, 3)),
        [Cause(Kind.SLOW, 1.09, (1.0,), ranks=(6,)),
            Cause(Kind.SLOW_ITEMS, 10.79, (1.0,), region="copy", every=2)],
        {**ONE_CALL, "noise": 0.045, "seed": 86690805, "travel_ns": 457},
        [{"kind": "slow", "ranks": (6,)}, {"kind": "slow_events", "region": "copy"}]),
    "slow events of which most of the time is a slow rank's": (
        ("all_to_all", Sizes(4, 4, 5)),
        [Cause(Kind.SLOW, 1.87, ALWAYS, ranks=(1,), region="send"),
            Cause(Kind.SLOW_ITEMS, 8.76, ALWAYS, region="send", every=4)],
        {"noise": 0.02},
        [{"kind": "slow", "ranks": (1,), "factor": pytest.approx(2.9, abs=0.6)},
            {"kind": "slow_events", "region": "send", "period": 4}]),
    "a block slow everywhere, which costs more than its items on one rank": (
        ("barriers", Sizes(3, 4, 3)),
        [Cause(Kind.MORE_ITEMS, 3.0, ALWAYS, ranks=(2,), blocks=(2,)), Cause(Kind.SLOW, 1.9, ALWAYS, blocks=(2,))],
        {},
        [{"kind": "slow", "ranks": (), "blocks": (2,)}, {"kind": "uneven_work", "ranks": (2,), "blocks": (2,)}]),
    "of two ranks one that has a block with more items": (
        ("all_to_all", Sizes(2, 4, 3)), [Cause(Kind.MORE_ITEMS, 3.0, ALWAYS, ranks=(1,), blocks=(1,))], {},
        [{"kind": "uneven_work", "ranks": (1,), "blocks": (1,)}]),
    "what only one rank does": (
        ("server", Sizes(2, 4, 5)), [Cause(Kind.SLOW, 3.0, (0.0, 1.0) + (0.0,) * 6, ranks=(1,))],
        {"num_calls": 8}, [{"kind": "slow", "ranks": (1,), "calls": (1,)}]),
}  # fmt: skip


@pytest.mark.parametrize("what", HIDDEN)
def test_it_is_named_and_nothing_else(what: str) -> None:
    run, causes, others, expected = HIDDEN[what]
    found = findings_of(*run, *causes, **others)
    assert [finding.kind.name for finding in found] == [fields["kind"] for fields in expected]
    for finding, fields in zip(found, expected, strict=True):
        rest = {name: value for name, value in fields.items() if name != "kind"}
        assert {name: getattr(finding, name) for name in rest} == rest
    assert found[0].share > 0.2 or not what.startswith("one link, where")


@pytest.mark.slow
# Two blocks that took long in one of five calls; one in a block with little else; three blocks.
@pytest.mark.parametrize(("number", "seed"), [(116, 2026112220), (1851, 2026112720), (367, 1)])
def test_spikes_of_a_balanced_run_are_no_causes(number: int, seed: int) -> None:
    """Runs of the benchmark, in which they were named."""
    assert explanation_accuracy.judge(number, seed).said == ()
