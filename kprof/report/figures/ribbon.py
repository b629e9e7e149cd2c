"""The wait ribbon: a row per rank, in the colour of the rank that its blocks wait for.

Own work is grey, so a rank that all others wait for is the grey row among rows of its colour. The
drawing is complete without scripts; `ribbon.js.j2` draws the same cells again, and answers.
"""

from __future__ import annotations

import base64
import struct
import zlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from kprof.analysis.ribbon import NOBODY, Ribbon
from kprof.on_use import np
from kprof.report.figures.base import Figure
from kprof.report.figures.over_time import MAX_LANES
from kprof.report.figures.svg import LETTER, WIDTH, Drawing, TimeAxis, num

if TYPE_CHECKING:
    import numpy.typing as npt

    from kprof.analysis.timeline import Focus
    from kprof.report.model import Report

# On white and on black: the ranks that others wait for most, the worst first; then the rest, which
# are other ranks, the rank's own blocks, or nobody (a lock); own work.
CULPRITS: Final = (
    ("#f44713", "#ff6131"),
    ("#0061eb", "#168cf9"),
    ("#f1b80f", "#f1c029"),
    ("#3e178a", "#5e23ea"),
    ("#5c4c08", "#9b5201"),
    ("#48bdf6", "#50caff"),
    ("#ab4490", "#79039b"),
    ("#4a1f04", "#8d738c"),
)
REST: Final = ("#8f9990", "#abaca6")
OWN: Final = ("#d5dae1", "#3a4350")
REST_NAME: Final = "another rank, or none"
# Names of the page's colours.
RIBBON_COLORS: Final = {
    **{f"culprit-{i}": pair for i, pair in enumerate(CULPRITS)},
    "culprit-rest": REST,
    "own": OWN,
}
# Fine enough for eyes, coarse enough for a page with a thousand ranks.
_LEVELS: Final = 32
OPACITY: Final = 0.4
_TOP: Final = 46
_AXIS: Final = 36
_FEW_HIGH: Final = 26.0
_LEAST_HEIGHT: Final = 312.0
# A finding's mark as wide as this has room for the word.
_ROOM: Final = 60.0
_LABEL_EVERY: Final = 13
_MOST_NAMED: Final = int(_LEAST_HEIGHT)
# Of a culprit in the page's data: none.
_NONE: Final = 0xFFFF


@dataclass(frozen=True)
class _Data:
    """What the page's script draws from, in the drawing's units: its width, where the cells begin,
    and how high they are; the legend as (class, name).

    `cells` are five planes of rows x bins, deflated, in base64: for whom most of a row wait and for
    whom second most (two bytes each, `none` for no rank), the shares of both and of what runs
    (a byte each, in `levels`). `path` are (ns, row), `marks` (finding, from, to in ns).
    """

    width: float
    left: float
    high: float
    legend: tuple[tuple[str, str], ...]
    rows: tuple[int, ...]
    bins: int
    bin_ns: int
    length_ns: int
    hues: tuple[int, ...]
    path: tuple[tuple[int, int], ...]
    marks: tuple[tuple[int, int, int], ...]
    cells: str
    since: str
    levels: int = _LEVELS
    opacity: float = OPACITY
    none: int = _NONE


def hues(drawn: Ribbon) -> dict[int, int]:
    """The ranks that have a colour of their own, by the number of the colour."""
    return {rank: i for i, rank in enumerate(drawn.worst[: len(CULPRITS)])}


def rgb(color: str) -> tuple[int, int, int]:
    """The parts of "#rrggbb"."""
    red, green, blue = bytes.fromhex(color[1:])
    return red, green, blue


def color_of(drawn: Ribbon) -> npt.NDArray[np.uint8]:
    """The colour of every cell on white: rows x bins x (r, g, b, opacity).

    Own work, as opaque as the share of the row's tracks that run, and over it the colour of whom
    most of them wait for, as opaque as their share. Opacity grows faster than a share at first, so
    that an eighth of the blocks is seen.
    """
    colors = [light for light, _ in (*CULPRITS, REST)]
    palette = np.array([rgb(color) for color in colors], dtype=np.float64)
    over = _level(drawn.shares[..., 0])[..., None] ** OPACITY
    under = _level(drawn.present)[..., None] ** OPACITY
    opacity = over + under * (1 - over)
    own = np.array(rgb(OWN[0]), dtype=np.float64)
    mixed = palette[_palette_index(drawn)[..., 0]] * over + own * under * (1 - over)
    mixed /= np.maximum(opacity, 1e-9)
    pixels: npt.NDArray[np.uint8] = np.concatenate([mixed, 255 * opacity], axis=2).round()
    return pixels.astype(np.uint8)


