"""Recordings with something missing or wrong: each has its banner, and what still stands is said."""

from __future__ import annotations

import io
from collections.abc import Callable

import msgspec
import pytest
from rich.console import Console

from kprof.analysis import DoubtKind, FindingKind
from kprof.capture.manifest import Manifest
from kprof.report import build
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
                builder.span(
                    rank=rank, launch=call, block=block, region=region,
                    start_ns=at + start, duration_ns=length, **fields,
                )  # fmt: skip
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
    assert (first.kind, first.cause.ranks, first.cause.blocks) == (FindingKind.SLOW, (1,), (2,))
    (banner,) = [doubt for doubt in report.found.doubts if doubt.kind is kind]
    said = {finding.kind for finding in report.found.findings}
    assert not said & banner.takes_out
    console = Console(width=1000, record=True, file=io.StringIO())
    console.print(render_terminal(report))
    text = " ".join(console.export_text().split())
    assert " ".join(banner.sentence.split()) in text
    assert first.sentence in text


@pytest.mark.parametrize(
    ("kind", "blocks"), [(DoubtKind.ONE_RANK, 4), (DoubtKind.ONE_BLOCK, 1)], ids=str
)
def test_one_rank_is_compared_with_itself(kind: DoubtKind, blocks: int) -> None:
    report = build(ring(WORK, ranks=1, blocks=blocks, slow_call=5))
    (first,) = report.found.findings
    assert first.cause.calls == (5,)
    assert kind in {doubt.kind for doubt in report.found.doubts}
