"""Drawing: rectangles, steps and texts in one SVG element.

Colours are classes of the page's style sheet, so that a drawing follows light, dark and print.
What is drawn is there without scripts; a `tip` shows where the pointer rests.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from kprof.report.figures.base import Figure, label, short, ticks, unit_of

WIDTH: Final = 1000
HALF: Final = 490
# Of the font that figures are written in, in pixels: wide enough for digits and most letters.
LETTER: Final = 6.4
ROW_GAP: Final = 2
_AXIS_HEIGHT: Final = 36
_PIXELS_PER_TICK: Final = 90


def num(value: float) -> str:
    """A coordinate: a tenth of a pixel is as much as eyes can see."""
    return f"{value:.1f}".removesuffix(".0")


class Drawing:
    """An SVG element in the making; y grows downwards."""

    def __init__(self, width: float, height: float) -> None:
        self.width, self.height = width, height
        self._parts: list[str] = []

    def rect(
        self, x: float, y: float, width: float, height: float, kind: str, tip: str = ""
    ) -> None:
        """A filled rectangle of the class `kind`; `tip` is text, already escaped."""
        shape = (
            f'<rect class="{kind}" x="{num(x)}" y="{num(y)}" width="{num(max(width, 0.4))}" '
            f'height="{num(height)}"'
        )
        self._parts.append(f"{shape}><title>{tip}</title></rect>" if tip else f"{shape}/>")

    def rects(self, boxes: Iterable[tuple[float, float, float, float]], kind: str) -> None:
        """Many filled rectangles (x, y, width, height) of one class, as one element."""
        self.path(
            "".join(
                f"M{num(x)} {num(y)}h{num(max(width, 0.4))}v{num(height)}H{num(x)}z"
                for x, y, width, height in boxes
            ),
            kind,
        )

    def text(self, x: float, y: float, text: str, anchor: str = "start", kind: str = "") -> None:
        """A line of text, already escaped; `y` is where its letters stand."""
        extra = "".join(
            f' {name}="{value}"'
            for name, value in (("text-anchor", anchor), ("class", kind))
            if value not in ("", "start")
        )
        self._parts.append(f'<text x="{num(x)}" y="{num(y)}"{extra}>{text}</text>')

    def path(self, d: str, kind: str) -> None:
        """Any outline."""
        self._parts.append(f'<path class="{kind}" d="{d}"/>')

    def line(self, x1: float, y1: float, x2: float, y2: float, kind: str = "grid") -> None:
        """A thin line."""
        self.path(f"M{num(x1)} {num(y1)}L{num(x2)} {num(y2)}", kind)

    def add(self, element: str) -> None:
        """A finished element."""
        self._parts.append(element)

    def legend(self, x: float, y: float, entries: Iterable[tuple[str, str]]) -> None:
        """Coloured squares with names, (class, escaped name), in one line from `x` on."""
        for kind, name in entries:
            self.rect(x, y, 11, 11, kind)
            self.text(x + 16, y + 10, name)
            x += 16 + LETTER * len(name) + 16

    def figure(self, name: str, title: str, data: object = None) -> Figure:
        """The finished element; `title` says what it shows to those who do not see it."""
        half = ' class="half"' if self.width == HALF else ""
        svg = (
            f'<svg viewBox="0 0 {num(self.width)} {num(self.height)}" role="img" '
            f'aria-label="{label(title)}"{half}>{"".join(self._parts)}</svg>'
        )
        return Figure(name, title, svg, data)


class Axis:
    """From values to pixels along x."""

    def __init__(self, low: float, high: float, left: float, right: float) -> None:
        self.low, self.high, self.left, self.right = low, max(high, low + 1e-9), left, right

    def __call__(self, value: float) -> float:
        """The pixel of a value; what lies outside is drawn at the edge."""
        share = (value - self.low) / (self.high - self.low)
        return self.left + min(1.0, max(0.0, share)) * (self.right - self.left)

    def ticks(self, *, whole: bool = False) -> list[float]:
        """Where numbers stand: as many as fit."""
        most = max(2, int((self.right - self.left) / _PIXELS_PER_TICK))
        return ticks(self.low, self.high, most, whole=whole)


class TimeAxis(Axis):
    """Time since a start, in the unit that reads well."""

    def __init__(self, start_ns: float, end_ns: float, left: float, right: float) -> None:
        super().__init__(start_ns, end_ns, left, right)
        self.size, self.unit = unit_of(end_ns - start_ns)

    def draw(self, drawing: Drawing, top: float, bottom: float, since: str) -> None:
        """Grid lines from `top` to `bottom`, with numbers and the unit below."""
        over = Axis(0.0, (self.high - self.low) / self.size, self.left, self.right)
        for tick in over.ticks():
            drawing.line(over(tick), top, over(tick), bottom + 4)
            drawing.text(over(tick), bottom + 16, f"{tick:g}", "middle")
        drawing.text(
            (self.left + self.right) / 2, bottom + 31, f"{self.unit} since {label(since)}", "middle"
        )


def rows_with_time(
    names: Sequence[str], row_height: float, axis_of: tuple[float, float], since: str, top: float
) -> tuple[Drawing, TimeAxis, float]:
    """A drawing with a named row per track over a time axis; also the axis and the left edge."""
    left = 14 + LETTER * max(map(len, names))
    bottom = top + row_height * len(names)
    drawing = Drawing(WIDTH, bottom + _AXIS_HEIGHT)
    axis = TimeAxis(*axis_of, left, WIDTH - 16)
    axis.draw(drawing, top, bottom, since)
    for i, name in enumerate(names):
        y = top + (i + 0.5) * row_height + 4
        drawing.text(left - 8, y, short(name), "end")
    return drawing, axis, left
