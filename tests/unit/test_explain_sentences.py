"""Sentences of findings: short, place first, when it is not always, and advice that fits."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kprof.analysis.explain import (
    ExplainedFinding,
    FindingKind,
    Limit,
    LimitKind,
    When,
)
from kprof.analysis.explain.sentences import (
    MOST_WORDS,
    advice,
    growth_sentence,
    limit_sentence,
    sentence,
)

SLOW_BLOCK = ExplainedFinding(
    kind=FindingKind.SLOW,
    ranks=(2,),
    blocks=(3,),
    places=((2, 3),),
    links=(),
    region="combine/send",
    calls=tuple(range(12)),
    when=When.ALWAYS,
    period=0,
    gain_ns=120_000.0,
    interval_ns=(110_000.0, 130_000.0),
    share=0.12,
    factor=3.02,
    gains_ns=(10_000.0,) * 12,
    costly_calls=tuple(range(12)),
    alone_ns=1000.0,
)
GPU, CPU = frozenset({"cuda"}), frozenset({"cpu"})


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "Block 3 of rank 2 takes 3.0x as long as others for combine/send: costs 12 % of the run"),
        (
            {"when": When.SOMETIMES, "calls": (1, 4, 9)},
            "Block 3 of rank 2 takes 3.0x as long as others for combine/send, in 3 of 12 calls: "
            "costs 12 % of the run",
        ),
        (
            {"kind": FindingKind.LATE_START, "blocks": (), "when": When.PERIODIC, "period": 3},
            "Rank 2 starts late, in every 3rd call: costs 12 % of the run",
        ),
        (
            {"kind": FindingKind.SLOW_TRANSFER, "links": ((1, -1),), "when": When.GROWING},
            "Data from rank 1 travels 3.0x as long as elsewhere, more with every call: "
            "costs 12 % of the run",
        ),
        (
            {"kind": FindingKind.SLOW_TRANSFER, "links": ((1, 4), (3, 4))},
            "Data from ranks 1, 3 to rank 4 travels 3.0x as long as elsewhere: costs 12 % of the "
            "run",
        ),
        (
            {"kind": FindingKind.SLOW_TRANSFER, "links": ((0, 2), (0, 3), (1, 2), (1, 3))},
            "Data on 4 links travels 3.0x as long as elsewhere: costs 12 % of the run",
        ),
        (
            {"kind": FindingKind.SLOW_CALL, "region": None, "calls": (8,), "when": When.SOMETIMES},
            "All blocks of rank 2 take 3.0x as long, in call 8, one of 12: costs 12 % of the run",
        ),
        (
            {"kind": FindingKind.UNEVEN_BLOCKS},
            "A few blocks do most of combine/send: costs 12 % of the run",
        ),
        (
            {"ranks": (4, 5, 6, 7), "blocks": (), "region": None},
            "Ranks 4-7 take 3.0x as long as others: costs 12 % of the run",
        ),
        (
            {"ranks": ()},
            "Block 3 of all ranks takes 3.0x as long as others for combine/send: costs 12 % of the run",
        ),
    ],
)  # fmt: skip
def test_a_sentence_says_place_fact_when_and_cost(
    changes: dict[str, object], expected: str
) -> None:
    finding = replace(SLOW_BLOCK, **changes)  # type: ignore[arg-type]
    assert sentence(finding, 12) == expected


@pytest.mark.parametrize("kind", FindingKind)
@pytest.mark.parametrize("when", When)
def test_no_sentence_is_longer_than_it_may_be(kind: FindingKind, when: When) -> None:
    many = tuple(range(0, 120, 7))
    finding = replace(
        SLOW_BLOCK,
        kind=kind,
        when=when,
        period=3,
        ranks=many,
        blocks=(),
        links=((12, 63),) if kind is FindingKind.SLOW_TRANSFER else (),
        calls=(1, 4, 9),
    )
    assert len(sentence(finding, 40).split()) <= MOST_WORDS
    for is_gone in (False, True):
        assert len(growth_sentence(finding, 40, None, is_gone=is_gone).split()) <= MOST_WORDS


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "combine/send of block 3 of rank 2 takes 3.0x as long as before, without waits"),
        ({"region": None}, "Block 3 of rank 2 takes 3.0x as long as before, without waits"),
        ({"links": ((0, 1),)}, "Data from rank 0 to rank 1 takes 3.0x as long to arrive as before"),
        # All links: they have no end that could be named.
        (
            {"kind": FindingKind.SLOW_CALL, "links": ((-1, -1),)},
            "Data takes 3.0x as long to arrive as before",
        ),
        ({"kind": FindingKind.LATE_START, "blocks": ()}, "Rank 2 starts later than before"),
        # Several regions of all ranks: none of them takes as many times as long as another.
        ({"ranks": (), "blocks": (), "region": None}, "All ranks take longer than before"),
        (
            {"kind": FindingKind.IDLE_GAP},
            "Block 3 of rank 2 records nothing until combine/send for longer than before",
        ),
    ],
)  # fmt: skip
def test_a_change_names_its_place(changes: dict[str, object], expected: str) -> None:
    finding = replace(SLOW_BLOCK, **changes)  # type: ignore[arg-type]
    assert (
        growth_sentence(finding, 12, None, is_gone=False)
        == f"{expected}: costs an estimated 12 % of the time"
    )


def test_clocks_and_power_are_no_advice_for_a_block_or_a_cpu() -> None:
    whole_rank = replace(SLOW_BLOCK, blocks=(), places=(), region=None)
    assert "power" in advice(whole_rank, GPU)
    assert "power" not in advice(whole_rank, CPU)
    assert "power" not in advice(SLOW_BLOCK, GPU)


def test_what_the_design_costs_is_said() -> None:
    lock = Limit(LimitKind.LOCK, "lock/acquire", 3e6, 0.6)
    assert limit_sentence(lock) == (
        "Blocks take turns at the lock (lock/acquire): costs up to 60 % of the run"
    )


def test_calls_that_have_it_without_being_longer_for_it_are_told_from_those_that_are() -> None:
    hidden = replace(SLOW_BLOCK, costly_calls=(3,), when=When.SOMETIMES)
    assert sentence(hidden, 12).endswith(": costs 12 % of the run, in call 3 only")
    hidden = replace(hidden, calls=tuple(range(6)), costly_calls=(1, 3))
    assert ", in 6 of 12 calls: " in sentence(hidden, 12)
    assert sentence(hidden, 12).endswith(": costs 12 % of the run, in 2 of these calls")


@pytest.mark.parametrize("kind", LimitKind)
def test_every_limit_has_a_short_sentence(kind: LimitKind) -> None:
    assert len(limit_sentence(Limit(kind, "region", 1.0, 0.1)).split()) <= MOST_WORDS