def _palette_index(drawn: Ribbon) -> npt.NDArray[Any]:
    """Which of the colours stands for each culprit: its own, or REST."""
    table = np.full(int(drawn.culprits.max(initial=0)) + 1, len(CULPRITS))
    for rank, hue in hues(drawn).items():
        table[rank] = hue
    ranks = np.array([rank for rank, _ in drawn.rows]).reshape(-1, 1, 1)
    is_within = (drawn.culprits == NOBODY) | (drawn.culprits == ranks)
    known = table[np.maximum(drawn.culprits, 0)]
    return np.where(is_within, len(CULPRITS), known)


def kind_shares(drawn: Ribbon) -> npt.NDArray[np.float32]:
    """The share of tracks that wait, by what the colour stands for: rows x bins x colours."""
    found = np.zeros((*drawn.present.shape, len(CULPRITS) + 1), dtype=np.float32)
    row, at, which = np.nonzero(drawn.shares)
    kinds = _palette_index(drawn)[row, at, which]
    np.add.at(found, (row, at, kinds), drawn.shares[row, at, which])
    return found


def _level(share: npt.NDArray[np.float32]) -> npt.NDArray[Any]:
    """A share as one of few steps; only nothing at all is 0."""
    return np.ceil(share * _LEVELS - 1e-3) / _LEVELS


