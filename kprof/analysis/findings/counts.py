"""Findings that rest on numbers of events alone: they hold where times mean nothing."""

from __future__ import annotations

from typing import Final

from kprof.analysis.explain import ExplainedFinding, FindingKind, When
from kprof.analysis.findings.outliers import MIN_RATIO, counts_that_stand_out, ratios_to_others
from kprof.analysis.summary import WORK, Summary, Table, sql_list

_MOST_NAMED: Final = 4
_SENDS_FIRST: Final = "array_position(['send', 'compute', 'recv'], category)"


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
        for rank, ratio in zip(ratios.index.tolist(), ratios.tolist(), strict=True):
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
        blocks = sorted(counts_that_stand_out(by_block["events"]).index.tolist())
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
    is_its = "block" if blocks else "rank"
    table = summary.frame(
        f"""WITH counts AS (
                SELECT s.ordinal, {is_its} IN ({sql_list(blocks or ranks)}) AS is_its,
                    {is_its} AS place, sum(c.events) AS events
                FROM named_cells c JOIN spans_of_launches s USING (rank, launch)
                WHERE region = ? GROUP BY ALL)
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
        region=region,
        calls=calls,
        when=When.ONCE if num_calls == 1 else When.ALWAYS if is_always else When.SOMETIMES,
        factor=ratio,
        costly_calls=calls,
    )


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
