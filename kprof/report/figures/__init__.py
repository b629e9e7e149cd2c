"""The drawings of the HTML report: SVG that stands in the page as it is, without scripts.

Colours are classes of the page's style sheet. Every name from the capture passes through `label`:
it stands in markup, and names are data.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kprof.report.figures.base import Figure
from kprof.report.figures.by_place import blame, block_heatmap, peers, rank_bars, wait_distribution
from kprof.report.figures.hung import open_waits
from kprof.report.figures.over_time import critical_path, launches, timeline
from kprof.report.figures.ribbon import ribbon
from kprof.report.figures.up_close import gantt

if TYPE_CHECKING:
    from kprof.report.model import Report


def all_figures(report: Report) -> list[Figure]:
    """Every figure that this report has data for, in the order of the page."""
    figures = [
        open_waits(report),
        ribbon(report),
        timeline(report),
        critical_path(report),
        gantt(report),
        blame(report),
        peers(report),
        block_heatmap(report, "work_ns", "work"),
        block_heatmap(report, "wait_ns", "wait"),
        rank_bars(report),
        wait_distribution(report),
        launches(report),
    ]
    return [figure for figure in figures if figure is not None]
