"""The numbers behind findings about items, as tables have them: how many items a place has and how
many the others have, and how many blocks do the work."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from kprof.analysis.explain import ExplainedFinding, FindingKind
from kprof.analysis.summary import WORK, Summary, Table, sql_list
from kprof.analysis.wording import counted, percent

# A place has more items than others from this ratio on; where the ratio is less, the items are
# handled elsewhere.
_IS_MORE: Final = 1.2
# Regions are named where a rank has this much more of them.
_MUCH_MORE: Final = 1.5
# Where most blocks have some of the work, those are counted that have this part of it.
_MOST_OF_IT: Final = 0.8


@dataclass(frozen=True)
class ItemCounts:
    """Events of a region over the whole run: of a place, and the median of the others."""

    region: str
    own: float
    others: float

    @property
    def sentence(self) -> str:
        """dispatch/send: 7,216 events there, 2,405 elsewhere (median)"""
        own = counted(round(self.own), "event", "events")
        return f"{self.region}: {own} there, {self.others:,.0f} elsewhere (median)"


def with_counted_factor(summary: Summary, cause: ExplainedFinding) -> ExplainedFinding:
    """A finding about items with the ratio of their numbers as its factor, where they tell."""
    counts = item_counts(summary, cause)
    return cause if counts is None else replace(cause, factor=counts.own / counts.others)


def item_counts(summary: Summary, cause: ExplainedFinding) -> ItemCounts | None:
    """What a finding about items has counted: items at its place, or else those for its ranks.

    None for other findings, and where the numbers do not show it.
    """
    if cause.kind is not FindingKind.UNEVEN_WORK:
        return None
    region = cause.region or next(iter(regions_with_more(summary, cause)), None)
    if region is None:
        return None
    for who in ("rank", "peer"):
        counts = _counts(summary, cause, region, who)
        own, others = counts[counts["is_its"]]["events"], counts[~counts["is_its"]]["events"]
        if len(own) and len(others) and own.mean() >= _IS_MORE * others.median() > 0:
            return ItemCounts(region, float(own.mean()), float(others.median()))
    return None


def _counts(summary: Summary, cause: ExplainedFinding, region: str, who: str) -> Table:
    """Events by rank (or by the rank that they are for), or by block; is_its for those of a
    finding."""
    import pandas as pd

    by_block = bool(cause.blocks)
    place = f"{who}{', block' if by_block else ''}"
    table = summary.frame(
        f"""SELECT {who} AS who, {"block" if by_block else "-1"} AS block,
            total(events) AS events
        FROM named_cells WHERE region = ? AND {who} >= 0 GROUP BY {place}""",
        [region],
    )
    is_its = table["who"].isin(cause.ranks) if cause.ranks else table["who"] >= 0
    if by_block:
        pairs = list(zip(table["who"].tolist(), table["block"].tolist(), strict=True))
        if cause.places:
            is_its = pd.Series([pair in cause.places for pair in pairs], table.index)
        else:
            is_its &= table["block"].isin(cause.blocks)
    return table.assign(is_its=is_its)


def regions_with_more(summary: Summary, cause: ExplainedFinding) -> list[str]:
    """Regions of useful work that its ranks have more events of; most time first."""
    if not cause.ranks:
        return []
    ranks = sql_list(cause.ranks)
    table = summary.frame(
        f"""WITH counts AS (
                SELECT region, rank, sum(events) AS events, sum(total_ns) AS ns
                FROM named_cells WHERE {WORK} GROUP BY ALL)
            SELECT region FROM counts GROUP BY region
            HAVING avg(events) FILTER (rank IN ({ranks}))
                > {_MUCH_MORE} * avg(events) FILTER (rank NOT IN ({ranks}))
            ORDER BY sum(ns) DESC, region"""
    )
    return [str(name) for name in table["region"].tolist()]


def blocks_at_work(summary: Summary, region: str | None) -> str:
    """25 to 29 of 264 blocks do all of expert, from the launch of a rank where fewest do to the one
    where most do; empty where nothing is known of such a region."""
    table = summary.frame(
        f"""WITH its AS (SELECT rank, launch, block, sum(events) AS events FROM named_cells
                WHERE region = ? GROUP BY ALL),
            added AS (SELECT *, sum(events) OVER w - events AS before,
                sum(events) OVER (PARTITION BY rank, launch) AS total FROM its
                WINDOW w AS (PARTITION BY rank, launch ORDER BY events DESC, block)),
            seen AS (SELECT rank, launch, max(block) + 1 AS blocks FROM tracks GROUP BY ALL)
        SELECT count(*) AS used,
            count(*) FILTER (before < {_MOST_OF_IT} * total) AS most,
            greatest(any_value(s.blocks), coalesce(any_value(l.num_blocks), 0)) AS launched
        FROM added JOIN seen s USING (rank, launch)
            LEFT JOIN launches l USING (rank, launch)
        GROUP BY rank, launch ORDER BY used, most, launched""",
        [region],
    )
    if table.empty:
        return ""
    least, most = int(table["used"].min()), int(table["used"].max())
    launched = int(table["launched"].iloc[(len(table) - 1) // 2])
    if 2 * most <= launched:
        used = f"{least}" if least == most else f"{least} to {most}"
        return f"{used} of {launched:,} blocks {'does' if most == 1 else 'do'} all of {region}"
    usual = int(table["most"].iloc[(len(table) - 1) // 2])
    return f"{usual} of {launched:,} blocks do {percent(_MOST_OF_IT)} of {region}"
