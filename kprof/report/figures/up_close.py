"""Blocks up close: spans of a few are drawn, of all blocks of some ranks are data for the page."""

from __future__ import annotations

import base64
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from kprof.on_use import np, pd
from kprof.report.figures.base import CATEGORY_COLORS, Figure
from kprof.report.figures.ribbon import marks_within
from kprof.report.figures.svg import ROW_GAP, Drawing, TimeAxis, rows_with_time

if TYPE_CHECKING:
    import numpy.typing as npt

    from kprof.analysis import Finding
    from kprof.report.model import CallUpClose, Report

_TOP: Final = 24.0
_HIGH: Final = 17.0
# Bits of a byte.
_MOST_FINDINGS: Final = 8
_NONE: Final = 0xFFFF


@dataclass(frozen=True)
class _Call:
    """A call as the page's script reads it.

    `spans` are planes of `count` values, deflated, in base64: when a span began (ns since the
    call's start, 4 bytes) and how long it was (4), its row, its region and its peer (2 each, `none`
    for no peer), and a bit for each finding that it is part of (1). `about` says what is left out.
    """

    name: str
    since: str
    about: str
    length_ns: int
    count: int
    marks: tuple[tuple[int, int, int], ...]
    spans: str


@dataclass(frozen=True)
class _Data:
    """What the page's script draws: rows are (rank, block), `few` those of the drawing; regions are
    (name, category), `kinds` the categories, `findings` the numbers of those with bits."""

    width: float
    left: float
    rows: tuple[tuple[int, int], ...]
    few: tuple[int, ...]
    regions: tuple[tuple[str, str], ...]
    kinds: tuple[str, ...]
    findings: tuple[int, ...]
    calls: tuple[_Call, ...]
    none: int = _NONE


def gantt(report: Report) -> Figure | None:
    """The longest spans of a few blocks of two ranks, those of the first finding outlined."""
    spans, over = report.spans, report.focus
    if spans.empty:
        return None
    lanes = spans[["rank", "block"]].drop_duplicates().sort_values(["rank", "block"])
    pairs = [(int(rank), int(block)) for rank, block in lanes.to_numpy().tolist()]
    names = [f"rank {rank} block {block}" for rank, block in pairs]
    range_ns, since = (over.start_ns, over.end_ns), f"the start of {over.what}"
    drawing, axis, left = rows_with_time(names, _HIGH, range_ns, since, _TOP)
    kinds = [kind for kind in CATEGORY_COLORS if (spans["category"] == kind).any()]
    drawing.legend(left, 4, [(kind, kind) for kind in kinds])
    row_of = {pair: i for i, pair in enumerate(pairs)}
    its = next(filter(any, (guilty(finding, spans) for finding in report.findings)), None)
    _draw(drawing, axis, spans.assign(its=its if its is not None else False), row_of)
    data = _data(report, pairs, drawing.width, left) if report.calls_up_close else None
    return drawing.figure("gantt", f"Spans of single blocks over {over.what}", data)


def _draw(
    drawing: Drawing, axis: TimeAxis, spans: pd.DataFrame, row_of: dict[tuple[int, int], int]
) -> None:
    """One element for all spans of a category, and of what is nested as deep: a page of thousands
    of elements is slow, and where scripts run, they read the spans."""
    layers: dict[tuple[int, bool, str], list[tuple[float, float, float, float]]] = {}
    open_ends: dict[int, list[int]] = {}
    in_order = spans.sort_values(["start_ns", "end_ns"], ascending=[True, False])
    for span in in_order.to_dict("records"):
        row, start_ns, end_ns = (
            row_of[span["rank"], span["block"]],
            span["start_ns"],
            span["end_ns"],
        )
        ends = open_ends[row] = [end for end in open_ends.get(row, []) if end > start_ns]
        box = axis(start_ns), _TOP + row * _HIGH, axis(end_ns) - axis(start_ns), _HIGH - ROW_GAP
        layers.setdefault((len(ends), bool(span["its"]), span["category"]), []).append(box)
        ends.append(end_ns)
    for (_, is_guilty, category), boxes in sorted(layers.items()):
        drawing.rects(boxes, f"{category} guilty" if is_guilty else category)