def png(pixels: npt.NDArray[np.uint8]) -> bytes:
    """A PNG file of rows x columns x (r, g, b, opacity)."""
    height, width, _ = pixels.shape
    # Every row of the file begins with a byte: 0, its pixels are as they are.
    rows = np.zeros((height, 1 + 4 * width), dtype=np.uint8)
    rows[:, 1:] = pixels.reshape(height, -1)
    head = struct.pack(">IIBBBBB", width, height, 8, 6, 0, 0, 0)
    chunks = ((b"IHDR", head), (b"IDAT", zlib.compress(rows.tobytes(), 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        for name, data in chunks
    )


def ribbon(report: Report) -> Figure | None:
    """Rows of ranks over the call that figures show, with the critical path and the findings."""
    drawn = report.ribbon
    if drawn is None or not (drawn.shares.any() or len(drawn.rows) > MAX_LANES):
        return None
    drawn = _with_the_worst_above(drawn)
    names = [f"rank {rank}" for rank, _ in drawn.rows]
    height = max(1.0, min(_FEW_HIGH, _LEAST_HEIGHT / len(names)))
    left = 30 + LETTER * max(map(len, names))
    bottom = _TOP + height * len(names)
    drawing = Drawing(WIDTH, bottom + _AXIS)
    axis = TimeAxis(drawn.over.start_ns, drawn.over.end_ns, left, WIDTH - 8)
    legend = _legend(drawn)
    drawing.text(0, 14, "waits for rank")
    drawing.legend(92, 4, legend)
    axis.draw(drawing, _TOP, bottom, f"the start of {drawn.over.what}")
    _names(drawing, drawn, names, left, height)
    points = _hops(report, drawn)
    box = left, _TOP, WIDTH - 8 - left, height * len(names)
    drawing.add(_cells(drawn, axis, box, points))
    marks = marks_within(report, drawn.over)
    for number, first, last in marks:
        _mark(drawing, axis, number, first, last)
    title = f"For whom the blocks of every rank wait over {drawn.over.what}"
    return drawing.figure("ribbon", title, _data(drawn, box, legend, points, marks))


def _with_the_worst_above(drawn: Ribbon) -> Ribbon:
    """Of more ranks than have room for their names, the worst culprits come first, so often that
    they have; then all."""
    ranks = [rank for rank, _ in drawn.rows]
    if len(ranks) <= _MOST_NAMED:
        return drawn
    above = [ranks.index(rank) for rank in hues(drawn) if rank in ranks]
    rows = [row for row in above for _ in range(_LABEL_EVERY)] + list(range(len(ranks)))
    return replace(
        drawn,
        rows=tuple(drawn.rows[row] for row in rows),
        culprits=drawn.culprits[rows],
        shares=drawn.shares[rows],
        present=drawn.present[rows],
    )


def _legend(drawn: Ribbon) -> tuple[tuple[str, str], ...]:
    """What the colours stand for: (class, name)."""
    known = hues(drawn)
    entries = [(f"culprit-{hue}", str(rank)) for rank, hue in known.items()]
    cells = _palette_index(drawn)[drawn.shares > 0]
    if (cells == len(CULPRITS)).any():
        entries.append(("culprit-rest", REST_NAME))
    return (*entries, ("own", "own work"))


def _names(drawing: Drawing, drawn: Ribbon, names: list[str], left: float, height: float) -> None:
    """The name of every row that has room for it, with the colour that others wear for it."""
    known = hues(drawn)
    every = max(1, round(_LABEL_EVERY / height + 0.49))
    # The rows that repeat a culprit's; the name stands beside their middle.
    above = len(names) - len(set(names))
    for i, (rank, _) in enumerate(drawn.rows):
        y = _TOP + (i + 0.5) * height
        if i % every == 0 and (i != above or above == 0):
            middle = y + height * (every - 1) / 2 if i < above else y
            drawing.text(left - 18, middle + 4, names[i], "end")
        if rank in known:
            high = min(11.0, height)
            drawing.rect(left - 14, y - high / 2, 10, high, f"culprit-{known[rank]}")


def _cells(
    drawn: Ribbon, axis: TimeAxis, box: tuple[float, ...], points: list[tuple[int, int]]
) -> str:
    """The cells as a picture of one pixel each, with the critical path over it."""
    x, y, width, height = box
    num_rows, bins = drawn.present.shape
    # The last bin may reach beyond the end.
    wide = (axis.high - axis.low) / drawn.bin_ns
    data = base64.b64encode(png(color_of(drawn))).decode()
    lines = (
        "".join(f'<path class="between" d="M0 {i}H{bins}"/>' for i in range(1, num_rows))
        if height / num_rows >= 8
        else ""
    )
    d = "".join(
        f"{'M' if i == 0 else 'L'}{num(10 * at / drawn.bin_ns)} {num(10 * row + 5)}"
        for i, (at, row) in enumerate(points)
    )
    path = (
        f'<g transform="scale(.1)"><path class="halo" d="{d}"/><path class="hops" d="{d}"/></g>'
        if points
        else ""
    )
    return (
        f'<svg class="cells" x="{num(x)}" y="{num(y)}" width="{num(width)}" '
        f'height="{num(height)}" viewBox="0 0 {wide:.3f} {num_rows}" preserveAspectRatio="none">'
        f'<image width="{bins}" height="{num_rows}" preserveAspectRatio="none" '
        f'href="data:image/png;base64,{data}"/>{lines}{path}</svg>'
    )


def _hops(report: Report, drawn: Ribbon) -> list[tuple[int, int]]:
    """The critical path as a line: (ns since the start, row), two points for each stay on a row."""
    row_of = {rank: i for i, (rank, _) in enumerate(drawn.rows)}
    points: list[tuple[int, int]] = []
    for segment in report.rows("critical_path"):
        row = row_of.get(segment["rank"])
        if row is None:
            continue
        first = int(segment["start_ns"]) - drawn.over.start_ns
        last = int(segment["end_ns"]) - drawn.over.start_ns
        if len(points) > 1 and points[-1][1] == row:
            points[-1] = last, row
        else:
            points += [(first, row), (last, row)]
    return points


def marks_within(report: Report, over: Focus) -> list[tuple[int, int, int]]:
    """Findings that this part of the trace shows: number, from and to in ns."""
    return [
        (number, max(finding.where_ns[0], over.start_ns), min(finding.where_ns[1], over.end_ns))
        for number, finding in enumerate(report.findings, start=1)
        if finding.where_ns
        and finding.where_ns[0] < over.end_ns
        and finding.where_ns[1] > over.start_ns
    ]


def _mark(drawing: Drawing, axis: TimeAxis, number: int, first_ns: int, last_ns: int) -> None:
    """A bracket over the stretch that shows a finding."""
    first, last = axis(first_ns), axis(last_ns)
    drawing.path(f"M{num(first)} {_TOP - 3}V{_TOP - 8}H{num(last)}V{_TOP - 3}", "ruler")
    name = f"finding {number}" if last - first > _ROOM else str(number)
    drawing.text((first + last) / 2, _TOP - 11, name, "middle", "fine")


def _data(
    drawn: Ribbon,
    box: tuple[float, ...],
    legend: tuple[tuple[str, str], ...],
    points: list[tuple[int, int]],
    marks: list[tuple[int, int, int]],
) -> _Data:
    shares = np.rint(_LEVELS * _level(drawn.shares[..., :2])).astype(np.uint8)
    ranks = np.where(drawn.culprits[..., :2] == NOBODY, _NONE, drawn.culprits[..., :2])
    ranks = np.where(shares > 0, ranks, 0).astype("<u2")
    present = np.rint(_LEVELS * _level(drawn.present)).astype(np.uint8)
    planes = [ranks[..., 0], ranks[..., 1], shares[..., 0], shares[..., 1], present]
    packed = zlib.compress(b"".join(plane.tobytes() for plane in planes), 9)
    start_ns = drawn.over.start_ns
    return _Data(
        width=WIDTH,
        left=box[0],
        high=box[3],
        legend=legend,
        rows=tuple(rank for rank, _ in drawn.rows),
        bins=drawn.present.shape[1],
        bin_ns=drawn.bin_ns,
        length_ns=drawn.over.end_ns - start_ns,
        hues=tuple(hues(drawn)),
        path=tuple(points),
        marks=tuple((number, first - start_ns, last - start_ns) for number, first, last in marks),
        cells=base64.b64encode(packed).decode(),
        since=drawn.over.what,
    )
