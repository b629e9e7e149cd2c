"""Findings that rest on numbers of events alone: they hold where times mean nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kprof.analysis.explain import ExplainedFinding, FindingKind, When
from kprof.analysis.findings.outliers import (
    MIN_RATIO,
    by_number,
    counts_that_stand_out,
    ratios_to_others,
)

if TYPE_CHECKING:
    import pandas as pd

    from kprof.analysis.summary import Summary

_MOST_NAMED: Final = 4


def uneven_ranks(summary: Summary) -> list[tuple[ExplainedFinding, list[dict[str, object]]]]:
    """Ranks with 1.5 times the events of the median of the others in a region of useful work, and
    the counts.

    A rank is named once, by the region that comes first: sends, then compute, then receives; there
    by its bytes where all have some.
    """
    found: dict[int, tuple[ExplainedFinding, list[dict[str, object]]]] = {}
    for region, group in _counts(summary).groupby("region", sort=False):
        by_rank = group.set_index("rank")
        standing = counts_that_stand_out(by_rank["events"])
        quantity = "bytes" if (by_rank["bytes"] > 0).all() else "events"
        ratios = ratios_to_others(by_rank[quantity])[standing.index]
        rows = by_rank.reset_index()[["rank", "events", "bytes"]].to_dict("records")
        for rank, ratio in by_number(ratios).items():
            if rank not in found and ratio > 1:
                cause = _uneven(summary, (rank,), (), str(region), ratio)
                found[rank] = cause, [{str(k): v for k, v in row.items()} for row in rows]
    ordered = sorted(found.values(), key=lambda finding: -finding[0].factor)
    return ordered[:_MOST_NAMED]


def uneven_blocks(summary: Summary) -> list[tuple[ExplainedFinding, list[dict[str, object]]]]:
    """The same for the blocks of a run with one rank: those that stand out in one region, and their
    counts, the largest first."""
    ranks = [info.rank for info in summary.trace.ranks if info.is_recorded]
    found = []
    for region, group in _counts_of_blocks(summary).groupby("region", sort=False):
        by_block = group.set_index("block")
        blocks = sorted(by_number(counts_that_stand_out(by_block["events"])))
        if not blocks:
            continue
        others = float(by_block["events"].drop(blocks).median())
        ratio = float(by_block.loc[blocks, "events"].mean()) / others
        cause = _uneven(summary, tuple(ranks), tuple(blocks), str(region), ratio)
        rows = group.sort_values("events", ascending=False, kind="stable")[["block", "events"]]
        found.append((cause, [{str(k): v for k, v in r.items()} for r in rows.to_dict("records")]))
    return sorted(found, key=lambda finding: -finding[0].factor)[:_MOST_NAMED]


def _calls_with_more(
    summary: Summary, ranks: tuple[int, ...], blocks: tuple[int, ...], region: str
) -> tuple[tuple[int, ...], int]:
    """The calls in which places have more events than the median of the others, and how many calls
    there are."""
    is_its = "block" if blocks else "c.rank"
    table = summary.frame(
        f"""WITH counts AS (
                SELECT s.ordinal, {is_its} IN ({", ".join(map(str, blocks or ranks))}) AS is_its,
                    {is_its} AS place, sum(c.events) AS events
                FROM cells c JOIN spans_of_launches s ON s.rank = c.rank AND s.launch = c.launch
                JOIN regions r ON r.id = c.region_id WHERE r.name = ? GROUP BY ALL)
            SELECT ordinal, avg(events) FILTER (is_its) AS own,
                coalesce(median(events) FILTER (NOT is_its), 0) AS others
            FROM counts GROUP BY ordinal ORDER BY ordinal""",
        [region],
    )
    more = table[table["own"] >= MIN_RATIO * table["others"]]
    return tuple(int(ordinal) for ordinal in more["ordinal"].tolist()), len(table)


def _uneven(
    summary: Summary, ranks: tuple[int, ...], blocks: tuple[int, ...], region: str, ratio: float
) -> ExplainedFinding:
    calls, num_calls = _calls_with_more(summary, ranks, blocks, region)
    is_always = len(calls) >= 0.9 * num_calls
    return ExplainedFinding(
        kind=FindingKind.UNEVEN_WORK,
        ranks=ranks,
        blocks=blocks,
        places=tuple((rank, block) for rank in ranks for block in blocks),
        links=(),
        region=region,
        calls=calls,
        when=When.ONCE if num_calls == 1 else When.ALWAYS if is_always else When.SOMETIMES,
        period=0,
        gain_ns=0.0,
        interval_ns=(0.0, 0.0),
        share=0.0,
        factor=ratio,
        gains_ns=(),
        costly_calls=calls,
        alone_ns=0.0,
    )


def _counts_of_blocks(summary: Summary) -> pd.DataFrame:
    """region, block, events of useful regions; sends first."""
    return summary.frame(
        """
        SELECT r.name AS region, c.block, CAST(sum(c.events) AS BIGINT) AS events
        FROM cells c JOIN regions r ON r.id = c.region_id
        WHERE r.category IN ('send', 'compute', 'recv') GROUP BY r.name, r.category, r.id, c.block
        ORDER BY array_position(['send', 'compute', 'recv'], r.category), r.id, c.block"""
    )


def _counts(summary: Summary) -> pd.DataFrame:
    """region, rank, events, bytes of useful regions, with a row for every rank; sends first."""
    return summary.frame(
        """
        WITH used AS (SELECT DISTINCT r.id, r.name, r.category FROM regions r
            JOIN cells c ON c.region_id = r.id
            WHERE r.category IN ('send', 'compute', 'recv')),
        present AS (SELECT DISTINCT rank FROM tracks)
        SELECT u.name AS region, p.rank, CAST(coalesce(sum(c.events), 0) AS BIGINT) AS events,
            CAST(coalesce(sum(c.bytes), 0) AS BIGINT) AS bytes
        FROM used u CROSS JOIN present p LEFT JOIN cells c ON c.region_id = u.id AND c.rank = p.rank
        GROUP BY u.name, u.category, u.id, p.rank
        ORDER BY array_position(['send', 'compute', 'recv'], u.category), u.id, p.rank"""
    )
