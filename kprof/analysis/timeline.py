"""What tracks do over time, in bins, so that pictures do not grow with the trace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import pandas as pd

from kprof.analysis.calls import launch_starts, typical_call
from kprof.analysis.findings.places import LAUNCHES
from kprof.analysis.summary import CLOSED_SPANS, Summary, Table, sql_list

NUM_BINS: Final = 240
# So many blocks of each rank with the most work, and as many with the least.
_FROM_EACH_END: Final = 8
_MOST_SPANS: Final = 2500
_MOST_SPANS_OF_TRACK: Final = 200


@dataclass(frozen=True)
class Focus:
    """The part of the trace to draw: [start_ns, end_ns], and why it was chosen."""

    start_ns: int
    end_ns: int
    what: str


def focus(summary: Summary) -> Focus:
    """The call of median length, or the whole run if there is only one call."""
    call = typical_call(summary)
    return Focus(0, 0, "nothing") if call is None else Focus(call.start_ns, call.end_ns, call.name)


def launches_within(summary: Summary, over: Focus) -> str:
    """An SQL condition on `launch` that skips Parquet row groups of earlier and later launches."""
    starts = launch_starts(summary)
    within = starts[(starts["first_ns"] < over.end_ns) & (starts["last_ns"] > over.start_ns)]
    return f"launch IN ({sql_list(sorted(set(within['launch'])))})"


def activity(summary: Summary, over: Focus, num_bins: int = NUM_BINS) -> Table:
    """The share of a rank's tracks in each category per time bin: rank, category, bin, from_ns,
    share.

    A span adds its part to the first and last bin, and 1 to each bin between. The latter is a step
    up and a step down, summed along the bins, so that events are not repeated. On unaligned clocks
    every rank has its own time axis.
    """
    spans = f"""SELECT rank, category, start_ns, end_ns FROM events
        WHERE {CLOSED_SPANS} AND {launches_within(summary, over)}"""
    return _binned(summary, over, spans, num_bins)


def presence(summary: Summary, over: Focus) -> Table:
    """The share of a rank's tracks between their first start and their last end in a launch, like
    `activity`, with the category `present`. What is left is imbalance."""
    spans = """SELECT rank, 'present' AS category, first_ns AS start_ns, last_ns AS end_ns
        FROM tracks"""
    return _binned(summary, over, spans, NUM_BINS)


def bin_width(over: Focus, num_bins: int) -> int:
    """The width of a bin in ns; the last bin may reach beyond the end."""
    return max(1, -(-(over.end_ns - over.start_ns) // num_bins))


def parts_sql(over: Focus, spans: str, keys: str, width: int) -> str:
    """SQL of a table `parts`, of size keys x bins, that says how much of each bin the spans fill.

    `spans` is a query for columns `keys`, start_ns and end_ns. Columns: keys, bin, part (ns that
    spans fill of their first and last bin), ups and downs (spans that fill bins beginning after
    this one, and before this one). With n the sum of ups - downs up to a bin, spans fill part +
    width * (n - ups) ns of it.
    """
    return f"""spans AS (
            SELECT {keys}, greatest(start_ns, {over.start_ns}) - {over.start_ns} AS a,
                least(end_ns, {over.end_ns}) - {over.start_ns} AS b
            FROM ({spans}) WHERE start_ns < {over.end_ns} AND end_ns > {over.start_ns}),
        cut AS (SELECT *, a // {width} AS first, b // {width} AS last FROM spans),
        parts AS MATERIALIZED (
            SELECT {keys}, first AS bin, sum(least(b, (first + 1) * {width}) - a) AS part,
                count(*) FILTER (last > first) AS ups, 0 AS downs FROM cut GROUP BY ALL
            UNION ALL
            SELECT {keys}, last, sum(b - last * {width}), 0, count(*) FROM cut
                WHERE last > first GROUP BY ALL)"""


def _binned(summary: Summary, over: Focus, spans: str, num_bins: int) -> Table:
    width = bin_width(over, num_bins)
    return summary.frame(
        f"""
        WITH {parts_sql(over, spans, "rank, category", width)},
        bins AS (
            SELECT rank, category, bin, sum(part) AS part, sum(ups) AS ups, sum(downs) AS downs
            FROM (FROM parts UNION ALL
                SELECT DISTINCT rank, category, unnest(range({num_bins})), 0, 0, 0 FROM parts)
            WHERE bin < {num_bins} GROUP BY ALL),
        counts AS (SELECT rank, count(DISTINCT (block, warp)) AS tracks FROM tracks GROUP BY rank)
        SELECT rank, category, CAST(bin AS BIGINT) AS bin,
            {over.start_ns} + bin * {width} AS from_ns,
            (part + {width} * (sum(ups - downs) OVER along - ups)) / ({width} * tracks) AS share
        FROM bins JOIN counts USING (rank)
        WINDOW along AS (PARTITION BY rank, category ORDER BY bin) ORDER BY rank, category, bin"""
    )


def longest_spans(summary: Summary, over: Focus, ranks: list[int]) -> Table:
    """The longest spans of a few blocks of the given ranks: rank, block, warp, region, category,
    peer, start_ns, end_ns.

    Keeps each rank's blocks with the most and the least wait time, so that uneven ones are among
    them.
    """
    chosen = sql_list(ranks)
    return summary.frame(
        f"""
        WITH blocks AS (
            SELECT rank, block, sum(work_ns) AS work_ns FROM tracks
                WHERE rank IN ({chosen}) GROUP BY ALL),
        ranked AS (
            SELECT rank, block, row_number()
                OVER (PARTITION BY rank ORDER BY work_ns DESC, block) AS most,
                row_number() OVER (PARTITION BY rank ORDER BY work_ns, block) AS least FROM blocks),
        kept AS (
            SELECT rank, block FROM ranked
            WHERE most <= {_FROM_EACH_END} OR least <= {_FROM_EACH_END}),
        first_warps AS (
            SELECT rank, block, min(warp) AS warp FROM tracks SEMI JOIN kept
                USING (rank, block) GROUP BY ALL)
        SELECT rank, block, warp, region, category, coalesce(peer, -1) AS peer, start_ns, end_ns
        FROM events SEMI JOIN first_warps USING (rank, block, warp)
        WHERE {CLOSED_SPANS} AND rank IN ({chosen}) AND start_ns < {over.end_ns}
            AND end_ns > {over.start_ns}
            AND {launches_within(summary, over)}
        ORDER BY duration_ns DESC, event_id LIMIT {_MOST_SPANS}"""
    ).sort_values(["rank", "block", "start_ns"], ignore_index=True)


def spans_of_ranks(
    summary: Summary, over: Focus, ranks: Sequence[int], at_most: int
) -> tuple[Table, int]:
    """The longest spans of all blocks of some ranks, and how many there are in all.

    Columns as those of `longest_spans`, without warp: of a block with several warps the first one
    is taken.
    """
    chosen = sql_list(list(ranks))
    table = summary.frame(
        f"""WITH first_warps AS (
            SELECT rank, block, min(warp) AS warp FROM tracks WHERE rank IN ({chosen}) GROUP BY ALL)
        SELECT rank, block, region, category, coalesce(peer, -1) AS peer, start_ns, end_ns,
            count(*) OVER () AS num_spans
        FROM events SEMI JOIN first_warps USING (rank, block, warp)
        WHERE {CLOSED_SPANS} AND rank IN ({chosen}) AND start_ns < {over.end_ns}
            AND end_ns > {over.start_ns} AND {launches_within(summary, over)}
        ORDER BY duration_ns DESC, event_id LIMIT {int(at_most)}"""
    )
    number = 0 if table.empty else int(table["num_spans"].iloc[0])
    return table.drop(columns="num_spans"), number


def spans_of_tracks(
    summary: Summary, window_ns: tuple[int, int], tracks: Sequence[tuple[int, int]]
) -> Table:
    """The longest spans of some (rank, block) pairs in a stretch of time, 200 of each at most.

    Columns as those of `longest_spans`. Of a block with several warps the first one with events is
    taken. Block LAUNCHES stands for the launches of the rank: regions are kernels then, and
    categories are empty.
    """
    first_ns, last_ns = window_ns
    within = f"first_ns < {int(last_ns)} AND last_ns > {int(first_ns)}"
    ranks, blocks = (sql_list(sorted(set(numbers))) for numbers in zip(*tracks, strict=True))
    spans = summary.frame(
        f"""WITH chosen AS (
            SELECT rank, block, warp, region, category, coalesce(peer, -1) AS peer, start_ns,
                end_ns, duration_ns, event_id, min(warp) OVER (PARTITION BY rank, block) AS first
            FROM events WHERE {CLOSED_SPANS} AND rank IN ({ranks}) AND block IN ({blocks})
                AND start_ns < {int(last_ns)} AND end_ns > {int(first_ns)}
                AND {launches_within(summary, Focus(first_ns, last_ns, ""))})
        SELECT * EXCLUDE (duration_ns, event_id, first) FROM chosen WHERE warp = first
        QUALIFY row_number() OVER (PARTITION BY rank, block ORDER BY duration_ns DESC, event_id)
            <= {_MOST_SPANS_OF_TRACK}
        ORDER BY start_ns, duration_ns DESC, event_id"""
    )
    parts = [
        summary.frame(
            f"""SELECT rank, {LAUNCHES} AS block, -1 AS warp, kernel AS region, '' AS category,
                -1 AS peer, first_ns AS start_ns, last_ns AS end_ns
            FROM spans_of_launches WHERE rank = {int(rank)} AND {within}
            ORDER BY start_ns, launch LIMIT {_MOST_SPANS_OF_TRACK}"""
        )
        if block == LAUNCHES
        else spans[(spans["rank"] == rank) & (spans["block"] == block)]
        for rank, block in tracks
    ]
    return pd.concat(parts, ignore_index=True)
