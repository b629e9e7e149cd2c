"""What sentences say beyond the typed fields of a finding: which rank in how many calls, items of
what, where the slow ones are."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Final

from kprof.analysis.explain import ExplainedFinding, FindingKind
from kprof.analysis.explain.sentences import sentence
from kprof.analysis.findings.numbers import blocks_at_work, item_counts, regions_with_more
from kprof.analysis.skew import launch_starts
from kprof.analysis.summary import CLOSED_SPANS, Summary
from kprof.analysis.wording import counted, listed, members, percent

_MOST_NAMED: Final = 3
# Most slow events are in one place from this share on.
_IS_MOST: Final = 0.5


def precise(summary: Summary, cause: ExplainedFinding, num_calls: int) -> str:
    """The sentence of a finding, with the ranks by their calls, and the regions of the items."""
    if cause.kind is FindingKind.LATE_START and len(cause.ranks) > 1:
        return _by_rank(_last_to_start(summary, cause), cause, num_calls)
    if cause.kind is FindingKind.UNEVEN_WORK and cause.region is None:
        regions = regions_with_more(summary, cause)[:_MOST_NAMED]
        return sentence(replace(cause, region=listed(regions) or None), num_calls)
    if cause.kind is FindingKind.UNEVEN_BLOCKS:
        return sentence(cause, num_calls, blocks_at_work(summary, cause.region))
    return sentence(cause, num_calls)


def _last_to_start(summary: Summary, cause: ExplainedFinding) -> Counter[int]:
    """In how many of its calls each rank was the last to start."""
    starts = launch_starts(summary)
    mine = starts[starts["ordinal"].isin(cause.calls) & starts["rank"].isin(cause.ranks)]
    first = mine.groupby(["ordinal", "rank"])["first_ns"].min().reset_index()
    last = first.sort_values("first_ns", kind="stable").groupby("ordinal")["rank"].last()
    return Counter(int(rank) for rank in last.tolist())


def _by_rank(last: Counter[int], cause: ExplainedFinding, num_calls: int) -> str:
    """Rank 0 starts late in 7 of 20 calls, rank 1 in 5."""
    if not 1 < len(last) <= _MOST_NAMED:
        return sentence(cause, num_calls)
    (first, count), *others = last.most_common()
    parts = [f"Rank {first} starts late in {count} of {num_calls} calls"]
    parts += [f"rank {rank} in {number}" for rank, number in others]
    return f"{', '.join(parts)}: costs {percent(cause.share)} of the run"


def particulars_of(summary: Summary, cause: ExplainedFinding) -> tuple[str, ...]:
    """Further lines: the numbers of items, and of slow events the rank or block that has most of
    them."""
    if counts := item_counts(summary, cause):
        return (counts.sentence,)
    if cause.kind is not FindingKind.SLOW_EVENTS or cause.region is None:
        return ()
    table = summary.frame(
        f"""WITH its AS (SELECT rank, block, duration_ns AS ns FROM events
                WHERE {CLOSED_SPANS} AND region = ?),
            usual AS (SELECT median(ns) AS ns FROM its)
            SELECT rank, block, count(*) AS events FROM its
            WHERE ns > (SELECT ns FROM usual) * {(1 + cause.factor) / 2:.6f}
            GROUP BY rank, block ORDER BY events DESC, rank, block""",
        [cause.region],
    )
    total = int(table["events"].sum())
    if total == 0:
        return ()
    rank, block, most = (int(table[name].iloc[0]) for name in ("rank", "block", "events"))
    by_rank = table.groupby("rank")["events"].sum()
    if most >= _IS_MOST * total:
        return (f"{most:,} of {total:,} slow ones are in block {block} of rank {rank}",)
    if by_rank.max() >= _IS_MOST * total and len(summary.trace.ranks) > 2:
        return (f"{int(by_rank.max()):,} of {total:,} slow ones are on rank {by_rank.idxmax()}",)
    ranks = members("rank", by_rank.index.tolist(), _MOST_NAMED)
    where = f"{counted(len(table), 'block', 'blocks')} of {ranks}"
    return (f"The {total:,} slow ones are spread over {where}",)
