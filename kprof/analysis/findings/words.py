"""Findings in words: a sentence of at most 25 words with one number that matters, then details."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from kprof.analysis.explain import ExplainedFinding, When
from kprof.analysis.explain.sentences import advice as advice_for
from kprof.analysis.explain.sentences import place, sentence
from kprof.analysis.findings.model import Caused
from kprof.analysis.summary import Summary
from kprof.analysis.wording import counted, duration, members, percent, ratio

__all__ = ["advice", "count_details", "count_sentence", "details", "key", "sentence"]

_MOST_CALLS: Final = 8
_MOST_RANKS: Final = 8


def advice(summary: Summary, cause: ExplainedFinding) -> str:
    """What to do about it, on the devices that the run was on."""
    return advice_for(cause, frozenset(info.target for info in summary.trace.ranks))


def key(cause: ExplainedFinding) -> str:
    """A finding's place for its id: rank-3, blocks-3-7, link-1-2, or else its region."""
    if cause.links:
        ends = ["all" if end < 0 else str(end) for link in cause.links[:2] for end in link]
        return f"link-{'-'.join(ends)}"
    parts = [
        f"{name}-{'-'.join(map(str, numbers[:4]))}"
        for name, numbers in (("rank", cause.ranks), ("block", cause.blocks))
        if numbers
    ]
    return "/".join(parts) or cause.region or "all"


def details(
    cause: ExplainedFinding, waits: Sequence[Caused], total: str, rate: str = ""
) -> tuple[str, ...]:
    """The gain with its interval, in which calls, how fast, and the waits that it causes."""
    low, high = cause.interval_ns
    between = f" (90 % interval {duration(low)} to {duration(high)})" if high > low else ""
    lines = [f"Gain {duration(cause.gain_ns)} of {total}{between}"]
    calls = cause.costly_calls
    if 0 < len(calls) < len(cause.gains_ns) and len(calls) <= _MOST_CALLS:
        lines.append(f"In {members('call', calls)}")
    if rate:
        lines.append(f"{cause.region} {rate}")
    for wait in waits[:2]:
        whom = "each other" if wait.ranks == wait.peers else members("rank", wait.peers, 4)
        lines.append(
            f"{members('Rank', wait.ranks, 4)} {'waits' if len(wait.ranks) == 1 else 'wait'} for "
            f"{whom} in {wait.region}: {percent(wait.share)} of the blocks' time"
        )
    return tuple(lines)


def count_sentence(cause: ExplainedFinding) -> str:
    """What counts alone say, with no word about time."""
    when = f", in {len(cause.calls)} calls" if cause.when is When.SOMETIMES else ""
    has = "has" if len(cause.blocks or cause.ranks) == 1 else "have"
    return (
        f"{place(cause)} {has} {ratio(cause.factor)} as much to do as the others in {cause.region}"
        f"{when}"
    )


def count_details(cause: ExplainedFinding, rows: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """The counts themselves."""
    kind = "rank" if rows and "rank" in rows[0] else "block"
    # Where all have bytes, the ratio is of these.
    what = "bytes" if all(row.get("bytes") for row in rows) else "events"
    shown = [f"{kind} {row[kind]}: {row[what]:,}" for row in rows[:_MOST_RANKS]]
    left = len(rows) - len(shown)
    more = f" and {counted(left, f'more {kind}', f'more {kind}s')}" if left else ""
    return (f"{what.title()} in {cause.region}: {', '.join(shown)}{more}",)
