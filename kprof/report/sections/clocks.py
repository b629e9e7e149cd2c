"""Error bounds of the clocks, and what was not recorded."""

from __future__ import annotations

from typing import Any, Final

from kprof.analysis.wording import duration, members
from kprof.report.blocks import Block, Column, Depth, Paragraph, Tone
from kprof.report.machine import loss_rows, quality_rows
from kprof.report.model import Report
from kprof.report.sections import parts
from kprof.report.sections.parts import Figures, Of, table

# What a table of losses counts, by region and in all.
REGION_LOSSES: Final = ("dropped", "open", "saturated", "clamped", "unknown_region")
LOSSES: Final = (*REGION_LOSSES, "torn_chunks", "left_out_calls")


def clocks(report: Report, figures: Figures) -> list[Block]:
    """What each rank recorded and lost, and how certain its clock is."""
    del figures
    alignment = report.manifest.alignment
    bounds = {entry.rank: entry.bound_ns for entry in alignment.ranks} if alignment else {}
    rows = quality_rows(report)
    kept = sorted(range(len(rows)), key=lambda i: -bounds.get(rows[i]["rank"], 0.0))

    def bound(row: dict[Any, Any]) -> str:
        return duration(bounds[row["rank"]]) if row["rank"] in bounds else "-"

    quality = table(
        rows,
        parts.rank(),
        parts.words("host"),
        parts.words("device"),
        Of(Column("clock error bound"), bound),
        parts.number("events recorded", "recorded"),
        *map(parts.bad, LOSSES),
        about=_about_clocks(report),
        what="ranks",
        which="those that lost most, then those whose clocks are least certain",
        importance=tuple(sorted(kept, key=lambda i: -_num_lost(rows[i]))),
        depth=Depth.PAGE,
    )
    return [*quality, *_region_losses(report), *_unmatched(report)]


def _about_clocks(report: Report) -> str:
    manifest = report.manifest
    counts = "Events are spans, marks and values; other tables count spans."
    if manifest.alignment:
        clocks = (
            f"All ranks are on one clock ({manifest.alignment.method}, reference rank "
            f"{manifest.alignment.reference_rank}). A difference between two ranks that is smaller "
            "than the sum of their error bounds is written as <= that sum."
        )
    elif manifest.is_on_one_clock:
        clocks = "One rank: there is no second clock to compare with."
    else:
        why = f": {manifest.alignment_note}" if manifest.alignment_note else ""
        clocks = f"The clocks are not aligned{why}."
    missing = manifest.missing_ranks
    said = f"Missing: {members('rank', missing)}. " if missing else ""
    return f"{clocks} {said}{counts}"


def _region_losses(report: Report) -> list[Block]:
    losses = loss_rows(report)
    return table(
        losses,
        parts.rank(),
        parts.words("region"),
        *map(parts.bad, REGION_LOSSES),
        about="What was lost, by region.",
        which="those that lost most",
        importance=tuple(sorted(range(len(losses)), key=lambda i: -_num_lost(losses[i]))),
        depth=Depth.PAGE,
    )


def _unmatched(report: Report) -> list[Block]:
    number = int(report.tables["unmatched_flows"]["unmatched_sends"].sum())
    text = f"{number} sends have no recorded wait."
    return [Paragraph(text, tone=Tone.FINE, depth=Depth.PAGE)] if number else []


def _num_lost(row: dict[str, Any]) -> int:
    return sum(int(row.get(name, 0)) for name in LOSSES)
