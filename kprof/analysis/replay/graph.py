"""What every span of some calls waits for, as arrays.

    track order     a span starts a gap after the one before it on its track
    launch order    the first span of a track starts a lead after its launch; a launch starts after
                    the launch before it on its rank has ended, or with the call
    waves           a block that had no room starts after the block whose place it takes, or when
                    any place is free (`waves.py`)
    flow            a wait ends when its data has arrived from the send, or later
    barrier         all leave after the last one has entered
    lock            goes to the next block when its holder releases it, first come, first served
                    (`locks.py`)

A span ends when both its own track and the other side allow it:

    end = max(end of what is before + gap + own time, end of what releases it + travel)

The own time of a wait that was held up is one look at its flag. The own time of any other span is
its duration. So an unedited replay gives every measured end, to the nanosecond.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from kprof.analysis.replay.columns import (
    extents,
    firsts_of,
    grouped,
    grouped_median,
    shortest_of,
    turns_of,
)
from kprof.analysis.replay.locks import LEAST_PART_SEEN, locks_of
from kprof.analysis.replay.spans import Bools, Floats, Ints, Spans
from kprof.analysis.replay.waves import Wave, waves_of

# A wait was held up if it took this many times a usual look at a flag, however long the transfer
# took. A look may be long by chance: a wait is a look if it is negligible beside the time since the
# send.
_SURELY_HELD: Final = 8
_NEGLIGIBLE: Final = 1 / 32
# A wait that began after its data had usually arrived either looked for a long time or waited for a
# slow transfer. It was a long look if a slow transfer would need this many times more delay.
_STALL_RATIO: Final = 4
# So many launches before one may still run when it begins.
_FAR_BACK: Final = 256
# The fastest links: this quantile.
_BEST: Final = 0.1
# Ranks go on by themselves if the time from their own ends to their starts has at most this part of
# the variance of the time from the last end of all; of fewer starts that is chance.
_OWN: Final = 0.25
_ENOUGH_STARTS: Final = 8
# Or if single starts tell so by this many standard errors: chance reaches it once in 160 times. A
# start that is off by more than so many times the median counts as off by that: it is late.
_SURELY_OWN: Final = 2.5
_LATE: Final = 3.0
_ALL_LEAVE_TOGETHER: Final = 0.7
_SHARE_OF_BARRIERS: Final = 0.95


@dataclass(frozen=True)
class Graph:
    """Columns over spans, launches and calls. -1 means none.

    before            the span that a span follows: on its track, or in the block whose place its
                      block takes
    releaser          the span whose end lets it end
    barrier           the number of its barrier
    own_ns, gap_ns, travel_ns    the times of the formula above; in a barrier, `travel_ns` counts
                      from its opening
    queue             the number of a lock that is served first come, first served
    held_until        the last span for which the holder keeps the lock
    waves             launches whose later blocks take any free place
    launch_before     the launch before on the rank
    launch_gap_ns     the time since that launch, or since the start of the call
    bound_ns          how far two clocks may disagree
    pause_ns          if a rank's first launch of a call follows its last of the call before: a call
                      begins so long after the end of the call before it
    """

    spans: Spans
    before: Ints
    releaser: Ints
    is_held: Bools
    is_wait: Bools
    barrier: Ints
    own_ns: Floats
    gap_ns: Floats
    travel_ns: Floats
    queue: Ints
    held_until: Ints
    waves: tuple[Wave, ...]
    launch_before: Ints
    launch_gap_ns: Floats
    launch_rank: Ints
    launch_call: Ints
    call_start: Ints
    call_end: Ints
    bound_ns: float
    pause_ns: int | None = None


def build_graph(spans: Spans, bound_ns: float = 0.0) -> Graph:
    """The dependencies of spans; `bound_ns` is how far two clocks may disagree."""
    is_wait = spans.is_of("wait", "sync")
    barrier = _barriers(spans, bound_ns)
    is_held = _held(spans)
    releaser = np.where(is_released(spans), spans.send, -1)
    locks = locks_of(spans, barrier)
    releaser = np.where(locks.releaser >= 0, locks.releaser, releaser)
    is_held = np.where(locks.releaser >= 0, locks.was_queued, is_held & (releaser >= 0))
    duration = (spans.end - spans.start).astype(float)
    can_be_held = is_held | (barrier >= 0)
    look = _looks(spans, is_wait & ~can_be_held, duration)
    own = np.where(can_be_held, np.minimum(look, duration), duration)
    place_of, waves = waves_of(spans)
    before = np.where(spans.previous >= 0, spans.previous, place_of)
    first_of_launch = firsts_of(spans.launch)
    launch_call = spans.call[first_of_launch]
    launch_start, launch_end = extents(spans.launch, spans.start, spans.end)
    call_start, call_end = extents(spans.call, spans.start, spans.end)
    is_joined = not nothing_joins(spans, releaser, barrier)
    pause_ns = _pause_ns(spans, call_start, call_end, bound_ns) if is_joined else None
    if pause_ns is not None:
        # Then lengths add up to the run's, without the pauses.
        call_start = np.r_[call_start[:1], call_end[:-1] + pause_ns]
    is_linked = pause_ns is not None
    launch_before = _launch_order(spans, launch_start, launch_end, is_linked=is_linked)
    origin = np.where(launch_before >= 0, launch_end[launch_before], call_start[launch_call])
    base = np.where(before >= 0, spans.end[before], launch_start[spans.launch])
    return Graph(
        spans=spans,
        before=before,
        releaser=releaser,
        is_held=is_held,
        is_wait=is_wait,
        barrier=barrier,
        own_ns=own,
        gap_ns=(spans.start - base).astype(float),
        travel_ns=_travel(spans, releaser, is_held, barrier, locks.queue),
        queue=locks.queue,
        held_until=locks.held_until,
        waves=waves,
        launch_before=launch_before,
        launch_gap_ns=(launch_start - origin).astype(float),
        launch_rank=spans.rank[first_of_launch],
        launch_call=launch_call,
        call_start=call_start,
        call_end=call_end,
        bound_ns=bound_ns,
        pause_ns=pause_ns,
    )


def nothing_joins(spans: Spans, releaser: Ints, barrier: Ints) -> bool:
    """Whether there are several ranks that wait, and none of them releases a wait of another."""
    if len(np.unique(spans.rank)) < 2 or not spans.is_of("wait", "sync").any():
        return False
    crosses = (releaser >= 0) & (spans.rank[releaser] != spans.rank)
    met = barrier >= 0
    low, high = extents(barrier[met], spans.rank[met], spans.rank[met])
    return not crosses.any() and not (low < high).any()


def _run_on(call_start: Ints, call_end: Ints, bound_ns: float) -> bool:
    """Whether ranks go on to the next call without waiting for each other: most calls begin before
    the one before has ended, so that a delay shows in later calls."""
    overlap = call_end[:-1] - call_start[1:]
    is_ordered = bool((np.diff(call_end) > 0).all())
    return len(overlap) > 0 and is_ordered and bool((overlap > bound_ns).mean() > 0.5)


def _pause_ns(spans: Spans, call_start: Ints, call_end: Ints, bound_ns: float) -> int | None:
    """The shortest time from a rank's end of a call to its start of the next, if ranks go on by
    themselves; 0 where calls overlap; else None.

    They do if a rank's own end tells far better when it starts than the end of all ranks.
    """
    if _run_on(call_start, call_end, bound_ns):
        return 0
    ranks, rank = np.unique(spans.rank, return_inverse=True)
    first, last = extents(rank * spans.num_calls + spans.call, spans.start, spans.end)
    num_starts = len(ranks) * (spans.num_calls - 1)
    if num_starts < _ENOUGH_STARTS or (first > last).any() or (np.diff(spans.ordinals) != 1).any():
        return None
    begins, ends = (x.reshape(len(ranks), -1) for x in (first, last))
    own, common = begins[:, 1:] - ends[:, :-1], begins[:, 1:] - ends[:, :-1].max(axis=0)
    # How late a rank is as a rule tells nothing: it may be late by itself.
    spread = [x.var(axis=1).sum() for x in (own, common)]
    goes_on = (
        spread[0] < _OWN * spread[1]
        or _follow_own_ends(spans, rank, own, common)
        or _own_ends_tell_more(own, common)
    )
    # By chance, what all ranks of a call have in common may be short after a long call.
    apart = [np.median(np.abs(x - np.median(x, axis=0))) for x in (own, common)]
    goes_on = goes_on and bool(apart[0] <= apart[1])
    return int(own.min()) if own.min() >= 0 and goes_on else None


def _own_ends_tell_more(own: Ints, common: Ints) -> bool:
    """Whether most single starts are nearer to what own ends predict than to what the end of all
    does, beside what a call's starts have in common, and a rank's: a pause may be long for all, and
    a rank late by itself."""
    off = []
    for times in (own, common):
        of_call = times - np.median(times, axis=0)
        off.append(np.abs(of_call - np.median(of_call, axis=1)[:, None]))
    most = _LATE * max(np.median(x) for x in off)
    nearer = np.minimum(off[1], most) - np.minimum(off[0], most)
    return bool(nearer.mean() > _SURELY_OWN * nearer.std() / np.sqrt(nearer.size))


def _follow_own_ends(spans: Spans, rank: Ints, own: Ints, common: Ints) -> bool:
    """Whether most starts are alike after the ranks' own ends, and not after the end of all, though
    no rank changes from call to call: and none ends late because it started late, for it waits."""
    spread = [float(np.median(np.abs(x - np.median(x)))) for x in (own, common)]
    late, paused = (np.median(x, axis=1) - np.median(x, axis=1).min() for x in (common, own))
    is_alike = spread[0] ** 2 < _OWN * spread[1] ** 2
    return is_alike and bool((_waited(spans, rank) >= late - paused).all())


def _waited(spans: Spans, rank: Ints) -> Floats:
    """How long a rank waits in a call as a rule, on the track that ends last: so late it may start
    and end no later."""
    first, is_wait = firsts_of(spans.track), spans.is_of("wait", "sync")
    waits = np.bincount(spans.track, weights=np.where(is_wait, spans.end - spans.start, 0))
    _, ends = extents(spans.track, spans.start, spans.end)
    order = np.argsort(ends, kind="stable")
    waited = np.zeros((int(rank.max()) + 1, spans.num_calls))
    waited[rank[first][order], spans.call[first][order]] = waits[order]
    return np.median(waited, axis=1)


def _looks(spans: Spans, is_look: Bools, duration: Floats) -> Floats:
    """What one look at a flag takes: the shortest wait of the region that was not held up, or of
    all regions where all waits of this one were held up."""
    shortest = np.full(len(spans.region_names), np.inf)
    np.minimum.at(shortest, spans.region[is_look], duration[is_look])
    known = np.isfinite(shortest)
    shortest[~known] = shortest[known].min(initial=np.inf) if known.any() else 0.0
    return shortest[spans.region]


def _launch_order(spans: Spans, starts: Ints, ends: Ints, *, is_linked: bool) -> Ints:
    """For every launch the last one of its rank and call, or of any call if they are linked, that
    ended before it began."""
    first = firsts_of(spans.launch)
    rank, call = spans.rank[first], spans.call[first]
    before = np.full(len(first), -1, dtype=np.int64)
    groups: dict[tuple[int, int], list[int]] = {}
    for launch, key in enumerate(zip(call.tolist(), rank.tolist(), strict=True)):
        groups.setdefault((0, key[1]) if is_linked else key, []).append(launch)
    for members in groups.values():
        # Two launches of no length at one instant would each be before the other.
        ordered = sorted(members, key=lambda m: (int(starts[m]), int(ends[m])))
        for place, launch in enumerate(ordered):
            earlier = ordered[max(0, place - _FAR_BACK) : place]
            ended = [m for m in earlier if ends[m] <= starts[launch]]
            before[launch] = max(ended, key=lambda m: int(ends[m]), default=-1)
    return before


def is_released(spans: Spans) -> Bools:
    """Which waits their send released. A wait that ended before its send began was not."""
    return (spans.send >= 0) & (spans.start[spans.send] < spans.end)


def _held(spans: Spans) -> Bools:
    """Waits that began before their send ended, or took clearly longer than one look."""
    duration = spans.end - spans.start
    shortest = shortest_of(spans.region, duration.astype(float))
    sent = spans.end[spans.send]
    elapsed = spans.end - sent
    was_early = (spans.send >= 0) & (sent > spans.start)
    usual_of_early, usual = _usual_travel(spans, was_early, spans.send >= 0)
    # Where no wait began after its data usually is there, the shortest one is no look.
    is_look = (spans.send >= 0) & (spans.start - sent >= usual_of_early)
    has_look = np.bincount(spans.region, weights=is_look)[spans.region] > 0
    is_long = (duration > 2 * shortest + 1) | ~has_look
    is_long &= LEAST_PART_SEEN * duration >= elapsed
    look = _usual_look(spans, (spans.send >= 0) & (sent <= spans.start))
    is_long |= (duration > _SURELY_HELD * look) & (duration > _NEGLIGIBLE * elapsed)
    delay = elapsed - usual
    return was_early | (spans.send >= 0) & is_long & ~(delay > _STALL_RATIO * duration)


def _links(spans: Spans, waits: Ints, senders: Ints) -> Ints:
    """A number for the region and both ranks of every wait."""
    return spans.region[waits] << 32 | spans.rank[senders] << 16 | spans.rank[waits]


def _usual_travel(spans: Spans, *are_known: Bools) -> list[Floats]:
    """What a transfer on the link of a wait takes at most, as a rule: by then a wait has ended.

    By which waits are known: of these only; 0 on a link without any.
    """
    waits = np.flatnonzero(spans.send >= 0)
    sends = spans.send[waits]
    _, link = np.unique(_links(spans, waits, sends), return_inverse=True)
    elapsed = (spans.end[waits] - spans.end[sends]).astype(float)
    found = []
    for known in (is_known[waits] for is_known in are_known):
        medians = grouped_median(link[known], elapsed[known], int(link.max(initial=-1)) + 1)
        usual = np.zeros(len(spans))
        usual[waits] = np.nan_to_num(medians)[link]
        found.append(usual)
    return found


def _usual_look(spans: Spans, was_sent: Bools) -> Floats:
    """The median look in the region at a flag that was already set: few of these are held up."""
    duration = (spans.end - spans.start).astype(float)
    medians = grouped_median(spans.region[was_sent], duration[was_sent], len(spans.region_names))
    return np.where(np.isnan(medians), np.inf, medians)[spans.region]


def _travel(spans: Spans, releaser: Ints, is_held: Bools, barrier: Ints, queue: Ints) -> Floats:
    """Time from the end of the releaser to the end of the span.

    A transfer that no wait shows takes as long as usual, and no longer than it can have taken. The
    first block at a lock may come later in a replay: it is handed the lock as fast as the others.
    """
    travel = np.zeros(len(spans))
    waits = np.flatnonzero(releaser >= 0)
    elapsed = (spans.end[waits] - spans.end[releaser[waits]]).astype(float)
    seen = is_held[waits]
    link = _links(spans, waits, releaser[waits])
    crosses = spans.rank[releaser[waits]] != spans.rank[waits]
    usual = _usual(link, elapsed, seen, 2 * spans.region[waits] + crosses)
    travel[waits] = np.where(seen, elapsed, np.minimum(usual, elapsed))
    handed = grouped_median(spans.region[waits[seen]], elapsed[seen], len(spans.region_names))
    first = np.flatnonzero((queue >= 0) & (releaser < 0))
    travel[first] = np.nan_to_num(handed[spans.region[first]])
    members = np.flatnonzero(barrier >= 0)
    _, opened = extents(barrier[members], spans.start[members], spans.start[members])
    travel[members] = spans.end[members] - opened[barrier[members]]
    return travel


def _usual(groups: Ints, values: Floats, seen: Bools, similar: Ints) -> Floats:
    """The median of the seen values in an element's group.

    A group without any takes as long as the fastest groups: nothing shows that it is slow. It takes
    no longer than the fastest elements with the same number in `similar`, seen or not: those were
    done by then. 0 if no group has a seen value.
    """
    _, inverse = np.unique(groups, return_inverse=True)
    count = int(inverse.max(initial=-1)) + 1
    medians = grouped_median(inverse[seen], values[seen], count)
    is_known = ~np.isnan(medians)
    best = float(np.quantile(medians[is_known], _BEST)) if is_known.any() else 0.0
    usual: Floats = np.where(is_known, medians, best)[inverse]
    for number in np.unique(similar[~is_known[inverse]]).tolist():
        fastest = max(0.0, float(np.quantile(values[similar == number], _BEST)))
        unknown = ~is_known[inverse] & (similar == number)
        usual[unknown] = np.minimum(usual[unknown], fastest)
    return usual


def _barriers(spans: Spans, bound_ns: float) -> Ints:
    """Number the barriers: the n-th sync span of every track.

    A barrier joins all ranks if all leave after the last one enters, within the clock bound; else
    the blocks of each rank, or the warps of each block, if that holds there; else it is none.
    """
    groups = np.full(len(spans), -1, dtype=np.int64)
    kernels = np.unique(np.array(spans.launch_kernel, dtype=str), return_inverse=True)[1]
    number = 0
    for region, category in enumerate(spans.categories):
        if category != "sync":
            continue
        chosen = np.flatnonzero((spans.region == region) & (spans.send < 0))
        if len(chosen) < 2:
            continue
        kernel = kernels[spans.launch[chosen]]
        occurrence = turns_of(spans.track[chosen])
        turn = (spans.call[chosen] * (kernel.max() + 1) + kernel) << 20 | occurrence
        _, turn = np.unique(turn, return_inverse=True)
        rank, block = spans.rank[chosen], spans.block[chosen]
        for keys, bound in (((turn,), bound_ns), ((turn, rank), 0.0), ((turn, rank, block), 0.0)):
            _, inverse = grouped(*keys)
            if _all_leave_together(spans, chosen, inverse, bound):
                groups[chosen] = number + inverse
                number += int(inverse.max()) + 1
                break
    return groups


def _all_leave_together(spans: Spans, chosen: Ints, inverse: Ints, bound_ns: float) -> bool:
    """Whether all leave after the last one enters, and at about the same time. Holders of a lock
    leave one after the other."""
    starts, ends = spans.start[chosen], spans.end[chosen]
    _, last_enter = extents(inverse, starts, starts)
    first_leave, last_leave = extents(inverse, ends, ends)
    _, longest = extents(inverse, starts, ends - starts)
    if (last_leave - first_leave).sum() > _ALL_LEAVE_TOGETHER * longest.sum():
        return False
    is_after = (first_leave + bound_ns >= last_enter).mean() >= _SHARE_OF_BARRIERS
    return bool((np.bincount(inverse) > 1).all() and is_after)


def moved(graph: Graph, at: Ints) -> Graph:
    """Span i is run at the position of span at[i]. Tracks, and the gaps between spans, stay."""

    def to_turns(column: Ints | Floats) -> np.ndarray:
        result = column.copy()
        result[at] = column
        return result

    def pointing(column: Ints) -> Ints:
        return to_turns(np.where(column >= 0, at[column], -1))

    return replace(
        graph,
        own_ns=to_turns(graph.own_ns),
        travel_ns=to_turns(graph.travel_ns),
        queue=to_turns(graph.queue),
        barrier=to_turns(graph.barrier),
        held_until=pointing(graph.held_until),
        releaser=pointing(graph.releaser),
    )
