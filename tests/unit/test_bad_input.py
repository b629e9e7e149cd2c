"""Recordings with something missing or wrong: each has its banner, and what still stands is said."""

from __future__ import annotations

import html
import io
import itertools
import re
from collections.abc import Callable

import msgspec
import pytest
from rich.console import Console

from kprof.analysis import DoubtKind, Summary, find
from kprof.analysis.findings import LimitKind
from kprof.capture.manifest import Manifest
from kprof.report import Report, build
from kprof.report.page import to_html
from kprof.report.terminal import render_terminal
from kprof.trace import Trace
from synthetic import TraceBuilder

WORK = 'REGION(R_WORK, "work", compute)\n'
SEND = 'REGION(R_SEND, "send", send, peer:8, slot:8)\n'
WAIT = 'REGION(R_WAIT, "wait", wait, peer:8, slot:8)\n'
FLOW = "FLOW(R_SEND, R_WAIT)\n"
SLOW_PLACE = (1, 2)
ITEMS = 5


def ring(
    regions: str = WORK + SEND + WAIT + FLOW,
    ranks: int = 3,
    blocks: int = 4,
    calls: int = 8,
    slow_call: int = -1,
    is_aligned: bool = True,
    off_ns: int = 0,
    change: Callable[[Manifest], Manifest] = lambda manifest: manifest,
) -> Trace:
    """Every block works, sends to the next rank, and waits for the one before; one block takes four
    times as long, or all do in one call. The last rank's clock is off."""
    builder = TraceBuilder(regions, ranks, is_aligned=is_aligned)
    for call in range(calls):
        builder.launch(call, "ring", num_blocks=blocks)
        works = {
            (rank, block): 40_000 if (rank, block) == SLOW_PLACE or call == slow_call else 10_000
            for rank in range(ranks)
            for block in range(blocks)
        }
        for (rank, block), work in works.items():
            at = 1_000_000 * (call + 1) - (off_ns if rank == ranks - 1 else 0)
            before, after = (rank - 1) % ranks, (rank + 1) % ranks
            arrives = max(work + 1000, works[before, block] + 1500)
            spans: list[tuple[str, int, int, dict[str, int]]] = [
                ("work", item * work // ITEMS, work // ITEMS, {}) for item in range(ITEMS)
            ]
            if "R_SEND" in regions:
                spans.append(("send", work, 1000, {"peer": after, "slot": block}))
            if "R_WAIT" in regions:
                waiting = arrives + 300 - work - 1000
                spans.append(("wait", work + 1000, waiting, {"peer": before, "slot": block}))
            for region, start, length, fields in spans:
                builder.span(rank, region, at + start, length, launch=call, block=block, **fields)
    return Trace.from_table(change(builder.manifest()), builder.table())


def with_losses(manifest: Manifest) -> Manifest:
    """A twentieth of the events of every rank are lost."""
    infos = []
    for info in manifest.ranks:
        counts = msgspec.structs.replace(info.counts, dropped=info.counts.recorded // 20)
        infos.append(msgspec.structs.replace(info, counts=counts))
    return msgspec.structs.replace(manifest, ranks=tuple(infos))


def guessed(manifest: Manifest) -> Manifest:
    """As an import leaves it."""
    return msgspec.structs.replace(manifest, guesses=("categories are guessed from names",))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "trace"),
    [
        (DoubtKind.ONE_CALL, lambda: ring(calls=1)),
        (DoubtKind.NO_FLOWS, lambda: ring(WORK + SEND + WAIT)),
        (DoubtKind.NO_WAITS, lambda: ring(WORK + SEND)),
        (DoubtKind.UNALIGNED_CLOCKS, lambda: ring(is_aligned=False)),
        (DoubtKind.CAUSALITY, lambda: ring(off_ns=30_000)),
        (DoubtKind.LOST_EVENTS, lambda: ring(change=with_losses)),
        (DoubtKind.GUESSED_METADATA, lambda: ring(change=guessed)),
    ],
    ids=lambda value: value.value if isinstance(value, DoubtKind) else "",
)
def test_a_slow_block_stands_under_every_banner(
    kind: DoubtKind, trace: Callable[[], Trace]
) -> None:
    report = build(trace())
    first = report.found.findings[0]
    assert (first.kind.name, first.ranks, first.blocks) == ("slow", (1,), (2,))
    (banner,) = [doubt for doubt in report.found.doubts if doubt.kind is kind]
    said = {finding.kind.name for finding in report.found.findings}
    assert not said & banner.takes_out
    text = text_of(report)
    assert " ".join(banner.sentence.split()) in text
    assert first.sentence in text


