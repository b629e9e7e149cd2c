"""What all sections are built of: figures, pairs and columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from kprof.report.blocks import Beside, Block, Column, Depth, Diagram
from kprof.report.figures.base import Figure

Figures: TypeAlias = dict[str, Figure]


def figure(figures: Figures, name: str, about: str) -> list[Block]:
    """A figure with a sentence on it; nothing where the report has no data for it."""
    return [Diagram(figures[name], about, depth=Depth.PAGE)] if name in figures else []


def beside(*groups: Sequence[Block]) -> list[Block]:
    """Those of the groups that have anything, side by side."""
    shown = tuple(tuple(group) for group in groups if group)
    return [Beside(shown)] if shown else []


def texts(*names: str) -> list[Column]:
    """Columns of words."""
    return [Column(name, is_text=True) for name in names]


def numbers(*names: str) -> list[Column]:
    """Columns of numbers."""
    return [Column(name) for name in names]


def page_only(*names: str) -> list[Column]:
    """Columns of numbers that a terminal has no room for."""
    return [Column(name, depth=Depth.PAGE) for name in names]
