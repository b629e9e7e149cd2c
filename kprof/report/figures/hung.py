"""The waits that a hang left open: what came before on their tracks, then a hatched bar."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kprof.analysis.wording import duration
from kprof.on_use import pd
from kprof.report.figures.base import Figure, label
from kprof.report.figures.over_time import draw_span
from kprof.report.figures.svg import ROW_GAP, WIDTH, rows_with_time
from kprof.report.model import MOST_TRACKS

if TYPE_CHECKING:
    from kprof.report.model import Report

_ROW: Final = 19.0
_LEGEND: Final = 22
_BOLD_LETTER: Final = 7.0
# An open wait takes at least this part of the width, or its words would not fit.
_OPEN_SHARE: Final = 0.45


def open_waits(report: Report) -> Figure | None:
    """A row per track, from the begin of its launch on, on the clock of its rank."""
    waits = report.tables["open_waits"].head(MOST_TRACKS)
    if waits.empty:
        return None
    before = report.before_hang
    firsts = _firsts(before, waits, report.manifest.is_on_one_clock)
    rows = waits.to_dict("records")
    offsets = [int(row["start_ns"]) - firsts[row["rank"]] for row in rows]
    length = max(1, *offsets) / (1 - _OPEN_SHARE)
    since = "the first event of a call that hung"
    names = [_name(row) for row in rows]
    drawing, axis, left = rows_with_time(names, _ROW, (0, length), since, _LEGEND)
    kinds = sorted(set(before["category"]))
    drawing.legend(left, 4, [*((kind, kind) for kind in kinds), ("still", "still waiting")])
    for i, wait in enumerate(rows):
        y, height = _LEGEND + i * _ROW, _ROW - ROW_GAP
        its = _of_track(before, wait)
        its[["start_ns", "end_ns"]] -= firsts[wait["rank"]]
        for row in its.to_dict("records"):
            draw_span(drawing, axis, row, y, height)
        x = axis(offsets[i])
        drawing.rect(x, y, WIDTH - 16 - x, height, "still", label(", ".join(_words(wait))))
        drawing.text(x + 6, y + height - 4, _fitting(_words(wait), WIDTH - 28 - x), kind="on-still")
    return drawing.figure("open-waits", "Waits that never ended, and what came before them")


def _firsts(before: pd.DataFrame, waits: pd.DataFrame, is_on_one_clock: bool) -> dict[int, int]:
    """Where the time axis of each rank begins."""
    both = pd.concat([before[["rank", "start_ns"]], waits[["rank", "start_ns"]]])
    if is_on_one_clock:
        return dict.fromkeys(both["rank"].tolist(), int(both["start_ns"].min()))
    return {int(str(rank)): int(ns) for rank, ns in both.groupby("rank")["start_ns"].min().items()}


def _of_track(spans: pd.DataFrame, wait: dict[Any, Any]) -> pd.DataFrame:
    is_its = spans["start_ns"] <= wait["start_ns"]
    for name in ("rank", "block", "warp"):
        is_its &= spans[name] == wait[name]
    return spans[is_its].copy()


def _name(row: dict[Any, Any]) -> str:
    warp = f" warp {row['warp']}" if row["warp"] >= 0 else ""
    return f"rank {row['rank']} block {row['block']}{warp}"


def _words(wait: dict[Any, Any]) -> list[str]:
    """What is known of a wait, the most important last."""
    goal = [f"for rank {wait['peer']}"] if wait["peer"] >= 0 else []
    slot = [f"slot {wait['slot']}"] if wait["slot"] >= 0 else []
    age = f"still waiting after {duration(wait['waited_ns'])}"
    return [str(wait["region"]), *goal, *slot, age]


def _fitting(words: list[str], width: float) -> str:
    """As many of the last words as there is room for; the pointer shows all."""
    for first in range(len(words)):
        text = ", ".join(words[first:])
        if len(text) * _BOLD_LETTER <= width:
            return label(text)
    return ""
