"""What differs most between places, beside what is found: a region on all ranks, in all blocks, on
all SMs, at all positions of a track or in all calls as fast as at the best of them.

Findings compare a place with what is usual. Where most places are slow that is slow, too, and a
cause that no single place has is nobody's. So before "nothing" is said, every region and gap is
tried at the level of its best rank, block, SM, position and call, and of the best rank of each
call: which ranks are slow may change from call to call. Each is tried together with late starts,
too: what is slow on the ranks that start first hides behind the last one, and the other way round.

The longest event of a region is tried, too, at the usual length: where events were long by chance
it is no cause, and still is what that call waited for.

What a finding is about is not compared again: the finding says what is left of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

import numpy as np

from kprof.analysis.findings.candidates.candidate import Basis
from kprof.analysis.findings.thresholds import (
    LEAST_ELEMENTS,
    LEAST_GAIN,
    LEAST_GAIN_ONCE,
    LEAST_KNOWN,
    SIGMAS,
    TOGETHER,
    UNEVEN,
)
from kprof.analysis.replay.columns import grouped
from kprof.analysis.replay.elements import Elements, Family, edit_of
from kprof.analysis.replay.replay import Edit, Replay
from kprof.analysis.replay.spans import Bools, Floats, Ints
from kprof.analysis.wording import members, percent, ratio

_MOST_TRIED: Final = 16
_MOST_SHOWN: Final = 3
_MOST_NAMED: Final = 4


class By(str, Enum):
    """What tells the places apart."""

    RANK = "rank"
    RANK_OF_CALL = "rank of a call"
    BLOCK = "block"
    PROCESSOR = "SM"
    POSITION = "position"
    CALL = "call"
    EVENT = "event"


_AT: Final = {By.BLOCK: ("in", "block"), By.PROCESSOR: ("on", "SM"), By.CALL: ("in", "call")}


@dataclass(frozen=True)
class Difference:
    """A region, or the gap before it, that takes `factor` times as long at `slow` as at `best`, and
    what all calls together would gain at most if it took as long as there everywhere.

    By the ranks of a call, `best` is the one that is the best in most calls. By the event, `slow`
    are its rank, block and call, and `best` is -1: what is usual. If `with_starts`, the gain is
    that with all ranks of a call starting at once, without which there is none.
    """

    region: str
    is_gap: bool
    by: By
    slow: tuple[int, ...]
    best: int
    factor: float
    gain_ns: float
    share: float
    with_starts: bool = False

    @property
    def sentence(self) -> str:
        """dispatch/send takes 8.8x as long on ranks 0, 2 as on rank 1: up to 40 %"""
        what = f"the gap before {self.region}" if self.is_gap else self.region
        takes, where = "takes", ""
        if self.by is By.EVENT:
            rank, block, call = self.slow
            than = f"usual once (rank {rank}, block {block}, call {call})"
        elif self.by is By.POSITION:
            what = f"{members('event', self.slow, _MOST_NAMED)} of {what}"
            takes = "takes" if len(self.slow) == 1 else "take"
            than = f"event {self.best}"
        else:
            at, noun = _AT.get(self.by, ("on", "rank"))
            where = f" {at} {members(noun, self.slow, _MOST_NAMED)}"
            is_of_call = self.by is By.RANK_OF_CALL
            than = "on the call's best" if is_of_call else f"{at} {noun} {self.best}"
        times, up_to = f"{ratio(self.factor)} as long{where}", f"up to {percent(self.share)}"
        if self.with_starts:
            return f"{what}, {times}, and late starts cost {up_to} together"
        return f"{what} {takes} {times} as {than}: {up_to}"


def differences_of(basis: Basis, replay: Replay, left: Floats) -> tuple[Difference, ...]:
    """The largest differences that are left, if any gains enough; `left` is the part of every
    element that findings leave, which `replay` is without."""
    tried = _worth_trying(basis, left >= 1.0)
    found = [
        _difference(basis, one, gain_ns, with_starts)
        for one, gain_ns, with_starts in _that_gain(basis, replay, left, tried)
    ]
    best: dict[tuple[str, bool], Difference] = {}
    for each in sorted(found, key=lambda each: -each.gain_ns):
        best.setdefault((each.region, each.is_gap), each)
    return tuple(best.values())[:_MOST_SHOWN]


def _that_gain(
    basis: Basis, replay: Replay, left: Floats, tried: Sequence[_Tried]
) -> Iterator[tuple[_Tried, float, bool]]:
    """Those that gain enough, how much, and whether only with ranks that start at once."""
    elements, graph, count = basis.elements, basis.graph, len(tried)
    is_launch = elements.family == Family.LAUNCH
    late = np.flatnonzero(is_launch)[graph.launch_before[elements.at[is_launch]] < 0]
    late_ns = elements.value_ns[late] * left[late]
    pairs = [(one.chosen, one.saved_ns) for one in tried]
    pairs += [(np.r_[late, at], np.r_[late_ns, saved_ns]) for at, saved_ns in pairs]
    edits = [edit_of(elements, *pair) for pair in [*pairs, (late, late_ns)]]
    ends = replay.call_ends([Edit(), *edits])
    gains = (ends[0] - ends[1:]).sum(axis=1).tolist()
    least_ns = LEAST_GAIN * _total_ns(basis)
    for one, alone, joint in zip(tried, gains[:count], gains[count:], strict=False):
        if one.by is By.EVENT:
            if alone >= LEAST_GAIN_ONCE * _total_ns(basis):
                yield one, alone, False
            continue
        by_starts = joint - max(0.0, alone) - max(0.0, gains[-1])
        if alone >= least_ns:
            yield one, alone, False
        elif by_starts >= max(least_ns, (TOGETHER - 1) * joint):
            yield one, joint, True


def _total_ns(basis: Basis) -> float:
    """What all calls take."""
    return float((basis.graph.call_end - basis.graph.call_start).sum())


@dataclass(frozen=True)
class _Tried:
    """Elements of a class at the level of the best place: what tells places apart, and of each
    element the name of its place and what it would save."""

    number: int
    by: By
    best: int
    chosen: Ints
    names: Ints
    saved_ns: Floats


def _worth_trying(basis: Basis, is_whole: Bools) -> list[_Tried]:
    """Those that could gain most: on the track that they take most off, in every call.

    Only of elements that are as they were.
    """
    elements = basis.elements
    tried: list[tuple[float, _Tried]] = []
    for number, one in enumerate(basis.classes):
        if one.family not in (Family.OWN, Family.GAP) or not one.is_alike:
            continue
        chosen = np.flatnonzero((elements.kind == number) & is_whole)
        by_places = [_at_best(basis, number, by, chosen) for by in By if by is not By.EVENT]
        for one_tried in (*by_places, _longest(basis, number, chosen)):
            if one_tried is not None:
                tried.append((_most_on_a_track(basis, one_tried), one_tried))
    least_ns = LEAST_GAIN * _total_ns(basis)
    tried = sorted(tried, key=lambda pair: -pair[0])[:_MOST_TRIED]
    return [at_best for bound, at_best in tried if bound >= least_ns]


def _longest(basis: Basis, number: int, chosen: Ints) -> _Tried | None:
    """The longest element of the class, where that is long."""
    if len(chosen) < LEAST_ELEMENTS:
        return None
    value_ns = basis.elements.value_ns[chosen]
    usual_ns = max(float(np.median(value_ns)), basis.least_ns(basis.classes[number].family))
    longest = chosen[[value_ns.argmax()]]
    saved_ns = basis.elements.value_ns[longest] - usual_ns
    is_long = saved_ns[0] > (UNEVEN - 1) * usual_ns
    return _Tried(number, By.EVENT, -1, longest, longest, saved_ns) if is_long else None


def _names(basis: Basis, by: By, chosen: Ints) -> Ints:
    """By element the name of its place."""
    elements: Elements = basis.elements
    if by is By.PROCESSOR:
        return basis.graph.spans.processor[elements.at[chosen]]
    columns = {By.BLOCK: elements.second, By.POSITION: elements.turn, By.CALL: elements.call}
    return columns.get(by, elements.first)[chosen]


def _at_best(basis: Basis, number: int, by: By, chosen: Ints) -> _Tried | None:
    """None where places differ by no more than chance, or than clocks can tell."""
    value_ns, names = basis.elements.value_ns[chosen], _names(basis, by, chosen)
    # Among which places the best one is looked for.
    among = basis.elements.call[chosen] if by is By.RANK_OF_CALL else np.zeros_like(chosen)
    examples, group = grouped(among, names)
    counts = np.bincount(group)
    if len(counts) < 2 or counts.min() < LEAST_KNOWN:
        return None
    least_ns = basis.least_ns(basis.classes[number].family)
    means = np.maximum(np.bincount(group, weights=value_ns) / counts, least_ns)
    errors = np.sqrt(np.bincount(group, weights=(value_ns - means[group]) ** 2)) / counts
    part = np.unique(among[examples], return_inverse=True)[1]
    ordered = np.lexsort((means, part))
    bests = ordered[np.searchsorted(part[ordered], np.arange(part.max() + 1))]
    level, error = means[bests][part], errors[bests][part]
    is_slow = (means - level > SIGMAS * np.hypot(errors, error)) & (means > UNEVEN * level)
    if not is_slow.any():
        return None
    share = np.where(is_slow, 1 - level / means, 0.0)
    best, times = np.unique(names[examples[bests]], return_counts=True)
    return _Tried(number, by, int(best[times.argmax()]), chosen, names, value_ns * share[group])


def _most_on_a_track(basis: Basis, one: _Tried) -> float:
    """What it takes off the track that it takes most off, summed over calls."""
    spans = basis.graph.spans
    track = spans.track[basis.elements.at[one.chosen]]
    of_track = np.bincount(track, weights=one.saved_ns)
    most = np.zeros(basis.num_calls)
    np.maximum.at(most, basis.elements.call[one.chosen], of_track[track])
    return float(most.sum())


def _difference(basis: Basis, one: _Tried, gain_ns: float, with_starts: bool) -> Difference:
    kind, spans = basis.classes[one.number], basis.graph.spans
    examples, place = grouped(one.names)
    lost = np.bincount(place, weights=one.saved_ns) / np.bincount(place)
    is_slow = lost >= lost.max() / 2
    loses = is_slow[place] & (one.saved_ns > 0)
    value_ns, saved_ns = basis.elements.value_ns[one.chosen][loses].sum(), one.saved_ns[loses].sum()
    slow = sorted(int(name) for name in one.names[examples[is_slow]])
    best = one.best
    if one.by is By.CALL:
        slow, best = sorted(spans.ordinals[call] for call in slow), spans.ordinals[best]
    elif one.by is By.EVENT:
        elements, (at,) = basis.elements, one.chosen
        ordinal = spans.ordinals[elements.call[at]]
        slow = [int(elements.first[at]), int(elements.second[at]), ordinal]
    return Difference(
        region=spans.region_names[kind.region],
        is_gap=kind.family is Family.GAP,
        by=one.by,
        slow=tuple(slow),
        best=best,
        factor=float(value_ns / (value_ns - saved_ns)),
        gain_ns=gain_ns,
        share=gain_ns / max(1.0, _total_ns(basis)),
        with_starts=with_starts,
    )