@pytest.mark.parametrize(("region", "is_said"), [("ring", False), ("load", True)])
def test_kernels_that_others_made_cannot_record_their_waits(region: str, is_said: bool) -> None:
    """As --inductor records them: one span for a whole program, with the name of its kernel."""
    builder = TraceBuilder(f'REGION(R_WORK, "{region}", compute)', 1)
    for call, block in itertools.product(range(6), range(4)):
        builder.launch(call, "ring", num_blocks=4)
        builder.span(0, region, 100_000 * call + 10 * block, 10_000, launch=call, block=block)
    said = {each.kind for each in find(Summary.of(builder.trace())).doubts}
    assert (DoubtKind.NO_WAITS in said) is is_said


def of_two_ranks(manifest: Manifest) -> Manifest:
    """The other one was not recorded."""
    return msgspec.structs.replace(manifest, world_size=2, missing_ranks=(1,))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "blocks"), [(DoubtKind.ONE_RANK, 4), (DoubtKind.ONE_BLOCK, 1)], ids=str
)
def test_one_rank_is_compared_with_itself(kind: DoubtKind, blocks: int) -> None:
    report = build(ring(WORK, ranks=1, blocks=blocks, slow_call=5, change=of_two_ranks))
    (first,) = report.found.findings
    assert first.calls == (5,)
    assert "All ranks" not in first.sentence
    assert [doubt.is_grave for doubt in report.found.doubts if doubt.kind is kind] == [False]


def test_one_rank_that_was_selected_was_not_the_only_one_recorded() -> None:
    report = build(ring(WORK, slow_call=5).select(ranks="0"))
    (banner,) = [doubt for doubt in report.found.doubts if doubt.kind is DoubtKind.ONE_RANK]
    assert banner.sentence.startswith("Only one rank was selected")
    assert banner.remedy.startswith("select all ranks")


def on_two_cores(manifest: Manifest) -> Manifest:
    """As the CPU target records it on a small machine."""
    infos = [msgspec.structs.replace(i, target="cpu", num_cores=2) for i in manifest.ranks]
    return msgspec.structs.replace(manifest, ranks=tuple(infos))


def test_a_run_on_too_few_cores_opens_without_any_time() -> None:
    """Neither the slow block nor what waits for it can be told from the scheduler's doing."""
    report = build(ring(slow_call=5, change=on_two_cores))
    assert report.found.headline == "All ranks have about as many events in every region"
    first_screen = {
        "terminal": text_of(report).partition("Ranks ")[0],
        "page": words_of(to_html(report)).partition("Findings in detail the evidence")[0],
    }
    for name, text in first_screen.items():
        assert "timings reflect OS scheduling; only counts are reliable" in text, name
        assert not re.search(r"\d (ns|us|ms|s|%)(?!\w)", text), (name, text)


BARRIER = 'REGION(R_WORK, "work", compute)\nREGION(R_MEET, "meet", sync)\n'


@pytest.mark.slow
@pytest.mark.parametrize(("target", "is_said"), [("cuda", True), ("cpu", False)])
def test_blocks_that_take_turns_on_a_core_say_nothing_about_a_barrier(
    target: str, is_said: bool
) -> None:
    """The CPU target runs all blocks of a rank on one core, one after the other."""
    builder = TraceBuilder(BARRIER, 1)
    for call, block in itertools.product(range(4), range(4)):
        builder.launch(call, "meet", num_blocks=4)
        at, work = 100_000 * call, 2000 + 7000 * ((block + call) % 4)
        for region, start, length in (("work", 0, work), ("meet", work, 24_000 - work)):
            builder.span(0, region, at + start, length, launch=call, block=block)  # fmt: skip
    report = build(builder.trace({"target": target, "num_cores": 2}))
    limits = {limit.kind for limit in report.found.rest.limits}
    assert (LimitKind.BARRIER in limits) == is_said
    assert ("All blocks wait at meet" in text_of(report)) == is_said


def text_of(report: Report) -> str:
    console = Console(width=1000, record=True, file=io.StringIO())
    console.print(render_terminal(report))
    return " ".join(console.export_text().split())


def words_of(page: str) -> str:
    """What a reader sees of a page, without its figures."""
    body = page[page.index("<body") :]
    body = re.sub(r"<(script|style|svg)\b.*?</\1>", " ", body, flags=re.DOTALL)
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", body)).split())
