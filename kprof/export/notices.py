"""What readers of the exported file must know, one sentence each, and how to get the rest."""

from __future__ import annotations

from collections.abc import Iterator

from kprof.export.pipeline import Tally
from kprof.trace import Trace


def notices(trace: Trace, tally: Tally) -> tuple[str, ...]:
    """All notices that apply, the most important first."""
    return (*_of_capture(trace), *_of_file(tally))


def _of_capture(trace: Trace) -> Iterator[str]:
    if not trace.is_on_one_clock:
        reason = trace.manifest.alignment_note or "the recording has no clock calibration"
        yield (
            f"the clocks of the ranks are not aligned ({reason}): compare times within one rank "
            "only"
        )
    if missing := trace.manifest.missing_ranks:
        names = ", ".join(map(str, missing))
        yield f"nothing was recorded on rank {names}: the trace shows the other ranks only"
    if num_dropped := sum(info.counts.dropped for info in trace.ranks):
        size = trace.manifest.needed_arena_size
        held = f"--arena-size {size} would have held them"
        yield (
            f"{num_dropped:,} events did not fit the arena while recording and are missing; "
            f"{held if size else 'record with a larger --arena-size'}"
        )


def _of_file(tally: Tally) -> Iterator[str]:
    if tally.num_backwards:
        yield (
            f"{tally.num_backwards:,} waits ended before the send that should have released them "
            "began, and have no arrow: either the clock alignment is worse than stated, or slots "
            "do not identify messages"
        )
    if tally.num_merged:
        threshold_ns = tally.detail.threshold_ns
        length = f" of at most {threshold_ns:,} ns" if threshold_ns < tally.last_ns else ""
        yield (
            f"{tally.num_merged:,} spans{length} were merged with their neighbours and lost their "
            "arrows; select less (--ranks, --blocks, --launches, --time) or raise --max-slices to "
            "see them one by one"
        )
    if tally.num_cut:
        yield (
            f"{tally.num_cut:,} events from {tally.detail.until_ns / 1e3:,.3f} us of the file on "
            "were left out; select a later --time or raise --max-slices to get them"
        )
    if tally.has_sampled_counters:
        yield "counters are sampled, not exact; select less to see every change"
