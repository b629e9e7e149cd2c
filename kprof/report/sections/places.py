"""Work and waits by block, rank, launch and region."""

from __future__ import annotations

import math
from typing import Any, Final

from kprof.analysis.wording import duration, listed, members, percent
from kprof.report.blocks import Block, Cell, Column, Depth, Paragraph, Tone
from kprof.report.model import Report
from kprof.report.sections import parts
from kprof.report.sections.parts import Figures, Of, beside, figure, table

_MOST_KERNELS: Final = 6


def blocks(report: Report, figures: Figures) -> list[Block]:
    """Spans of single blocks, and the work and wait of all."""
    of = ""
    if len(report.manifest.ranks) > 1:
        of = " of two ranks: the one that stands out and the one that waits most"
    about = f"The longest spans of blocks{of}. Per rank the blocks with the most and least work."
    return [
        *figure(figures, "gantt", about),
        *beside(
            figure(figures, "blocks-work", "Useful time of every block over the run."),
            figure(figures, "blocks-wait", "Waiting time of every block over the run."),
        ),
    ]


def ranks(report: Report, figures: Figures) -> list[Block]:
    """The efficiency, and what each rank did; without usable times, how much of it."""
    drawn = figure(figures, "ranks", "Mean over the rank's tracks, over the run.")
    # Where there is a ribbon, it takes the timeline's place on the first screen.
    if "ribbon" in figures:
        drawn = figure(figures, "timeline", about_timeline(report)) + drawn
    if not report.are_times_known:
        return [*drawn, *_counts(report)]
    return [_efficiency(report), *drawn, *_group_sheet(report), *_rank_sheet(report)]


def _efficiency(report: Report) -> Block:
    row = next(iter(report.rows("efficiency")), None)
    if row is None:
        return Paragraph("Efficiency: not known.")
    without = f", without {members('call', report.warm_up)}, a warm-up" if report.warm_up else ""
    return Paragraph(
        f"Parallel efficiency {percent(row['parallel_efficiency'])} = load balance "
        f"{percent(row['load_balance'])} × communication efficiency "  # noqa: RUF001
        f"{percent(row['communication_efficiency'])}{without}."
    )


NOT_OF_KERNELS: Final = "These times reflect the operating system's scheduling, not the kernels."


def about_timeline(report: Report) -> str:
    """What the lanes of the timeline are, and what they cannot say."""
    if not report.are_times_known:
        return NOT_OF_KERNELS
    about = f"Share of a rank's tracks per category over {report.focus.what}."
    if report.manifest.is_on_one_clock:
        return about
    return f"{about} The ranks' clocks are not aligned: compare within a lane only."


def _group_sheet(report: Report) -> list[Block]:
    """Work and wait of hosts and rails, where ranks are on several."""
    rows = report.rows("hosts_and_rails")
    return table(
        rows,
        parts.words("of", "name"),
        parts.number("ranks"),
        parts.time("work", "work_ns"),
        Of(Column("vs. median"), lambda row: f"{row['work_vs_median']:.2f}x"),
        parts.time("wait", "wait_ns"),
        parts.share("of its blocks' time", "wait_share").only_on_pages(),
        parts.time("wait caused to others", "caused_ns"),
        title="Hosts and rails",
        about="Work and wait are means of the ranks. A rail is the ranks of one network "
        "interface where recordings name it, else the n-th rank of every host.",
        what="hosts and rails",
        which="those waited for longest",
        importance=tuple(sorted(range(len(rows)), key=lambda i: -rows[i]["caused_ns"])),
    )


def _rank_sheet(report: Report) -> list[Block]:
    """Own work and wait of each rank, the wait that it causes, and what fixing it would gain."""
    stragglers = report.rows("stragglers")
    if not stragglers:
        return []
    gains = _gains(report)
    others = [
        {row["rank"]: row for row in report.rows(name)}
        for name in ("imbalance_by_rank", "rank_efficiency")
    ]
    rows = [others[0][row["rank"]] | others[1][row["rank"]] | row for row in stragglers]
    compared = []
    # A single rank cannot be compared.
    if (number := len(report.recorded_ranks)) > 1:
        name = "vs. other" if number == 2 else "vs. median"
        compared = [Of(Column(name), lambda row: f"{row['work_vs_median']:.2f}x")]
    sheet = table(
        rows,
        parts.rank(),
        parts.number("spans", "events"),
        parts.time("work", "work_ns"),
        *compared,
        parts.time("wait", "wait_ns"),
        parts.share("of its blocks' time", "wait_share").only_on_pages(),
        parts.time("wait caused to others", "caused_ns").only_on_pages(),
        parts.share("arrived last", "arrived_last").only_on_pages(),
        Of(Column("gain if fixed", depth=Depth.PAGE), lambda row: gains.get(row["rank"], "-")),
        parts.share("load balance", "load_balance"),
        parts.share("parallel efficiency", "parallel_efficiency").only_on_pages(),
        title="Ranks",
        about="Work and wait are summed over blocks (or warps).",
        what="ranks",
        which="those that findings name, then those waited for longest",
        importance=_importance(report, rows),
    )
    return [Paragraph(_ABOUT_RANKS, tone=Tone.FINE, depth=Depth.PAGE), *sheet]


