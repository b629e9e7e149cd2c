"""What readers of the exported file must know, one sentence each, and how to get the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kprof.export.pipeline import Tally
    from kprof.trace import Trace


def notices(trace: Trace, tally: Tally) -> tuple[str, ...]:
    """All notices that apply, the most important first."""
    candidates = (
        _unaligned(trace),
        _missing_ranks(trace),
        _dropped(trace),
        _backwards(tally),
        _merged(tally),
        _cut(tally),
        _sampled(tally),
    )
    return tuple(sentence for sentence in candidates if sentence)


def _unaligned(trace: Trace) -> str:
    if trace.is_on_one_clock:
        return ""
    reason = trace.manifest.alignment_note or "the recording has no clock calibration"
    return f"the clocks of the ranks are not aligned ({reason}): compare times within one rank only"


def _missing_ranks(trace: Trace) -> str:
    missing = trace.manifest.missing_ranks
    if not missing:
        return ""
    names = ", ".join(map(str, missing))
    return f"nothing was recorded on rank {names}: the trace shows the other ranks only"


def _dropped(trace: Trace) -> str:
    num_dropped = sum(info.counts.dropped for info in trace.ranks)
    if not num_dropped:
        return ""
    size = trace.manifest.needed_arena_size
    remedy = (
        f"--arena-size {size} would have held them" if size else "record with more --arena-size"
    )
    return f"{num_dropped:,} events did not fit the arena while recording and are missing; {remedy}"


def _backwards(tally: Tally) -> str:
    if not tally.num_backwards:
        return ""
    return (
        f"{tally.num_backwards:,} waits ended before the send that should have released them "
        "began, and have no arrow: "
        "either the clock alignment is worse than stated, or slots do not identify messages"
    )


def _merged(tally: Tally) -> str:
    if not tally.num_merged:
        return ""
    threshold_ns = tally.detail.threshold_ns
    length = f" of at most {threshold_ns:,} ns" if threshold_ns < tally.last_ns else ""
    return (
        f"{tally.num_merged:,} spans{length} were merged with their neighbours and lost their "
        "arrows; "
        "select less (--ranks, --blocks, --launches, --time) or raise --max-slices to see them "
        "one by one"
    )


def _cut(tally: Tally) -> str:
    if not tally.num_cut:
        return ""
    return (
        f"{tally.num_cut:,} events from {tally.detail.until_ns / 1e3:,.3f} us of the file on were "
        "left out; "
        "select a later --time or raise --max-slices to get them"
    )


def _sampled(tally: Tally) -> str:
    if not tally.has_sampled_counters:
        return ""
    return "counters are sampled, not exact; select less to see every change"
