"""Calls with more events than are replayed: some blocks of every rank stand for all."""

from __future__ import annotations

import numpy as np

from kprof.analysis.findings.doubt import Doubt, DoubtKind
from kprof.analysis.findings.finding import RestsOn
from kprof.analysis.findings.thresholds import LEAST_BLOCKS, TO_SPARE
from kprof.analysis.replay import load
from kprof.analysis.summary import Summary
from kprof.analysis.wording import counted


def some_blocks(summary: Summary) -> tuple[Summary, Doubt] | None:
    """The part of a run with as many blocks as can be replayed, evenly spread over their numbers,
    and the doubt that says so.

    None where not even two fit, and where blocks were selected already.
    """
    if summary.trace.selection.blocks is not None:
        return None
    table = summary.frame(
        """SELECT block, sum(events) / (SELECT count(DISTINCT ordinal) FROM spans_of_launches)
            AS events FROM tracks GROUP BY block ORDER BY block"""
    )
    share = TO_SPARE * load.MAX_SPANS_OF_CALL / max(1.0, float(table["events"].sum()))
    wanted = int(share * len(table))
    if not LEAST_BLOCKS <= wanted < len(table):
        return None
    rows = np.linspace(0, len(table) - 1, wanted).round().astype(int)
    blocks = [int(block) for block in table["block"].iloc[np.unique(rows)].tolist()]
    return summary.select(blocks=blocks), Doubt(
        DoubtKind.NOT_REPLAYED,
        f"A call has more events than are replayed: {counted(len(blocks), 'block', 'blocks')} of "
        f"{len(table):,} stand for all; waits for other blocks keep their length",
        "select ranks that exchange data, or blocks (--ranks, --blocks), to look at others",
        frozenset({RestsOn.ALL_BLOCKS}),
        is_grave=True,
        evidence={"blocks": blocks, "of_blocks": len(table)},
    )
