"""Sentences of findings: short, place first, when it is not always, and advice that fits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kprof.analysis import Summary
from kprof.analysis.findings import Finding, Kind, Limit, LimitKind, When
from kprof.analysis.findings.counts import item_counts
from kprof.analysis.findings.differences import By, Difference
from kprof.analysis.findings.growth import growth_sentence
from kprof.analysis.findings.kinds import all_kinds, named
from kprof.analysis.findings.words import MOST_WORDS
from kprof.analysis.wording import duration
from synthetic import TraceBuilder

SLOW_BLOCK = Finding(
    kind=named("slow"),
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


def changed(changes: dict[str, Any]) -> Finding:
    """The slow block with other fields; kinds by their names."""
    kind = named(changes.get("kind", "slow"))
    return replace(SLOW_BLOCK, **changes | {"kind": kind})


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "Block 3 of rank 2 runs combine/send 3.0x slower than the rest; fixing it would save up to 12 %"),
        (
            {"when": When.SOMETIMES, "calls": (1, 4, 9), "costly_calls": (1, 4, 9)},
            "Block 3 of rank 2 runs combine/send 3.0x slower than the rest in 3 of 12 calls; "
            "fixing it would save up to 12 %",
        ),
        (
            {"when": When.MOVING},
            "In every call one block runs combine/send 3.0x slower than the rest, and which one changes; "
            "fixing it would save up to 12 %",
        ),
        (
            {"kind": "late_start", "blocks": (), "when": When.PERIODIC, "period": 3},
            "Rank 2 starts late in every 3rd call; fixing it would save up to 12 %",
        ),
        (
            {"kind": "slow_transfer", "links": ((1, -1),), "when": When.GROWING},
            "Transfers from rank 1 are 3.0x slower than elsewhere, more with every call; "
            "fixing it would save up to 12 %",
        ),
        (
            {"kind": "slow_transfer", "links": ((1, 4), (3, 4))},
            "Transfers from ranks 1, 3 to rank 4 are 3.0x slower than elsewhere; "
            "fixing it would save up to 12 %",
        ),
        (
            {"kind": "slow_transfer", "links": ((0, 2), (0, 3), (1, 2), (1, 3))},
            "Transfers on 4 links are 3.0x slower than elsewhere; fixing it would save up to 12 %",
        ),
        (
            {"kind": "slow_call", "region": None, "calls": (8,), "costly_calls": (8,), "when": When.SOMETIMES},
            "Rank 2 is 3.0x slower than usual in 1 of 12 calls (call 8); fixing it would save up to 12 %",
        ),
        (
            {"kind": "uneven_blocks"},
            "combine/send runs on only a few blocks; spreading it would save up to 12 %",
        ),
        (
            {"ranks": (4, 5, 6, 7), "blocks": (), "region": None},
            "Ranks 4-7 are 3.0x slower than the rest; fixing it would save up to 12 %",
        ),
        (
            {"ranks": ()},
            "Block 3 of all ranks runs combine/send 3.0x slower than the rest; "
            "fixing it would save up to 12 %",
        ),
        (
            {"blocks": (), "places": (), "processors": (5,)},
            "SM 5 of rank 2 runs combine/send 3.0x slower than the rest; fixing it would save up to 12 %",
        ),
        (
            {"kind": "slow_events", "position": "last"},
            "The last combine/send on every track is 3.0x slower than the others; "
            "fixing it would save up to 12 %",
        ),
        (
            {"together": (2, 0.63)},
            "Block 3 of rank 2 runs combine/send 3.0x slower than the rest; "
            "fixing it would save up to 63 %, but only all 2 together",
        ),
        # Calls that have it without being longer for it.
        (
            {"costly_calls": (3,), "when": When.SOMETIMES},
            "Block 3 of rank 2 runs combine/send 3.0x slower than the rest; "
            "fixing it would save up to 12 %, all in call 3",
        ),
        (
            {"costly_calls": (1, 3), "calls": tuple(range(6)), "when": When.SOMETIMES},
            "Block 3 of rank 2 runs combine/send 3.0x slower than the rest in 6 of 12 calls; "
            "costs up to 12 %, all in 2 calls",
        ),
    ],
)  # fmt: skip
def test_a_sentence_says_place_fact_when_and_saving(changes: dict[str, Any], expected: str) -> None:
    assert changed(changes).sentence == expected


@pytest.mark.parametrize("kind", all_kinds(), ids=str)
@pytest.mark.parametrize("when", When)
def test_no_sentence_is_longer_than_it_may_be(kind: Kind, when: When) -> None:
    many = tuple(range(0, 120, 7))
    finding = replace(
        SLOW_BLOCK,
        kind=kind,
        when=when,
        period=3,
        ranks=many,
        blocks=(),
        links=((12, 63),) if kind.name == "slow_transfer" else (),
        calls=(1, 4, 9),
    )
    assert len(finding.sentence.split()) <= MOST_WORDS
    for is_gone in (False, True):
        assert len(growth_sentence(finding, None, is_gone=is_gone).split()) <= MOST_WORDS


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "combine/send of block 3 of rank 2 takes 3.0x as long as before, waits excluded"),
        ({"region": None}, "Block 3 of rank 2 takes 3.0x as long as before, waits excluded"),
        ({"links": ((0, 1),)}, "Transfers from rank 0 to rank 1 take 3.0x as long as before"),
        # All links: they have no end that could be named.
        ({"kind": "slow_call", "links": ((-1, -1),)}, "Transfers take 3.0x as long as before"),
        ({"kind": "late_start", "blocks": ()}, "Rank 2 starts later than before"),
        # Several regions of all ranks: none of them takes as many times as long as another.
        ({"ranks": (), "blocks": (), "region": None}, "All ranks take longer than before"),
        (
            {"kind": "idle_gap"},
            "Block 3 of rank 2 has longer gaps ahead of combine/send than before",
        ),
    ],
)  # fmt: skip
def test_a_change_names_its_place(changes: dict[str, Any], expected: str) -> None:
    sentence = growth_sentence(changed(changes), None, is_gone=False)
    assert sentence == f"{expected}; undoing it would save about 12 %"


def test_clocks_and_power_are_no_advice_for_a_block_or_a_cpu() -> None:
    whole_rank = replace(SLOW_BLOCK, blocks=(), places=(), region=None)
    assert "power" in replace(whole_rank, is_on_gpu=True).advice
    assert "power" not in whole_rank.advice
    assert "power" not in replace(SLOW_BLOCK, is_on_gpu=True).advice


@pytest.mark.parametrize("kind", LimitKind)
def test_every_limit_has_a_short_sentence(kind: LimitKind) -> None:
    assert len(Limit(kind, "region", 1.0, 0.1).sentence.split()) <= MOST_WORDS


def test_gains_are_said_per_call() -> None:
    details = replace(SLOW_BLOCK, total_ns=1_200_000.0).details[0]
    expected = f"Saves {duration(10_000)} of {duration(100_000)} per call"
    assert details.startswith(expected)


@pytest.mark.parametrize("by", By)
def test_a_difference_names_the_slow_places_and_the_best_one(by: By) -> None:
    slow = (0, 2, 5) if by is By.EVENT else (0, 2)
    one = Difference("send", False, by, slow, 1, 8.84, 1e6, 0.4)
    assert one.sentence.endswith(": up to 40 %")
    assert "8.8x as long" in one.sentence
    assert len(f"No place alone costs 3 %, but {one.sentence}".split()) <= MOST_WORDS


def test_items_of_a_region_without_rows_are_not_counted() -> None:
    """It ended in KeyError: an empty column of objects is no mask."""
    build = TraceBuilder('REGION(A, "a", compute)', 1)
    build.span(0, "a", 0, 1)
    assert item_counts(Summary.of(build.trace()), SLOW_BLOCK, "nowhere") is None


def test_differences_between_the_ranks_of_calls_and_with_late_starts() -> None:
    one = Difference("send", False, By.RANK_OF_CALL, (0, 2), 1, 8.84, 1e6, 0.4)
    assert one.sentence == "send takes 8.8x as long on ranks 0, 2 as on the call's best: up to 40 %"
    late = replace(one, with_starts=True)
    assert (
        late.sentence
        == "send, 8.8x as long on ranks 0, 2, and late starts cost up to 40 % together"
    )
