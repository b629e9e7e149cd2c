"""A place has more items than comparable ones."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from kprof.analysis.findings import words
from kprof.analysis.findings.candidates.candidate import Basis, Candidate, Comparable, Place
from kprof.analysis.findings.candidates.excess import (
    ALL,
    Cells,
    Deviation,
    cells_of,
    find_deviations,
    members,
)
from kprof.analysis.findings.candidates.neighbors import (
    have_as_many_neighbors,
    is_by_neighbors,
    serves_several,
)
from kprof.analysis.findings.counts import (
    ItemCounts,
    item_counts,
    regions_with_more,
    uneven_blocks,
    uneven_ranks,
)
from kprof.analysis.findings.finding import Finding, Kind, RestsOn
from kprof.analysis.findings.thresholds import (
    FEW,
    FLOOR,
    GROUP,
    MOST_TO_SWING,
    NEARLY_ALL_CALLS,
    OTHER_SIZES,
    UNEVEN,
)
from kprof.analysis.findings.when import When
from kprof.analysis.replay.columns import grouped, grouped_median, turns_of
from kprof.analysis.replay.elements import Family
from kprof.analysis.replay.spans import Bools, Floats, Ints, Spans
from kprof.analysis.summary import Summary
from kprof.analysis.wording import counted, listed, ratio

_MOST_NAMED: Final = 3
_MOST_PLACES: Final = 8
# So many items against a division by nothing.
_NEARLY_NONE: Final = 1e-9


@dataclass(frozen=True)
class Particulars:
    """How many items there are, and, where it is no single region, in which regions."""

    counts: ItemCounts | None
    regions: tuple[str, ...] = ()


class UnevenWork(Kind):
    name = "uneven_work"
    finds = "a place has more items than comparable ones"
    replays = "the surplus is gone"
    figures = ("blocks-work", "ranks")
    rests_on = frozenset({RestsOn.ALL_EVENTS})
    order = 6
    counts_items = True
    fixing = "balancing it"

    def candidates(self, comparable: Comparable) -> list[Candidate]:
        """Items beyond the usual number taken out, wherever they are handled."""
        return _surplus(comparable) if comparable.family is Family.OWN else []

    def looked_up(self, summary: Summary, finding: Finding) -> Finding:
        """The numbers of items; their ratio is the factor, where they tell."""
        regions = () if finding.region else tuple(regions_with_more(summary, finding))
        region = finding.region or next(iter(regions), None)
        # A block that has more in one call has about as many as the others in a run.
        is_moving = finding.when is When.MOVING
        counts = None if is_moving else item_counts(summary, finding, region)
        factor = counts.own / counts.others if counts else finding.factor
        return replace(
            finding, factor=factor, particulars=Particulars(counts, regions[:_MOST_NAMED])
        )

    def counted(self, summary: Summary) -> list[Finding]:
        """Ranks whose numbers of events stand out; of a run with one rank, blocks."""
        is_one = len([info for info in summary.trace.ranks if info.is_recorded]) == 1
        return (uneven_blocks if is_one else uneven_ranks)(summary, self)

    def fact(self, finding: Finding) -> str:
        """Rank 3 has 2.0x as many items in expert as others"""
        where, regions = words.place(finding), finding.region or ""
        has, times = "has" if words.is_singular(finding) else "have", ratio(finding.factor)
        if not finding.is_timed:
            when = f", in {len(finding.calls)} calls" if finding.when is When.SOMETIMES else ""
            return f"{where} {has} {times} as much to do as the others in {regions}{when}"
        if isinstance(finding.particulars, Particulars) and not regions:
            regions = listed(finding.particulars.regions)
        within = f" in {regions}" if regions else ""
        more, when = f"{where} {has} {times} as many items{within}", words.when(finding)
        if finding.ranks or finding.blocks or not when:
            return f"{more} as others{when}"
        is_growing = finding.when is When.GROWING
        return f"{more} as in the shortest{when}" if is_growing else f"{more}{when} as in others"

    def advice(self, finding: Finding) -> str:
        is_placed = bool(finding.ranks or finding.blocks)
        there = words.lowered(words.place(finding)) if is_placed else "a rank"
        return f"divide the items evenly, so that {there} gets fewer"

    def details(self, finding: Finding) -> tuple[str, ...]:
        """dispatch/send: 7,216 events there, 2,405 elsewhere (median)"""
        if not finding.is_timed:
            return (_counts_of_all(finding),)
        counts = (
            finding.particulars.counts if isinstance(finding.particulars, Particulars) else None
        )
        if counts is None:
            return ()
        own = counted(round(counts.own), "event", "events")
        return (f"{counts.region}: {own} there, {counts.others:,.0f} elsewhere (median)",)


KIND = UnevenWork()

# Whether a deviation names a rank and a block: that of a whole rank, of a block of all ranks.
_WHOLE: Final = ((True, False), (False, True))


def _counts_of_all(finding: Finding) -> str:
    """Events in expert: rank 0: 64, rank 1: 256"""
    rows = finding.evidence
    place = "rank" if rows and "rank" in rows[0] else "block"
    # Where all have bytes, the ratio is of these.
    what = "bytes" if all(row.get("bytes") for row in rows) else "events"
    shown = [f"{place} {row[place]}: {row[what]:,}" for row in rows[:_MOST_PLACES]]
    left = len(rows) - len(shown)
    more = f" and {counted(left, f'more {place}', f'more {place}s')}" if left else ""
    return f"{what.title()} in {finding.region}: {', '.join(shown)}{more}"


def _surplus(one: Comparable) -> list[Candidate]:
    """Places that have more elements of a class than comparable ones.

    And ranks for which others have more.
    """
    spans, elements = one.basis.graph.spans, one.basis.elements
    ranks = np.unique(elements.first[one.chosen])
    peer = spans.peer[elements.at[one.chosen]]
    is_role = len(ranks) < len(np.unique(one.basis.graph.launch_rank))
    if is_role and not have_as_many_neighbors(spans, ranks):
        # What only some of the ranks do is shared out by role: the inner ones of a tree have
        # children.
        return []
    if is_by_neighbors(one, peer):
        return []
    # Others are not selected, or not recorded. Where ranks send, what follows a wait is an item of
    # the rank waited for; else they may wait for whoever is late, and more often for a slow one.
    is_its = spans.names_peer[elements.at[one.chosen]] | ("send" in spans.categories)
    is_here = np.isin(peer, one.basis.graph.launch_rank) & is_its
    found = _of_places(one, one.chosen, elements.second[one.chosen]) + _of_more_blocks(one)
    if is_role or serves_several(one):
        return found
    return found + _of_peers(one, one.chosen[is_here], peer[is_here])


def _of_places(one: Comparable, part: Ints, block: Ints) -> list[Candidate]:
    """Ranks and blocks that have more; what others do with what these send goes with it."""
    found = []
    lengths = _unit_lengths(one.basis.graph.spans)
    places = list(_places_with_more(one, part, block))
    of_blocks = [more for deviation, more in places if deviation.second != ALL]
    are_many = _share_of_places(one, part, block, of_blocks) > FEW
    for deviation, more in places:
        if deviation.second != ALL and are_many:
            # Others cannot take what so many have on top: `uneven_blocks` deals it out.
            continue
        items = part[more]
        share = _beyond_others(one.basis, part, more, deviation)
        there, share_there = _handled_elsewhere(one.basis, items, share, lengths)
        items, share = np.r_[items, there], np.r_[share, share_there]
        found.append(
            _without(one, Place(deviation.first, deviation.second), deviation, items, share)
        )
    return found


def _share_of_places(one: Comparable, part: Ints, block: Ints, chosen: list[Bools]) -> float:
    """What part of all blocks any of these choices of items is about, in the call with most."""
    if not chosen:
        return 0.0
    elements = one.basis.elements
    examples, cell = grouped(elements.call[part], elements.first[part], block)
    call = elements.call[part[examples]]
    has_any = np.bincount(cell, weights=np.any(chosen, axis=0)) > 0
    return float((np.bincount(call, weights=has_any) / np.maximum(1, np.bincount(call))).max())


def _of_more_blocks(one: Comparable) -> list[Candidate]:
    """Ranks that launch more blocks than the others: whole blocks are beyond the usual number."""
    elements, chosen = one.basis.elements, one.chosen
    examples, of_block = grouped(
        elements.call[chosen], elements.first[chosen], elements.second[chosen]
    )
    blocks = chosen[examples]
    call, rank = elements.call[blocks], elements.first[blocks]
    _, launch = grouped(call, rank)
    num_blocks = np.bincount(launch)
    if (num_blocks == num_blocks[0]).all():
        return []
    turn = turns_of(launch, elements.second[blocks])
    found = []
    for deviation, more in _places_with_more(one, blocks, np.zeros_like(blocks)):
        if deviation.first != ALL:
            left = num_blocks[launch] * np.exp(-deviation.excess[call])
            share = np.where(more, np.clip(turn + 1 - left, 0.0, 1.0), 0.0)[of_block]
            place, is_beyond = Place(deviation.first, ALL), share > 0
            found.append(_without(one, place, deviation, chosen[is_beyond], share[is_beyond]))
    return found


def _of_peers(one: Comparable, part: Ints, peer: Ints) -> list[Candidate]:
    """Ranks for which all others have more: all that is done for a peer, wherever it is done."""
    found = []
    for deviation, more in _places_with_more(one, part, peer):
        if deviation.first == ALL and deviation.second != ALL:
            share = _last_ones(one.basis, part[more], peer[more], deviation)
            found.append(_without(one, Place(deviation.second, ALL), deviation, part[more], share))
    return found


def _places_with_more(
    one: Comparable, part: Ints, second: Ints
) -> Iterator[tuple[Deviation, Bools]]:
    """Groups of (rank, second) that have more elements, and which of the elements are theirs."""
    if not len(part):
        return
    elements = one.basis.elements
    usual = float(np.median(elements.value_ns[one.chosen]))
    count, cell = cells_of(
        elements.call[part], elements.first[part], second, np.full(len(part), usual)
    )
    cells = Cells(count.call, count.first, count.second, np.ones(len(count.count)), count.sum_ns)
    floor_ns = FLOOR * one.basis.call_ns
    deviations, _ = find_deviations(cells, floor_ns, one.basis.num_calls, 0.0, 0.5)
    swing = _swing(count)
    apart = _without_sizes(deviations, count, one.basis.num_calls)
    for deviation in _as_counted(apart, count):
        if swing > 0 and ALL not in (deviation.first, deviation.second):
            deviation = _beyond(swing, deviation)
        is_in_cell = members(cells, deviation)
        # Five items cannot be dealt out over four blocks so that none has two.
        if is_in_cell.any() and count.count[is_in_cell].mean() > np.ceil(count.count.mean()):
            yield deviation, is_in_cell[cell]


def _without_sizes(deviations: list[Deviation], count: Cells, num_calls: int) -> list[Deviation]:
    """Deviations but for what all ranks have at once, where that is in many calls: these are of
    another size, and there is nothing to balance. Nor is there where most ranks have more than the
    few others: the first stage of a pipeline gets from nobody."""
    of_ranks = [one for one in deviations if one.first != ALL and one.second == ALL]
    num_ranks = len(np.unique(count.first))
    num_with_more = np.sum([one.calls for one in of_ranks], axis=0)
    are_most = (2 * num_with_more > num_ranks) & (num_with_more < num_ranks)
    common = np.zeros(num_calls)
    if len(of_ranks) == num_ranks:
        common = np.min([one.excess for one in of_ranks], axis=0)
    if (common > 0).sum() <= OTHER_SIZES * num_calls:
        common[:] = 0.0
    apart = []
    for one in deviations:
        if one.second == ALL and one.first != ALL:
            excess = one.excess - common
            is_its = ~are_most & (excess > np.where(common > 0, GROUP, 0.0))
            apart.append(replace(one, excess=excess, calls=one.calls & is_its))
        elif one.second != ALL or not _are_sizes(one, count, num_calls):
            apart.append(one)
    return apart


def _are_sizes(of_all: Deviation, count: Cells, num_calls: int) -> bool:
    """Whether calls in which all places have more are larger ones: many are, or the others are of
    several sizes, too."""
    size = grouped_median(count.call, count.count, num_calls)
    others = size[~of_all.calls & ~np.isnan(size)]
    are_many = of_all.calls.sum() > OTHER_SIZES * num_calls
    return bool(are_many or (len(others) and others.max() > UNEVEN * others.min()))


def _swing(count: Cells) -> float:
    """By how much more or less, as a logarithm, places have in a call than they usually do, but for
    few of them: blocks that take tiles from a counter have one more now and then."""
    swing = np.log(count.count)
    for columns in ((count.call,), (count.first, count.second)):
        examples, group = grouped(*columns)
        swing -= grouped_median(group, swing, len(examples))[group]
    few = max(MOST_TO_SWING, 2 / len(examples))
    return float(np.quantile(np.abs(swing), max(0.0, 1 - few)))


def _beyond(swing: float, deviation: Deviation) -> Deviation:
    """The calls in which a block has more than numbers swing by, or what it has in all calls."""
    is_always = deviation.calls.mean() >= NEARLY_ALL_CALLS
    own = deviation.height if is_always else 0.0
    is_beyond = deviation.calls & (deviation.excess > own + swing + np.log(UNEVEN))
    is_kept = is_always and not is_beyond.any()
    return deviation if is_kept else replace(deviation, calls=is_beyond)


def _as_counted(deviations: list[Deviation], cells: Cells) -> Iterator[Deviation]:
    """Deviations of whole ranks, or of a block of all ranks, over the mean of those without one.

    Cells are compared with a low quantile of all, and where places have two or three items each,
    that is far below the mean.
    """
    have_one = {is_of: np.zeros(len(cells.count), dtype=bool) for is_of in _WHOLE}
    for deviation in deviations:
        if (is_of := (deviation.first != ALL, deviation.second != ALL)) in have_one:
            have_one[is_of] |= members(cells, deviation)
    numbers = dict(zip(_WHOLE, (cells.first, cells.second), strict=True))
    others = {is_of: _mean_sum(cells, numbers[is_of], ~have) for is_of, have in have_one.items()}
    for deviation in deviations:
        is_of = deviation.first != ALL, deviation.second != ALL
        if others.get(is_of):
            own = _mean_sum(cells, numbers[is_of], members(cells, deviation))
            if own > others[is_of]:
                shift = float(np.log(own / others[is_of])) - deviation.height
                excess = np.where(deviation.calls, deviation.excess + shift, 0.0)
                deviation = replace(deviation, excess=excess)
        yield deviation


def _mean_sum(cells: Cells, number: Ints, is_meant: Bools) -> float:
    """The mean, over calls and numbers, of the items that a number has in a call; 0 without any."""
    if not is_meant.any():
        return 0.0
    _, group = grouped(cells.call[is_meant], number[is_meant])
    return float(np.bincount(group, weights=cells.count[is_meant]).mean())


def _without(
    one: Comparable, place: Place, deviation: Deviation, items: Ints, share: Floats
) -> Candidate:
    chosen, share = _with_gaps(one.basis, items, share)
    saved = one.basis.elements.value_ns[chosen] * share
    excess = np.where(deviation.calls, deviation.excess, 0.0)
    where = (place,), one.classes
    return Candidate(KIND.name, *where, excess, chosen, saved, counts_items=True)


def _handled_elsewhere(
    basis: Basis, items: Ints, share: Floats, unit_lengths: Ints
) -> tuple[Ints, Floats]:
    """What others do with what items send: the wait, what always follows, and the transfer."""
    spans, at = basis.graph.spans, basis.elements.at[items]
    wait_of = np.full(len(spans), -1, dtype=np.int64)
    wait_of[spans.send[spans.send >= 0]] = np.flatnonzero(spans.send >= 0)
    is_sent = (wait_of[at] >= 0) & (share > 0)
    waits, share = wait_of[at[is_sent]], share[is_sent]
    lengths = unit_lengths[spans.region[waits]]
    offsets = np.arange(int(lengths.max(initial=0)))
    unit = waits[:, None] + offsets
    is_in = (offsets < lengths[:, None]) & (unit < len(spans))
    is_in &= spans.track[np.minimum(unit, len(spans) - 1)] == spans.track[waits][:, None]
    done, of_done = unit[is_in], np.broadcast_to(share[:, None], unit.shape)[is_in]
    elements = np.r_[basis.of_span[Family.OWN][done], basis.of_span[Family.TRAVEL][waits]]
    shares = np.r_[of_done, share]
    return elements[elements >= 0], shares[elements >= 0]


def _unit_lengths(spans: Spans) -> Ints:
    """By region: from one wait of it to the next one of the track, as it is most often.

    1 where none has a next.
    """
    lengths = np.ones(len(spans.region_names), dtype=np.int64)
    for region in np.unique(spans.region[spans.send >= 0]).tolist():
        waits = np.flatnonzero((spans.region == region) & (spans.send >= 0))
        steps = np.diff(waits)[np.diff(spans.track[waits]) == 0]
        if len(steps):
            lengths[region] = int(np.bincount(steps).argmax())
    return lengths


def _beyond_others(basis: Basis, part: Ints, more: Bools, deviation: Deviation) -> Floats:
    """1 for the items of a place that are beyond the usual number, else 0: the last ones of every
    stretch of a track in which it has more than the others do there.

    A stage with more layers has more of them for every batch.
    """
    elements, tracks = basis.elements, basis.graph.spans.track[basis.elements.at[part]]
    examples, stretch = grouped(tracks, _stretches(basis, part, more))
    count, others = np.bincount(stretch), ~more[examples]
    _, track = np.unique(tracks[examples], return_inverse=True)
    turn = turns_of(track)
    usual = np.bincount(turn[others], weights=count[others], minlength=int(turn.max()) + 1)
    excess = np.maximum(_NEARLY_NONE, count - usual[turn] / len(np.unique(track[others])))
    of_track = np.bincount(track, weights=count) / np.bincount(track, weights=excess)
    kept = np.exp(-deviation.excess[elements.call[part[examples]]])
    left = count - excess * of_track[track] * (1 - kept)
    beyond: Floats = turns_of(stretch, elements.turn[part]) + 1 - left[stretch]
    return np.clip(beyond[more], 0.0, 1.0)


def _stretches(basis: Basis, part: Ints, more: Bools) -> Ints:
    """By item the number of its stretch of a track between sends, waits and barriers.

    One for a whole track where places with more items have more stretches, too: these differ.
    """
    graph, at = basis.graph, basis.elements.at[part]
    send, track = graph.spans.send, graph.spans.track[at]
    cuts = np.where((send >= 0) | (graph.barrier >= 0), 1, 0)
    cuts[send[send >= 0]] = 1
    number = np.cumsum(cuts)[at]
    count = np.bincount(track[grouped(track, number)[0]])[track]
    return np.where(np.median(count[more]) > np.median(count[~more]), 0, number)


def _last_ones(basis: Basis, chosen: Ints, second: Ints, deviation: Deviation) -> Floats:
    """1 for the items of every track that are beyond the usual number, which are the last ones.

    Else 0.
    """
    elements = basis.elements
    track = basis.graph.spans.track[elements.at[chosen]]
    _, group = grouped(track, second)
    turn = turns_of(group, elements.turn[chosen])
    kept = np.bincount(group)[group] * np.exp(-deviation.excess[elements.call[chosen]])
    return np.clip(turn + 1 - kept, 0.0, 1.0)


def _with_gaps(basis: Basis, chosen: Ints, share: Floats) -> tuple[Ints, Floats]:
    """Elements, and the gaps before their spans: an item that is not there needs no gap."""
    is_own = basis.elements.family[chosen] == Family.OWN
    gaps = basis.of_span[Family.GAP][basis.elements.at[chosen[is_own]]]
    return np.r_[chosen, gaps[gaps >= 0]], np.r_[share, share[is_own][gaps >= 0]]