def guilty(finding: Finding, spans: pd.DataFrame) -> npt.NDArray[np.bool_]:
    """Which spans are part of a finding: on its ranks and blocks, in its time, and of its region,
    or where it has none, those that do not wait."""
    if finding.where_ns is None or not (finding.region or finding.ranks or finding.blocks):
        return np.zeros(len(spans), dtype=bool)
    first_ns, last_ns = finding.where_ns
    is_its = (spans["start_ns"] < last_ns) & (spans["end_ns"] > first_ns)
    is_its &= (
        spans["region"] == finding.region
        if finding.region
        else ~spans["category"].isin(["wait", "sync"])
    )
    if finding.places:
        pairs = zip(spans["rank"].tolist(), spans["block"].tolist(), strict=True)
        is_its &= np.array([pair in finding.places for pair in pairs], dtype=bool)
    for column, numbers in (("rank", finding.ranks), ("block", finding.blocks)):
        if numbers:
            is_its &= spans[column].isin(numbers)
    return is_its.to_numpy(dtype=bool)


def _data(report: Report, few: list[tuple[int, int]], width: float, left: float) -> _Data:
    spans = pd.concat([call.spans for call in report.calls_up_close], ignore_index=True)
    places = spans[["rank", "block"]].drop_duplicates().to_numpy().tolist()
    rows = sorted({*few, *((int(rank), int(block)) for rank, block in places)})
    regions = spans[["region", "category"]].drop_duplicates().to_numpy().tolist()
    shown = [
        (number, finding)
        for number, finding in enumerate(report.findings[:_MOST_FINDINGS], start=1)
        if guilty(finding, spans).any()
    ]
    row_of = {place: i for i, place in enumerate(rows)}
    number_of = {name: i for i, (name, _) in enumerate(regions)}
    return _Data(
        width,
        left,
        tuple(rows),
        tuple(row_of[place] for place in few),
        tuple((str(name), str(category)) for name, category in regions),
        tuple(kind for kind in CATEGORY_COLORS if (spans["category"] == kind).any()),
        tuple(number for number, _ in shown),
        tuple(
            _call(report, call, row_of, number_of, [finding for _, finding in shown])
            for call in report.calls_up_close
        ),
    )


def _call(
    report: Report,
    call: CallUpClose,
    row_of: dict[tuple[int, int], int],
    number_of: dict[Any, int],
    findings: list[Finding],
) -> _Call:
    over = call.over
    spans = call.spans.assign(
        row=[row_of[int(r), int(b)] for r, b in call.spans[["rank", "block"]].to_numpy().tolist()]
    ).sort_values(["row", "start_ns"], kind="stable")
    bits = sum(guilty(finding, spans).astype(int) << i for i, finding in enumerate(findings))
    planes = (
        (spans["start_ns"] - over.start_ns, "<i4"),
        (spans["end_ns"] - spans["start_ns"], "<u4"),
        (spans["row"], "<u2"),
        (spans["region"].map(number_of), "<u2"),
        (spans["peer"].where(spans["peer"] >= 0, _NONE), "<u2"),
        (np.broadcast_to(bits, len(spans)), "u1"),
    )
    packed = zlib.compress(
        b"".join(np.asarray(plane).astype(kind).tobytes() for plane, kind in planes), 9
    )
    cut = f"the {len(spans):,} longest of {call.num_spans:,} spans"
    return _Call(
        call.name,
        over.what,
        cut if len(spans) < call.num_spans else f"{len(spans):,} spans",
        over.end_ns - over.start_ns,
        len(spans),
        tuple((n, a - over.start_ns, b - over.start_ns) for n, a, b in marks_within(report, over)),
        base64.b64encode(packed).decode(),
    )
