"""The dependency graph of one call: spans in the order of their tracks, and what each of them waits
for.

    track order     a span starts after the one before it on its track
    flow            a wait ends after the send that releases it
    barrier         all leave after the last one entered
    stream order    the tracks of a launch start after the launch before it on that rank has ended

Only innermost spans are nodes: a span around others adds nothing to what the others say.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from kprof.analysis.barriers import worst_bound_ns
from kprof.analysis.calls import Call, typical_call
from kprof.analysis.memo import memo
from kprof.analysis.summary import CLOSED_SPANS
from kprof.errors import SelectionError

if TYPE_CHECKING:
    from kprof.analysis.summary import Summary
    from kprof.trace import Trace

Ints = NDArray[np.int64]

ACROSS_RANKS: Final = "what depends on what across ranks"
# A call beyond this is walked too slowly in Python and would not fit a screen either.
MAX_SPANS: Final = 300_000


@dataclass(frozen=True)
class CallGraph:
    """Columns over the spans of a call, sorted by track and start; indices are -1 where there is
    nothing.

    `previous` is the span before on the same track and launch, `send` the span that releases this
    wait, `is_held` says that the wait had to wait for it (and did not find the data there),
    `barrier` a number that all spans of one barrier share, `peer` the rank that a span has to do
    with (its own payload, else that of the wait before it), `launch_index` points into the
    `launch_*` columns, which are per (rank, launch).
    """

    start_ns: int
    end_ns: int
    starts: Ints
    ends: Ints
    rank: Ints
    block: Ints
    warp: Ints
    track: Ints
    region: Ints
    is_wait: NDArray[np.bool_]
    peer: Ints
    previous: Ints
    send: Ints
    is_held: NDArray[np.bool_]
    barrier: Ints
    launch_index: Ints
    launch_rank: Ints
    launch_before: Ints
    region_names: tuple[str, ...]
    region_categories: tuple[str, ...]

    def __len__(self) -> int:
        """The number of spans."""
        return len(self.starts)

    def place(self, index: int) -> tuple[int, int, int]:
        """rank, block, warp of a span."""
        return int(self.rank[index]), int(self.block[index]), int(self.warp[index])


# Of a transfer's time a wait for it covers a tenth or more, else it is not taken for a wait for
# that transfer.
_LEAST_PART_SEEN: Final = 10


def graph_of(summary: Summary, call: Call | None = None) -> CallGraph | None:
    """The graph of a call, by default the one of median length; None when there are no events.
    Raises like `load_graph`."""
    if call is not None:
        return load_graph(summary, call)
    summary.trace.require_alignment(ACROSS_RANKS)
    typical = typical_call(summary)
    if typical is None:
        return None
    return load_graph(summary, typical)


# The critical path, delay costs and all replays walk the same graph.
@memo
def load_graph(summary: Summary, call: Call) -> CallGraph:
    """The graph of a call; raises ClockError on unaligned clocks and SelectionError when the call
    is too large."""
    summary.trace.require_alignment(ACROSS_RANKS)
    _check_size(summary, call)
    part = summary.trace.select(launches=call.launches)
    spans = _load_spans(part)
    sends = _load_sends(part)
    index_of = {event: i for i, event in enumerate(spans["event_id"].tolist())}
    send = np.full(len(spans["starts"]), -1, dtype=np.int64)
    for wait_event, send_event in sends:
        if wait_event in index_of and send_event in index_of:
            send[index_of[wait_event]] = index_of[send_event]
    launch_index, launch_rank, launch_before = _launches(spans)
    track = _numbers(spans["rank"], spans["launch"], spans["block"], spans["warp"])
    order = np.arange(len(track), dtype=np.int64)
    previous = (
        np.where(np.r_[False, track[1:] == track[:-1]], order - 1, -1) if len(track) else order
    )
    categories = _categories(summary)
    region = spans["region_id"]
    return CallGraph(
        start_ns=int(spans["starts"].min(initial=call.end_ns)),
        end_ns=int(spans["ends"].max(initial=call.start_ns)),
        starts=spans["starts"],
        ends=spans["ends"],
        rank=spans["rank"],
        block=spans["block"],
        warp=spans["warp"],
        track=track,
        region=region,
        is_wait=np.isin(region, [i for i, c in enumerate(categories) if c in ("wait", "sync")]),
        peer=_served_peers(spans, previous),
        previous=previous,
        send=send,
        is_held=_held(spans, region, send),
        barrier=_barriers(spans, region, categories, send, worst_bound_ns(summary)),
        launch_index=launch_index,
        launch_rank=launch_rank,
        launch_before=launch_before,
        region_names=("unknown region", *summary.trace.regions.names),
        region_categories=categories,
    )


def _categories(summary: Summary) -> tuple[str, ...]:
    """By region id; 0 is an unknown region."""
    return ("other", *[region.category.value for region in summary.trace.regions.regions])


def _check_size(summary: Summary, call: Call) -> None:
    listed = ", ".join(str(launch) for launch in call.launches) or "NULL"
    table = summary.frame(
        "SELECT coalesce(CAST(sum(events) AS BIGINT), 0) AS n FROM tracks WHERE launch IN "
        f"({listed})"
    )
    count = int(table["n"].iloc[0])
    if count > MAX_SPANS:
        raise SelectionError(
            f"the call has {count} spans, more than the {MAX_SPANS} that its dependencies are "
            "worked out for; "
            "select fewer blocks or ranks"
        )


def _load_spans(part: Trace) -> dict[str, Ints]:
    frame = part.frame(
        f"""
        WITH spans AS (
            SELECT event_id, rank, launch, block, warp, region_id, coalesce(peer, -1) AS peer,
                start_ns AS starts, end_ns AS ends,
                lead(start_ns) OVER track AS next_start, lead(end_ns) OVER track AS next_end
            FROM events WHERE {CLOSED_SPANS}
            WINDOW track AS (PARTITION BY rank, launch, block, warp ORDER BY start_ns, end_ns DESC,
                event_id))
        SELECT event_id, rank, launch, block, warp, region_id, peer, starts, ends FROM spans
        WHERE NOT (next_start IS NOT NULL AND next_start < ends AND next_end <= ends)
        ORDER BY rank, launch, block, warp, starts, ends, event_id"""
    )
    return {name: frame[name].to_numpy(dtype=np.int64) for name in frame.columns}


def _load_sends(part: Trace) -> list[tuple[int, int]]:
    frame = part.frame("SELECT wait_event_id, send_event_id FROM flows")
    return list(zip(frame["wait_event_id"].tolist(), frame["send_event_id"].tolist(), strict=True))


def _numbers(*columns: Ints) -> Ints:
    """One number per distinct row of the columns."""
    if len(columns[0]) == 0:
        return np.zeros(0, dtype=np.int64)
    changes = np.zeros(len(columns[0]), dtype=bool)
    for column in columns:
        changes[1:] |= column[1:] != column[:-1]
    return np.cumsum(changes)


def _launches(spans: dict[str, Ints]) -> tuple[Ints, Ints, Ints]:
    """Launch index of every span, and per (rank, launch): its rank and the launch that ended before
    it on that rank."""
    index = _numbers(spans["rank"], spans["launch"])
    count = int(index.max(initial=-1)) + 1
    first = np.full(count, np.iinfo(np.int64).max)
    last = np.full(count, np.iinfo(np.int64).min)
    ranks = np.zeros(count, dtype=np.int64)
    np.minimum.at(first, index, spans["starts"])
    np.maximum.at(last, index, spans["ends"])
    ranks[index] = spans["rank"]
    before = np.full(count, -1, dtype=np.int64)
    for i in range(count):
        ended = [j for j in range(count) if j != i and ranks[j] == ranks[i] and last[j] <= first[i]]
        before[i] = max(ended, key=lambda j: last[j], default=-1)
    return index, ranks, before


def _barriers(
    spans: dict[str, Ints],
    region: Ints,
    categories: tuple[str, ...],
    send: Ints,
    bound_ns: float,
) -> Ints:
    """Number the barriers: the n-th sync span of every track, over all ranks where all leave after
    the last one enters, as far as the clocks can tell, else over each rank where that holds there,
    else nothing (a lock lets its holders leave one by one)."""
    groups = np.full(len(region), -1, dtype=np.int64)
    number = 0
    for region_id, category in enumerate(categories):
        chosen = np.flatnonzero((region == region_id) & (send < 0))
        if category != "sync" or len(chosen) < 2:
            continue
        occurrence = _occurrences(
            _numbers(*[spans[n][chosen] for n in ("rank", "launch", "block", "warp")])
        )
        for by_rank in (False, True):
            keys = occurrence if not by_rank else occurrence * 65536 + spans["rank"][chosen]
            if _all_leave_after_the_last(spans, chosen, keys, 0.0 if by_rank else bound_ns):
                _, inverse = np.unique(keys, return_inverse=True)
                groups[chosen] = number + inverse
                number += int(inverse.max()) + 1
                break
    return groups


def _served_peers(spans: dict[str, Ints], previous: Ints) -> Ints:
    """A span without a peer has that of the span before it: a copy after the wait for a token."""
    order = np.arange(len(previous))
    anchors = np.maximum.accumulate(np.where((spans["peer"] >= 0) | (previous < 0), order, 0))
    served: Ints = spans["peer"][anchors] if len(order) else spans["peer"]
    return served


def _held(spans: dict[str, Ints], region: Ints, send: Ints) -> NDArray[np.bool_]:
    """Waits that began before their send was over, or that took clearly longer than one look at a
    flag that is set.

    One look is the shortest wait of the region. A wait that is short against the time since its
    send was over found the data there and was slow for another reason: that it began in the last
    tenth of a transfer is less likely.
    """
    duration = spans["ends"] - spans["starts"]
    shortest = np.full(int(region.max(initial=0)) + 1, np.iinfo(np.int64).max)
    np.minimum.at(shortest, region, duration)
    is_long = duration > 2 * shortest[region] + 1
    is_long &= _LEAST_PART_SEEN * duration >= spans["ends"] - spans["ends"][send]
    held: NDArray[np.bool_] = (send >= 0) & (is_long | (spans["ends"][send] > spans["starts"]))
    return held


def _occurrences(tracks: Ints) -> Ints:
    """Position within its track of every element of a column that is sorted by track."""
    order = np.arange(len(tracks))
    starts = np.r_[True, tracks[1:] != tracks[:-1]]
    positions: Ints = order - np.maximum.accumulate(np.where(starts, order, 0))
    return positions


def _all_leave_after_the_last(
    spans: dict[str, Ints], chosen: Ints, keys: Ints, bound_ns: float
) -> bool:
    """And at about the same time: holders of a lock leave it as far apart as they wait."""
    starts, ends = spans["starts"][chosen], spans["ends"][chosen]
    _, inverse, counts = np.unique(keys, return_inverse=True, return_counts=True)
    last_enter = np.full(len(counts), np.iinfo(np.int64).min)
    last_leave = last_enter.copy()
    first_leave = np.full(len(counts), np.iinfo(np.int64).max)
    longest = np.zeros(len(counts), dtype=np.int64)
    np.maximum.at(last_enter, inverse, starts)
    np.maximum.at(last_leave, inverse, ends)
    np.minimum.at(first_leave, inverse, ends)
    np.maximum.at(longest, inverse, ends - starts)
    if (last_leave - first_leave).sum() > 0.7 * longest.sum():
        return False
    return bool((counts > 1).all() and (first_leave + bound_ns >= last_enter).mean() >= 0.95)
