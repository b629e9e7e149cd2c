"""The kernels of a call, by how much longer each makes it."""

from __future__ import annotations

from typing import Any, Final

from kprof.analysis.kernels import BETWEEN
from kprof.analysis.wording import duration, percent
from kprof.report.blocks import Block, Column, Paragraph
from kprof.report.model import Report
from kprof.report.sections import parts
from kprof.report.sections.parts import Figures, Of, table

# From this share on, the time between launches is said in a sentence.
_IS_MUCH: Final = 0.2


def kernels(report: Report, figures: Figures) -> list[Block]:
    """A row for each kernel, and one for what lies between launches; nothing of a single kernel."""
    del figures
    rows = report.rows("kernels")
    own = [row for row in rows if row["kernel"] != BETWEEN]
    if len(own) < 2 or not report.are_times_known:
        return []
    found = table(
        rows,
        Of(Column("kernel", is_text=True), lambda row: row["kernel"] or "(between launches)"),
        _known("launches", lambda row: f"{row['launches']:.3g}"),
        parts.time("time", "path_ns"),
        parts.share("of a call"),
        _known("median launch", lambda row: duration(row["median_ns"])),
        _known("programs", lambda row: f"{row['programs']:,.0f}"),
        _known("waves", lambda row: f"{row['waves']:.1f}"),
        _known("imbalance", lambda row: f"{row['imbalance']:.2f}x"),
        _known("tail", lambda row: duration(row["tail_ns"])),
        title="Kernels",
        about=_ABOUT,
        what="kernels",
        which="those that make a call longest",
    )
    return [*_between(rows), found]


_ABOUT: Final = (
    "Time: by how much a kernel makes a call longer, per rank and call. Of its median launch: "
    "programs (blocks), waves (programs over the most that ran at a time), imbalance (the longest "
    "program over the mean), tail (its end, with fewer than half of those running)."
)


def _known(name: str, cell: Any) -> Of:
    """A column that says nothing about the time between launches."""
    return Of(Column(name), lambda row: cell(row) if row["kernel"] != BETWEEN else "")


def _between(rows: list[dict[Any, Any]]) -> list[Block]:
    """What to do about the time between launches, where it is much."""
    between = next(row for row in rows if row["kernel"] == BETWEEN)
    if between["share"] < _IS_MUCH:
        return []
    text = (
        f"{percent(between['share'])} of a call ({duration(between['path_ns'])}) lies between "
        "launches: the GPU waits for the host there, or runs kernels that are not recorded. If it "
        "waits, a CUDA graph saves most of that: it launches a whole call at once "
        '(torch.compile has mode="reduce-overhead").'
    )
    return [Paragraph(text)]
