"""Numbers of events: what stands out in them, with no word about time."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import pandas as pd

from kprof.analysis.findings.finding import Finding, Kind
from kprof.analysis.findings.thresholds import (
    IS_MORE,
    MIN_RATIO,
    MIN_SIGMAS,
    MUCH_MORE,
    NEARLY_ALL_CALLS,
)
from kprof.analysis.findings.when import When
from kprof.analysis.summary import WORK, Column, Summary, Table, sql_list

_MOST_NAMED: Final = 4
_SENDS_FIRST: Final = "array_position(['send', 'compute', 'recv'], category)"


@dataclass(frozen=True)
class ItemCounts:
    """Events of a region over the whole run: of a place, and the median of the others."""

    region: str
    own: float
    others: float


def item_counts(summary: Summary, finding: Finding, region: str | None) -> ItemCounts | None:
    """What a finding about items has counted: items at its place, or else those for its ranks.

    None where the numbers do not show it.
    """
    if region is None:
        return None
    for who in ("rank", "peer"):
        counts = _counts_by_place(summary, finding, region, who)
        own, others = counts[counts["is_its"]]["events"], counts[~counts["is_its"]]["events"]
        if len(own) and len(others) and own.mean() >= IS_MORE * others.median() > 0:
            return ItemCounts(region, float(own.mean()), float(others.median()))
    return None


def _counts_by_place(summary: Summary, finding: Finding, region: str, who: str) -> Table:
    """Events by rank (or by the rank that they are for), or by block; is_its for those of a
    finding."""
    by_block = bool(finding.blocks)
    place = f"{who}{', block' if by_block else ''}"
    table = summary.frame(
        f"""SELECT {who} AS who, {"block" if by_block else "-1"} AS block,
            total(events) AS events
        FROM named_cells WHERE region = ? AND {who} >= 0 GROUP BY {place}""",
        [region],
    )
    is_its = table["who"].isin(finding.ranks) if finding.ranks else table["who"] >= 0
    if by_block:
        pairs = list(zip(table["who"].tolist(), table["block"].tolist(), strict=True))
        if finding.places:
            is_its = pd.Series([pair in finding.places for pair in pairs], table.index)
        else:
            is_its &= table["block"].isin(finding.blocks)
    # Without rows it would be no mask, but a list of columns.
    return table.assign(is_its=is_its.astype(bool))


def regions_with_more(summary: Summary, finding: Finding) -> list[str]:
    """Regions of useful work that its ranks have more events of; most time first."""
    if not finding.ranks:
        return []
    ranks = sql_list(finding.ranks)
    table = summary.frame(
        f"""WITH counts AS (
                SELECT region, rank, sum(events) AS events, sum(total_ns) AS ns
                FROM named_cells WHERE {WORK} GROUP BY ALL)
            SELECT region FROM counts GROUP BY region
            HAVING avg(events) FILTER (rank IN ({ranks}))
                > {MUCH_MORE} * avg(events) FILTER (rank NOT IN ({ranks}))
            ORDER BY sum(ns) DESC, region"""
    )
    return [str(name) for name in table["region"].tolist()]


def uneven_ranks(summary: Summary, kind: Kind) -> list[Finding]:
    """Ranks with 1.5 times the events of the median of the others in a region of useful work, and
    the counts.

    A rank is named once, by the region that comes first: sends, then compute, then receives; there
    by its bytes where all have some.
    """
    found: dict[int, Finding] = {}
    for region, group in _counts(summary).groupby("region", sort=False):
        by_rank = group.set_index("rank")
        standing = counts_that_stand_out(by_rank["events"])
        quantity = "bytes" if (by_rank["bytes"] > 0).all() else "events"
        ratios = ratios_to_others(by_rank[quantity])[standing.index]
        rows = by_rank.reset_index()[["rank", "events", "bytes"]]
        for rank, ratio in zip(ratios.index.tolist(), ratios.tolist(), strict=True):
            if rank not in found and ratio > 1:
                its = Finding(kind=kind, ranks=(rank,), region=str(region), factor=ratio)
                found[rank] = _of_counts(summary, its, rows)
    return sorted(found.values(), key=lambda finding: -finding.factor)[:_MOST_NAMED]


def uneven_blocks(summary: Summary, kind: Kind) -> list[Finding]:
    """The same for the blocks of a run with one rank: those that stand out in one region, and their
    counts, the largest first."""
    ranks = [info.rank for info in summary.trace.ranks if info.is_recorded]
    found = []
    for region, group in _counts_of_blocks(summary).groupby("region", sort=False):
        by_block = group.set_index("block")
        blocks = sorted(counts_that_stand_out(by_block["events"]).index.tolist())
        if not blocks:
            continue
        others = float(by_block["events"].drop(blocks).median())
        ratio = float(by_block.loc[blocks, "events"].mean()) / others
        its = Finding(
            kind=kind,
            ranks=tuple(ranks),
            blocks=tuple(blocks),
            places=tuple((rank, block) for rank in ranks for block in blocks),
            region=str(region),
            factor=ratio,
        )
        rows = group.sort_values("events", ascending=False, kind="stable")[["block", "events"]]
        found.append(_of_counts(summary, its, rows))
    return sorted(found, key=lambda finding: -finding.factor)[:_MOST_NAMED]


def _of_counts(summary: Summary, finding: Finding, rows: Table) -> Finding:
    """A finding that only counts are known of, with its calls and the counts."""
    calls, num_calls = _calls_with_more(summary, finding)
    is_always = len(calls) >= NEARLY_ALL_CALLS * num_calls
    return replace(
        finding,
        calls=calls,
        costly_calls=calls,
        when=When.ONCE if num_calls == 1 else When.ALWAYS if is_always else When.SOMETIMES,
        is_timed=False,
        evidence=tuple({str(k): v for k, v in row.items()} for row in rows.to_dict("records")),
    )


def _calls_with_more(summary: Summary, finding: Finding) -> tuple[tuple[int, ...], int]:
    """The calls in which places have more events than the median of the others, and how many calls
    there are."""
    place, own = ("block", finding.blocks) if finding.blocks else ("rank", finding.ranks)
    table = summary.frame(
        f"""WITH counts AS (
                SELECT s.ordinal, {place} IN ({sql_list(own)}) AS is_its,
                    {place} AS place, sum(c.events) AS events
                FROM named_cells c JOIN spans_of_launches s USING (rank, launch)
                WHERE region = ? GROUP BY ALL)
            SELECT ordinal, avg(events) FILTER (is_its) AS own,
                coalesce(median(events) FILTER (NOT is_its), 0) AS others
            FROM counts GROUP BY ordinal ORDER BY ordinal""",
        [finding.region],
    )
    more = table[table["own"] >= MIN_RATIO * table["others"]]
    return tuple(int(ordinal) for ordinal in more["ordinal"].tolist()), len(table)


def _counts_of_blocks(summary: Summary) -> Table:
    """region, block, events of useful regions; sends first."""
    return summary.frame(
        f"""SELECT region, block, total(events) AS events FROM named_cells WHERE {WORK}
        GROUP BY region, category, region_id, block
        ORDER BY {_SENDS_FIRST}, region_id, block"""
    )


def _counts(summary: Summary) -> Table:
    """region, rank, events, bytes of useful regions, with a row for every rank; sends first."""
    return summary.frame(
        f"""WITH used AS (SELECT DISTINCT region_id, region, category FROM named_cells
            WHERE {WORK}),
        present AS (SELECT DISTINCT rank FROM tracks)
        SELECT u.region, p.rank, coalesce(total(c.events), 0) AS events,
            coalesce(total(c.bytes), 0) AS bytes
        FROM used u CROSS JOIN present p
            LEFT JOIN cells c ON c.region_id = u.region_id AND c.rank = p.rank
        GROUP BY u.region, u.category, u.region_id, p.rank
        ORDER BY {_SENDS_FIRST}, u.region_id, p.rank"""
    )


def medians_of_others(values: np.ndarray) -> np.ndarray:
    """For each value the median of all others: of two things, each is measured by the other."""
    if len(values) < 2:
        return np.full(len(values), np.nan)
    ordered = np.sort(values).astype(float)
    position = np.searchsorted(ordered, values)
    # Without the value at `position`, the element at index i of the rest is ordered[i + (i >=
    # position)].
    low, high = (len(values) - 2) // 2, (len(values) - 1) // 2
    of_low = ordered[low + (low >= position)]
    of_high = ordered[high + (high >= position)]
    return (of_low + of_high) / 2


def ratios_to_others(values: Column) -> Column:
    """Each value over the median of the others; NaN where that is 0 or there are none."""
    medians = medians_of_others(values.to_numpy())
    medians[medians == 0] = np.nan
    return pd.Series(values.to_numpy() / medians, index=values.index)


def counts_that_stand_out(counts: Column) -> Column:
    """The ratios of those counts that stand out, largest first."""
    ratios = ratios_to_others(counts)
    medians = counts / ratios
    sigmas = (counts - medians) / medians**0.5
    standing = ratios[(ratios >= MIN_RATIO) & (sigmas >= MIN_SIGMAS)]
    return standing.sort_values(ascending=False)
