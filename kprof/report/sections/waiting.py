"""The critical path, and who waits for whom."""

from __future__ import annotations

from typing import Any, Final

from kprof.analysis.hung import left_out
from kprof.analysis.wording import difference, duration, percent
from kprof.report.blocks import Block, Column, Depth, Diagram, Paragraph, Table, Tone
from kprof.report.model import Report
from kprof.report.sections import parts
from kprof.report.sections.parts import Figures, Of, beside, figure, table

# A what-if with a smaller gain is not worth a row.
_LEAST_GAIN: Final = 0.005
_MOST_ROWS: Final = 10
_MOST_LINKS: Final = 16


def path(report: Report, figures: Figures) -> list[Block]:
    """The critical path of a call, and what would shorten it."""
    drawn = figure(
        figures,
        "critical-path",
        f"The chain of spans and waits that determines the length of {report.focus.what}: within a "
        "track it follows the track; at a wait it goes to what ended the wait.",
    )
    rows = report.rows("critical_regions")[:_MOST_ROWS]
    of_regions = table(
        rows,
        parts.words("region"),
        parts.rank(),
        parts.words("as", "kind"),
        parts.time("time", "duration_ns"),
        parts.share("share"),
        title="Where its time goes",
        about="Only what is on the path makes a call longer.",
        depth=Depth.PAGE,
    )
    return [*drawn, *beside(of_regions, _what_ifs(report))] if rows else drawn


def _what_ifs(report: Report) -> list[Block]:
    """What would help, and the two scenarios of the whole call. Ranks whose repair gains nothing
    are left out."""
    scenarios = report.rows("what_if")
    rows = [row for row in scenarios if row["gain_share"] >= _LEAST_GAIN or row["rank"] < 0]
    about = "The call replayed with one thing changed, all else as measured"
    if rows:
        about += f" (unchanged, the replay is off by {percent(abs(rows[0]['replay_error']))})"

    def scenario(row: dict[Any, Any]) -> str:
        return str(row["scenario"]).replace("rank at", f"rank {row['rank']} at")

    return table(
        rows[:_MOST_ROWS],
        Of(Column("if", is_text=True), scenario),
        parts.time("the call would take", "predicted_ns"),
        parts.time("gain", "gain_ns"),
        parts.share("share", "gain_share"),
        title="What would help",
        about=f"{about}.",
        depth=Depth.PAGE,
    )


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
    order = matrix.sum(axis=0).sort_values(ascending=False, kind="stable").index[:_MOST_LINKS]
    shown = matrix[sorted(order)]
    waited = shown.sum(axis=1).to_numpy()
    return Table(
        tuple(map(Column, ("rank", *map(str, shown.columns)))),
        tuple(
            (str(rank), *(duration(ns) if ns else "-" for ns in row.tolist()))
            for rank, row in zip(shown.index.tolist(), shown.to_numpy(), strict=True)
        ),
        title="Who waits for whom",
        about=about,
        what="ranks",
        which="those that wait longest",
        importance=tuple((-waited).argsort(kind="stable").tolist()),
    )


def _late_senders(report: Report) -> list[Block]:
    rows = report.rows("late_sender")
    about = (
        "Of an average wait that a send ended: how long until the send began, and then until its "
        "data arrived"
    )
    if len(rows) > _MOST_LINKS:
        about += f". The {_MOST_LINKS} links with the most late-sender time of {len(rows):,}"
    return table(
        [row | {"impossible_order": row["violations"]} for row in rows[:_MOST_LINKS]],
        parts.words("wait region", "region"),
        parts.rank("from rank", "src"),
        parts.rank("to rank", "dst"),
        parts.number("flows"),
        parts.time("wait, all", "wait_ns"),
        _each("late sender, each", "late_sender_ns"),
        _each("exposed transfer, each", "exposed_transfer_ns"),
        parts.bad("impossible_order"),
        title="Late senders",
        about=f"{about}.",
        depth=Depth.PAGE,
    )


def _each(name: str, key: str) -> Of:
    """A time per flow, as far as the clocks can tell it."""

    def cell(row: dict[Any, Any]) -> str:
        return difference(row[key] / max(1, row["flows"]), row["bound_ns"])

    return Of(Column(name), cell)


def _delays(report: Report) -> list[Block]:
    return table(
        report.rows("delay_costs")[:_MOST_ROWS],
        parts.words("region"),
        parts.rank(),
        parts.time("direct", "direct_ns"),
        parts.time("propagated", "propagated_ns"),
        parts.share("of all late-sender time"),
        title="What made senders late",
        about="What late senders were doing while others waited for them, over "
        f"{report.focus.what}. Where a sender itself waited, the cost is passed on to what it "
        "waited for (propagated).",
        depth=Depth.PAGE,
    )
