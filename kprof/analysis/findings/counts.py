"""Findings that rest on numbers of events alone: they hold where times mean nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kprof.analysis.explain import ExplainedFinding, FindingKind, When
from kprof.analysis.findings.outliers import by_number, counts_that_stand_out, ratios_to_others

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
    calls = summary.frame("SELECT DISTINCT ordinal FROM spans_of_launches ORDER BY ordinal")
    ordinals = tuple(int(ordinal) for ordinal in calls["ordinal"].tolist())
    for region, group in _counts(summary).groupby("region", sort=False):
        by_rank = group.set_index("rank")
        standing = counts_that_stand_out(by_rank["events"])
        quantity = "bytes" if (by_rank["bytes"] > 0).all() else "events"
        ratios = ratios_to_others(by_rank[quantity])[standing.index]
        rows = by_rank.reset_index()[["rank", "events", "bytes"]].to_dict("records")
        for rank, ratio in by_number(ratios).items():
            if rank not in found and ratio > 1:
                cause = _uneven(rank, str(region), ratio, ordinals)
                found[rank] = cause, [{str(k): v for k, v in row.items()} for row in rows]
    ordered = sorted(found.values(), key=lambda finding: -finding[0].factor)
    return ordered[:_MOST_NAMED]


def _uneven(rank: int, region: str, ratio: float, calls: tuple[int, ...]) -> ExplainedFinding:
    return ExplainedFinding(
        kind=FindingKind.UNEVEN_WORK,
        ranks=(rank,),
        blocks=(),
        places=(),
        links=(),
        region=region,
        calls=calls,
        when=When.ALWAYS,
        period=0,
        gain_ns=0.0,
        interval_ns=(0.0, 0.0),
        share=0.0,
        factor=ratio,
        gains_ns=(),
        costly_calls=calls,
        alone_ns=0.0,
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
