"""The critical path, and who waits for whom."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kprof.analysis.hung import left_out
from kprof.analysis.wording import difference, duration, percent
from kprof.report.blocks import Block, Cell, Depth, Diagram, Paragraph, Table, Tone
from kprof.report.sections.parts import Figures, beside, figure, numbers, texts

if TYPE_CHECKING:
    from kprof.report.model import Report

# A what-if with a smaller gain is not worth a row.
_LEAST_GAIN: Final = 0.005
_MOST_LINKS: Final = 16
_MOST_RANKS: Final = 16


def path(report: Report, figures: Figures) -> list[Block]:
    """The critical path of a call, and what would shorten it."""
    drawn = figure(
        figures,
        "critical-path",
        f"The chain of spans and waits that determines the length of {report.focus.what}: within a "
        "track it follows the track; at a wait it goes to what ended the wait.",
    )
    rows = report.rows("critical_regions")[:10]
    return [*drawn, *beside(_path_regions(rows), _what_ifs(report))] if rows else drawn


def _path_regions(rows: list[dict[Any, Any]]) -> list[Block]:
    table = Table(
        (*texts("region"), *numbers("rank"), *texts("as"), *numbers("time", "share")),
        tuple(
            (
                r["region"],
                str(r["rank"]),
                r["kind"],
                duration(r["duration_ns"]),
                percent(r["share"]),
            )
            for r in rows
        ),
        title="Where its time goes",
        about="Only what is on the path makes a call longer.",
        depth=Depth.PAGE,
    )
    return [table]


def _what_ifs(report: Report) -> list[Block]:
    """What would help, and the two scenarios of the whole call. Ranks whose repair gains nothing
    are left out."""
    scenarios = report.rows("what_if")
    rows = [row for row in scenarios if row["gain_share"] >= _LEAST_GAIN or row["rank"] < 0]
    about = "The call replayed with one thing changed, all else as measured"
    if rows:
        about += f" (unchanged, the replay is off by {percent(abs(rows[0]['replay_error']))})"
    table = Table(
        (*texts("if"), *numbers("the call would take", "gain", "share")),
        tuple(
            (
                row["scenario"].replace("rank at", f"rank {row['rank']} at"),
                *(duration(row[name]) for name in ("predicted_ns", "gain_ns")),
                percent(row["gain_share"]),
            )
            for row in rows[:10]
        ),
        title="What would help",
        about=f"{about}.",
        depth=Depth.PAGE,
    )
    return [table]


def waits(report: Report, figures: Figures) -> list[Block]:
    """Who waits for whom, late senders, and what made them late."""
    said = left_out(report.tables["hung_waits"])
    blocks: list[Block] = [Paragraph(f"{said}.", tone=Tone.FINE)] if said else []
    blocks += beside(
        _blame(report, figures),
        figure(figures, "peers", "How long all other ranks waited, by rank waited for and region."),
        figure(figures, "wait-distribution", "How long single waits last."),
    )
    return [*blocks, *_late_senders(report), *_delays(report)]


def _blame(report: Report, figures: Figures) -> list[Block]:
    """Who waits for whom: a heat map, or the matrix in an output that cannot draw."""
    if report.blame_matrix.to_numpy().sum() == 0:
        return []
    about = (
        "Wait of a rank (row) for a rank (column). A column that stands out is a rank that "
        "everybody waits for. On the diagonal, a rank waits for what it sends to itself."
    )
    if report.waits_for_nobody:
        about += f" {report.waits_for_nobody}."
    depth = Depth.SCREEN if report.are_times_known else Depth.PAGE
    return [Diagram(figures.get("blame"), about, _blame_table(report, about), depth)]


def _blame_table(report: Report, about: str) -> Table:
    """The ranks that are waited for longest, and those that wait longest for them."""
    matrix = report.blame_matrix
    order = matrix.sum(axis=0).sort_values(ascending=False, kind="stable").index[:_MOST_RANKS]
    shown = matrix[sorted(order)]
    waits = shown.sum(axis=1).to_numpy()
    return Table(
        (*numbers("rank", *map(str, shown.columns)),),
        tuple(
            (str(rank), *(duration(ns) if ns else "-" for ns in row.tolist()))
            for rank, row in zip(shown.index.tolist(), shown.to_numpy(), strict=True)
        ),
        title="Who waits for whom",
        about=about,
        what="ranks",
        which="those that wait longest",
        importance=tuple((-waits).argsort(kind="stable").tolist()),
    )


def _late_senders(report: Report) -> list[Block]:
    rows = report.rows("late_sender")
    if not rows:
        return []
    names = ("from rank", "to rank", "flows", "wait, all", "late sender, each")
    about = (
        "Of an average wait that a send ended: how long until the send began, and then until its "
        "data arrived"
    )
    if len(rows) > _MOST_LINKS:
        about += f". The {_MOST_LINKS} links with the most late-sender time of {len(rows):,}"
    table = Table(
        (*texts("wait region"), *numbers(*names, "exposed transfer, each", "impossible order")),
        tuple(_late_sender(row) for row in rows[:_MOST_LINKS]),
        title="Late senders",
        about=f"{about}.",
        depth=Depth.PAGE,
    )
    return [table]


def _late_sender(row: dict[Any, Any]) -> list[str | Cell]:
    flows, violations = max(1, row["flows"]), str(row["violations"])
    each = (row[name] / flows for name in ("late_sender_ns", "exposed_transfer_ns"))
    return [
        row["region"],
        *(str(row[name]) for name in ("src", "dst", "flows")),
        duration(row["wait_ns"]),
        *(difference(ns, row["bound_ns"]) for ns in each),
        Cell(violations, "bad") if row["violations"] else violations,
    ]


def _delays(report: Report) -> list[Block]:
    rows = report.rows("delay_costs")[:10]
    if not rows:
        return []
    table = Table(
        (*texts("region"), *numbers("rank", "direct", "propagated", "of all late-sender time")),
        tuple(
            (
                row["region"],
                str(row["rank"]),
                *(duration(row[name]) for name in ("direct_ns", "propagated_ns")),
                percent(row["share"]),
            )
            for row in rows
        ),
        title="What made senders late",
        about="What late senders were doing while others waited for them, over "
        f"{report.focus.what}. Where a sender itself waited, the cost is passed on to what it "
        "waited for (propagated).",
        depth=Depth.PAGE,
    )
    return [table]
