"""Work and waits by block, rank, launch and region."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kprof.analysis.wording import duration, members, percent
from kprof.report.blocks import Block, Cell, Depth, Paragraph, Table, Tone
from kprof.report.rates import rates
from kprof.report.sections.parts import Figures, beside, figure, numbers, page_only, texts

if TYPE_CHECKING:
    from kprof.report.model import Report

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
    if not report.are_times_known:
        return [*drawn, _counts(report)]
    return [*_efficiency(report), *drawn, *_rank_sheet(report)]


def _efficiency(report: Report) -> list[Block]:
    row = next(iter(report.rows("efficiency")), None)
    if row is None:
        return [Paragraph("Efficiency: not known.")]
    without = f", without {members('call', report.warm_up)}, a warm-up" if report.warm_up else ""
    return [
        Paragraph(
            f"Parallel efficiency {percent(row['parallel_efficiency'])} = load balance "
            f"{percent(row['load_balance'])} × communication efficiency "  # noqa: RUF001
            f"{percent(row['communication_efficiency'])}{without}."
        )
    ]


def _rank_sheet(report: Report) -> list[Block]:
    """Own work and wait of each rank, the wait that it causes, and what fixing it would gain."""
    stragglers = report.rows("stragglers")
    if not stragglers:
        return []
    counts, efficiency = (
        {row["rank"]: row for row in report.rows(name)}
        for name in ("imbalance_by_rank", "rank_efficiency")
    )
    # A single rank cannot be compared.
    number = len(report.recorded_ranks)
    compared = [] if number == 1 else ["vs. other" if number == 2 else "vs. median"]
    caused = ("of its blocks' time", "wait caused to others", "arrived last", "gain if fixed")
    columns = (
        *numbers("rank", "spans", "work", *compared, "wait"),
        *page_only(*caused),
        *numbers("load balance"),
        *page_only("parallel efficiency"),
    )
    gains = _gains(report)
    rows = tuple(
        (
            str(row["rank"]),
            f"{counts[row['rank']]['events']:,}",
            duration(row["work_ns"]),
            *([f"{row['work_vs_median']:.2f}x"] if compared else []),
            duration(row["wait_ns"]),
            percent(row["wait_share"]),
            duration(row["caused_ns"]),
            percent(row["arrived_last"]),
            gains.get(row["rank"], "-"),
            percent(efficiency[row["rank"]]["load_balance"]),
            percent(efficiency[row["rank"]]["parallel_efficiency"]),
        )
        for row in stragglers
    )
    return [
        Paragraph(_ABOUT_RANKS, tone=Tone.FINE, depth=Depth.PAGE),
        Table(
            columns,
            rows,
            title="Ranks",
            about="Work and wait are summed over blocks (or warps).",
            what="ranks",
            which="those that findings name, then those waited for longest",
            importance=_important_ranks(report, stragglers),
        ),
    ]


_ABOUT_RANKS: Final = (
    "Arrived last: how often a rank was the one that another rank waited for longest. Gain if "
    "fixed: how much shorter a call would be if only that rank were like the median rank."
)


def _important_ranks(report: Report, rows: list[dict[Any, Any]]) -> tuple[int, ...]:
    index = {row["rank"]: i for i, row in enumerate(rows)}
    return tuple(index[rank] for rank in report.ranks_by_importance if rank in index)


def _gains(report: Report) -> dict[int, str]:
    """By rank: how much earlier a call would end if that rank were like the median rank."""
    gains = {}
    for row in report.rows("what_if"):
        if row["rank"] >= 0:
            gain_ns, share = max(0.0, row["gain_ns"]), max(0.0, row["gain_share"])
            gains[row["rank"]] = f"{duration(gain_ns)} ({percent(share)})"
    return gains


def _counts(report: Report) -> Table:
    """For runs without usable times: spans, and bytes where any are counted."""
    ranks = report.rows("imbalance_by_rank")
    counted = {"spans": "events"}
    if any(row["bytes"] for row in ranks):
        counted["bytes"] = "bytes"
    return Table(
        (*numbers("rank", *counted),),
        tuple(
            (str(row["rank"]), *(f"{row[name]:,}" for name in counted.values())) for row in ranks
        ),
        title="Ranks",
        what="ranks",
        importance=_important_ranks(report, ranks),
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
    names = [f"~{name}" if error else name for name in ("median", "p95", "p99")]
    times = ("median_ns", "p95_ns", "p99_ns", "max_ns")
    table = Table(
        (
            *texts("region", "category"),
            *numbers("count", "total"),
            *page_only("mean"),
            *numbers(*names, "max", "of the blocks' time"),
        ),
        tuple(
            (
                row["region"],
                Cell(row["category"], row["category"]),
                f"{row['count']:,}",
                *(duration(row[name]) for name in ("total_ns", "mean_ns", *times)),
                percent(row["share"]),
            )
            for row in rows
        ),
        title="Regions",
        about=f"Percentiles (~) are estimates, within {100 * error:.1f} %." if error else "",
        what="regions",
        which="those with the most time",
        depth=depth,
    )
    return [table, *rates(report, depth)]
