"""What `kprof diff` draws: a call of each side on one time axis, and a pair of bars per region."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from kprof.analysis.comparison import CALL, LAUNCH
from kprof.analysis.equivalence import Measure
from kprof.analysis.wording import duration, signed_percent
from kprof.on_use import pd
from kprof.report.figures.base import Figure, label, short
from kprof.report.figures.over_time import Lanes
from kprof.report.figures.svg import LETTER, WIDTH, Axis, Drawing, TimeAxis

MOST_RANKS: Final = 4
_MOST_REGIONS: Final = 12
_NAMES: Final = ("base", "candidate")
_COLUMNS: Final = ("base_ns", "candidate_ns")
_ONE_SIDED: Final = {"added": "candidate", "removed": "base"}
_TOP: Final = 26.0
_LANE: Final = 30.0
_GAP: Final = 3.0
# Between the sides.
_SPACE: Final = 12.0
_AXIS: Final = 36.0
_ROW: Final = 34.0
_BAR: Final = 11.0
# Of the text beside a bar: 18.1 us -> 38.8 us, +114 %.
_ROOM: Final = 210.0


def two_timelines(sides: Sequence[Lanes], ranks: Sequence[int]) -> Figure | None:
    """What these ranks do in a call of the base, and below in one of the candidate, from one
    start."""
    lengths = [side.over.end_ns - side.over.start_ns for side in sides]
    shown = [[rank for rank in ranks if rank in side.ranks] for side in sides]
    if not all(shown):
        return None
    names = [f"{_NAMES[1]}, rank {rank}" for rank in (*shown[0], *shown[1])]
    left = 14 + LETTER * max(map(len, names))
    bottom = _TOP + _LANE * len(names) + _SPACE
    drawing = Drawing(WIDTH, bottom + _AXIS)
    TimeAxis(0, max(lengths), left, WIDTH - 66).draw(drawing, _TOP, bottom, "the start of a call")
    drawing.legend(left, 4, dict(entry for side in sides for entry in side.legend).items())
    top = _TOP
    for side, name, its, length in zip(sides, _NAMES, shown, lengths, strict=True):
        start = side.over.start_ns
        axis = TimeAxis(start, start + max(lengths), left, WIDTH - 66)
        tops = {rank: top + i * _LANE for i, rank in enumerate(its)}
        side.draw(drawing, axis, tops, _LANE - _GAP)
        for rank, y in tops.items():
            drawing.text(left - 8, y + _LANE / 2 + 2, f"{name}, rank {rank}", "end")
        top, x = top + _LANE * len(its), axis(side.over.end_ns)
        drawing.line(x, top - _LANE * len(its) - 3, x, top, "hops")
        drawing.text(x + 6, top - _LANE * len(its) / 2 + 4, duration(length), kind="cell")
        top += _SPACE
    title = f"A call of the base, {duration(lengths[0])}, above one of the candidate, "
    return drawing.figure("two-timelines", title + duration(lengths[1]))


def region_changes(table: pd.DataFrame, categories: Mapping[str, str]) -> Figure | None:
    """Of the call and of every region: how long it takes on both sides, the largest change first.

    `table` is that of `kprof.analysis.diff`. A region's time is that of the level, mean or slowest
    block, at which it changed more.
    """
    rows = _rows(table)
    if not rows:
        return None
    names = [_name(row) for row in rows]
    left = 14 + LETTER * max(map(len, names))
    drawing = Drawing(WIDTH, _TOP + _ROW * len(rows))
    longest = max(row[column] for row in rows for column in _COLUMNS if row[column] > 0)
    drawing.legend(left, 4, [("work t3", "base"), ("work", "candidate")])
    for i, (row, name) in enumerate(zip(rows, names, strict=True)):
        top = _TOP + i * _ROW
        drawing.text(left - 8, top + 20, name, "end")
        kind = categories.get(row["region"], "work")
        axis = Axis(0.0, longest, left, WIDTH - _ROOM)
        for side, (column, tint) in enumerate(zip(_COLUMNS, (" t3", ""), strict=True)):
            if row[column] > 0:  # NaN on the side that has none
                y, wide = top + 4 + side * (_BAR + 1), axis(row[column]) - left
                drawing.rect(left, y, wide, _BAR, f"{kind}{tint}")
        end = axis(max(row[column] for column in _COLUMNS if row[column] > 0))
        drawing.text(end + 8, top + 20, label(_in_numbers(row)), kind="cell")
    title = "Time in the call and in every region, base above candidate"
    return drawing.figure("region-changes", title)


def _in_numbers(row: Mapping[Any, Any]) -> str:
    """18.1 us -> 38.8 us, +114 %; what did not change beyond noise says so."""
    verdict = row["verdict"]
    if verdict in _ONE_SIDED:
        side = _ONE_SIDED[verdict]
        return f"{verdict}: {duration(row[f'{side}_ns'])}"
    changed = signed_percent(row["change_share"]) if verdict in ("slower", "faster") else verdict
    return f"{duration(row['base_ns'])} → {duration(row['candidate_ns'])}, {changed}"


def _name(row: Mapping[Any, Any]) -> str:
    if row["level"] == CALL:
        return "a call"
    if row["level"] == LAUNCH:
        return f"a launch of {short(row['kernel'] or 'the kernel')}"
    return short(row["region"])


def _rows(table: pd.DataFrame) -> list[dict[Any, Any]]:
    """Calls, else launches; then of each region the row that changed most, changed ones first."""
    table = table[table["measure"] == Measure.MEDIAN.value]
    lengths = table[table["level"] == CALL]
    if lengths.empty:
        lengths = table[table["level"] == LAUNCH]
    regions = table[~table["level"].isin([CALL, LAUNCH])]
    order = regions.assign(
        is_still=regions["verdict"].isin(["same", "unclear"]), size=-regions["change_ns"].abs()
    ).sort_values(["is_still", "size"], kind="stable")
    first = order.drop_duplicates(["kernel", "region"]).head(_MOST_REGIONS)
    rows = [*lengths.to_dict("records"), *first.to_dict("records")]
    return [row for row in rows if any(row[column] > 0 for column in _COLUMNS)]