_ABOUT_RANKS: Final = (
    "Arrived last: how often a rank was the one that another rank waited for longest. Gain if "
    "fixed: how much shorter a call would be if only that rank were like the median rank."
)


def _importance(report: Report, rows: list[dict[Any, Any]]) -> tuple[int, ...]:
    index = {row["rank"]: i for i, row in enumerate(rows)}
    return tuple(index[rank] for rank in report.ranks_by_importance if rank in index)


def _gains(report: Report) -> dict[int, str]:
    """By rank: how much earlier a call would end if that rank were like the median rank."""
    return {
        row[
            "rank"
        ]: f"{duration(max(0.0, row['gain_ns']))} ({percent(max(0.0, row['gain_share']))})"
        for row in report.rows("what_if")
    }


def _counts(report: Report) -> list[Block]:
    """For runs without usable times: spans, and bytes where any are counted."""
    rows = report.rows("imbalance_by_rank")
    return table(
        rows,
        parts.rank(),
        parts.number("spans", "events"),
        *([parts.number("bytes")] if any(row["bytes"] for row in rows) else []),
        title="Ranks",
        what="ranks",
        importance=_importance(report, rows),
    )


def launches(report: Report, figures: Figures) -> list[Block]:
    """How long each launch took."""
    skew = report.tables.get("launch_skew")
    is_cut = skew is not None and skew["kernel"].nunique() > _MOST_KERNELS
    which = f" The {_MOST_KERNELS} kernels that take most." if is_cut else ""
    about = "How long every launch took over all ranks, and (dashed) how far apart the ranks began."
    return figure(figures, "launches", about + which)


def regions(report: Report, figures: Figures) -> list[Block]:
    """How long regions last, and their rates."""
    del figures
    rows, depth = report.rows("regions"), Depth.SCREEN if report.are_times_known else Depth.PAGE
    if not rows:
        return []
    error = max(row["percentile_error"] for row in rows)
    sign = "~" if error else ""
    rows = [row | {"where": report.place_of(row["region"])} for row in rows]
    found = table(
        rows,
        parts.words("region"),
        Of(Column("category", is_text=True), lambda row: Cell(row["category"], row["category"])),
        parts.number("count"),
        parts.time("total", "total_ns"),
        parts.time("mean", "mean_ns").only_on_pages(),
        *(parts.time(f"{sign}{name}", f"{name}_ns") for name in ("median", "p95", "p99")),
        parts.time("max", "max_ns"),
        parts.share("of the blocks' time"),
        *([parts.words("where")] if any(report.place_of(row["region"]) for row in rows) else []),
        title="Regions",
        about=f"Percentiles (~) are estimates, within {100 * error:.1f} %." if error else "",
        what="regions",
        which="those with the most time",
        depth=depth,
    )
    return [*found, *rates(report, depth)]


_MOST_NAMED: Final = 3


def rates(report: Report, depth: Depth) -> list[Block]:
    """Rates of regions that count bytes or operations, with the device's ceiling if it is known."""
    rows = report.rows("achieved_by_region")
    if not rows:
        return []
    rows = sorted(rows, key=lambda row: (row["region"], row["rank"]))
    has_ceilings = any(math.isfinite(row["ceiling_share"]) for row in rows)
    found = table(
        rows,
        parts.words("region"),
        parts.rank(),
        *([_rate("GB/s", "bytes", "gb_s")] if any(row["bytes"] for row in rows) else []),
        *([Of(Column("of the speed of a copy"), _of_copy)] if has_ceilings else []),
        *([_rate("GFLOP/s", "flops", "gflop_s")] if any(row["flops"] for row in rows) else []),
        title="Rates",
        about="While the region was in use; only regions that count bytes or operations.",
        which="the first by name",
        depth=depth,
    )
    is_measured = any(info.ceilings for info in report.manifest.ranks)
    of_ceilings = "" if is_measured else _FROM_SHEETS if has_ceilings else _NO_CEILINGS
    notes = filter(None, [_without_bytes(report), of_ceilings])
    return [*found, *(Paragraph(note, tone=Tone.FINE, depth=depth) for note in notes)]


_FROM_SHEETS: Final = (
    "The speed of a copy is that of the data sheet: half of the memory's, or that of the links. "
    "kprof doctor --measure before recording gives the device's own."
)
_NO_CEILINGS: Final = (
    "To compare with what the device can do, run kprof doctor --measure before recording."
)


def _rate(name: str, counted: str, key: str) -> Of:
    return Of(Column(name), lambda row: f"{row[key]:.1f}" if row[counted] else "")


def _of_copy(row: dict[Any, Any]) -> str:
    return percent(row["ceiling_share"]) if math.isfinite(row["ceiling_share"]) else ""


def _without_bytes(report: Report) -> str:
    """Which regions that send or receive have no rate, the longest first; empty if all have one."""
    rated = {row["region"] for row in report.rows("achieved_by_region")}
    moving = [row for row in report.rows("regions") if row["category"] in ("send", "recv")]
    silent = [row["region"] for row in moving if row["region"] not in rated]
    if not silent:
        return ""
    more = ["others"] if len(silent) > _MOST_NAMED else []
    return f"No rate without a payload field `bytes`: {listed([*silent[:_MOST_NAMED], *more])}."
