"""Error bounds of the clocks, and what was not recorded."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from kprof.analysis.wording import duration, members
from kprof.report.blocks import Block, Cell, Depth, Paragraph, Table, Tone
from kprof.report.machine import loss_rows, quality_rows
from kprof.report.sections.parts import Figures, numbers, texts

if TYPE_CHECKING:
    from kprof.report.model import Report

# What a table of losses counts, by region and in all.
REGION_LOSSES: Final = ("dropped", "open", "saturated", "clamped", "unknown_region")
LOSSES: Final = (*REGION_LOSSES, "torn_chunks")


def clocks(report: Report, figures: Figures) -> list[Block]:
    """What each rank recorded and lost, and how certain its clock is."""
    del figures
    alignment = report.manifest.alignment
    bounds = {entry.rank: entry.bound_ns for entry in alignment.ranks} if alignment else {}
    quality = quality_rows(report)
    columns = (
        *numbers("rank"),
        *texts("host", "device"),
        *numbers("clock error bound", "events recorded", *map(_spaced, LOSSES)),
    )
    rows = tuple(
        (
            str(row["rank"]),
            row["host"],
            row["device"],
            duration(bounds[row["rank"]]) if row["rank"] in bounds else "-",
            f"{row['recorded']:,}",
            *_lost(row, LOSSES),
        )
        for row in quality
    )
    kept = sorted(range(len(rows)), key=lambda i: -bounds.get(quality[i]["rank"], 0.0))
    table = Table(
        columns,
        rows,
        about=_about_clocks(report),
        what="ranks",
        which="those that lost most, then those whose clocks are least certain",
        importance=tuple(sorted(kept, key=lambda i: -_num_lost(quality[i]))),
        depth=Depth.PAGE,
    )
    return [table, *_region_losses(report), *_unmatched(report)]


def _about_clocks(report: Report) -> str:
    manifest, counts = (
        report.manifest,
        "Events are spans, marks and values; other tables count spans.",
    )
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
    if not losses:
        return []
    return [
        Table(
            (*numbers("rank"), *texts("region"), *numbers(*map(_spaced, REGION_LOSSES))),
            tuple((str(row["rank"]), row["region"], *_lost(row, REGION_LOSSES)) for row in losses),
            about="What was lost, by region.",
            which="those that lost most",
            importance=tuple(sorted(range(len(losses)), key=lambda i: -_num_lost(losses[i]))),
            depth=Depth.PAGE,
        )
    ]


def _unmatched(report: Report) -> list[Block]:
    number = int(report.tables["unmatched_flows"]["unmatched_sends"].sum())
    text = f"{number} sends have no recorded wait."
    return [Paragraph(text, tone=Tone.FINE, depth=Depth.PAGE)] if number else []


def _spaced(name: str) -> str:
    return name.replace("_", " ")


def _lost(row: dict[str, Any], names: Iterable[str]) -> list[str | Cell]:
    numbers = [row[name] for name in names]
    return [Cell(f"{number:,}", "bad") if number else "0" for number in numbers]


def _num_lost(row: dict[str, Any]) -> int:
    return sum(int(row.get(name, 0)) for name in LOSSES)
