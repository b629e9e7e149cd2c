"""What differs most between places, beside what is found: a region on all ranks, in all blocks, on
all SMs, at all positions of a track or in all calls as fast as at the best of them.

Findings compare a place with what is usual. Where most places are slow that is slow, too, and a
cause that no single place has is nobody's. So before "nothing" is said, every region and gap is
tried at the level of its best rank, block, SM, position and call.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

import numpy as np

from kprof.analysis.findings.candidates.candidate import Basis
from kprof.analysis.findings.thresholds import LEAST_GAIN, LEAST_KNOWN, SIGMAS, UNEVEN
from kprof.analysis.replay.columns import grouped
from kprof.analysis.replay.elements import Elements, Family, edit_of
from kprof.analysis.replay.replay import Edit, Replay
from kprof.analysis.replay.spans import Floats, Ints
from kprof.analysis.wording import members, percent, ratio

_MOST_TRIED: Final = 16
_MOST_SHOWN: Final = 3
_MOST_NAMED: Final = 4


class By(str, Enum):
    """What tells the places apart."""

    RANK = "rank"
    BLOCK = "block"
    PROCESSOR = "SM"
    POSITION = "position"
    CALL = "call"


@dataclass(frozen=True)
class Difference:
    """A region, or the gap before it, that takes `factor` times as long at `slow` as at `best`, and
    what all calls together would gain at most if it took as long as there everywhere."""

    region: str
    is_gap: bool
    by: By
    slow: tuple[int, ...]
    best: int
    factor: float
    gain_ns: float
    share: float

    @property
    def sentence(self) -> str:
        """dispatch/send takes 8.8x as long on ranks 0, 2 as on rank 1: up to 40 %"""
        what = f"the gap before {self.region}" if self.is_gap else self.region
        at = {By.RANK: "on rank", By.BLOCK: "in block", By.PROCESSOR: "on SM", By.CALL: "in call"}
        up_to = f"up to {percent(self.share)}"
        if self.by is By.POSITION:
            take = "takes" if len(self.slow) == 1 else "take"
            times = f"{take} {ratio(self.factor)} as long as event {self.best}"
            return f"{members('event', self.slow, _MOST_NAMED)} of {what} {times}: {up_to}"
        word, noun = at[self.by].split()
        slow = members(noun, self.slow, _MOST_NAMED)
        times = f"{ratio(self.factor)} as long {word} {slow}"
        return f"{what} takes {times} as {word} {noun} {self.best}: {up_to}"


def differences_of(basis: Basis, replay: Replay, left: Floats) -> tuple[Difference, ...]:
    """The largest differences that are left, if any gains enough; `left` is the part of every
    element that findings leave, which `replay` is without."""
    tried = _worth_trying(basis, basis.elements.value_ns * left)
    if not tried:
        return ()
    edits = [edit_of(basis.elements, one.chosen, one.saved_ns) for one in tried]
    gains = replay.call_ends([Edit()]) - replay.call_ends(edits)
    total = float((basis.graph.call_end - basis.graph.call_start).sum())
    found = [
        _difference(basis, one, float(gain), total)
        for one, gain in zip(tried, gains.sum(axis=1), strict=True)
        if gain >= LEAST_GAIN * total
    ]
    best: dict[tuple[str, bool], Difference] = {}
    for one in sorted(found, key=lambda one: -one.gain_ns):
        best.setdefault((one.region, one.is_gap), one)
    return tuple(best.values())[:_MOST_SHOWN]


@dataclass(frozen=True)
class _Tried:
    """Elements of a class at the level of the best group: the class, the mean of every group."""

    number: int
    by: By
    names: Ints
    means_ns: Floats
    chosen: Ints
    saved_ns: Floats


def _worth_trying(basis: Basis, value_ns: Floats) -> list[_Tried]:
    """Those that could gain most: on the track that they take most off, in every call."""
    elements = basis.elements
    tried: list[tuple[float, _Tried]] = []
    for number, one in enumerate(basis.classes):
        if one.family not in (Family.OWN, Family.GAP) or not one.is_alike:
            continue
        chosen = np.flatnonzero(elements.kind == number)
        least_ns = basis.least_ns(one.family)
        for by, names in _coordinates(basis, chosen):
            at_best = _at_best(number, by, names, chosen, value_ns[chosen], least_ns)
            if at_best is not None:
                bound = _most_on_a_track(basis, at_best)
                tried.append((bound, at_best))
    least_ns = LEAST_GAIN * float((basis.graph.call_end - basis.graph.call_start).sum())
    tried = sorted(tried, key=lambda pair: -pair[0])[:_MOST_TRIED]
    return [at_best for bound, at_best in tried if bound >= least_ns]


def _coordinates(basis: Basis, chosen: Ints) -> list[tuple[By, Ints]]:
    elements: Elements = basis.elements
    return [
        (By.RANK, elements.first[chosen]),
        (By.BLOCK, elements.second[chosen]),
        (By.PROCESSOR, basis.graph.spans.processor[elements.at[chosen]]),
        (By.POSITION, elements.turn[chosen]),
        (By.CALL, elements.call[chosen]),
    ]


def _at_best(
    number: int, by: By, names: Ints, chosen: Ints, value_ns: Floats, least_ns: float
) -> _Tried | None:
    """None where groups differ by no more than chance, or than clocks can tell."""
    examples, group = grouped(names)
    counts = np.bincount(group)
    if len(counts) < 2 or counts.min() < LEAST_KNOWN:
        return None
    means = np.maximum(np.bincount(group, weights=value_ns) / counts, least_ns)
    squares = np.bincount(group, weights=(value_ns - means[group]) ** 2)
    errors = np.sqrt(squares) / counts
    best = int(means.argmin())
    is_slow = means - means[best] > SIGMAS * np.hypot(errors, errors[best])
    is_slow &= means > UNEVEN * means[best]
    if not is_slow.any():
        return None
    share = np.where(is_slow, 1 - means[best] / means, 0.0)
    return _Tried(number, by, names[examples], means, chosen, value_ns * share[group])


def _most_on_a_track(basis: Basis, one: _Tried) -> float:
    """What it takes off the track that it takes most off, summed over calls."""
    spans = basis.graph.spans
    track = spans.track[basis.elements.at[one.chosen]]
    of_track = np.bincount(track, weights=one.saved_ns)
    most = np.zeros(basis.num_calls)
    np.maximum.at(most, basis.elements.call[one.chosen], of_track[track])
    return float(most.sum())


def _difference(basis: Basis, one: _Tried, gain_ns: float, total_ns: float) -> Difference:
    kind, means = basis.classes[one.number], one.means_ns
    best = int(means.argmin())
    slow = np.flatnonzero(means > np.sqrt(means[best] * means.max()))
    names = one.names
    if one.by is By.CALL:
        names = np.array(basis.graph.spans.ordinals)[names]
    return Difference(
        region=basis.graph.spans.region_names[kind.region],
        is_gap=kind.family is Family.GAP,
        by=one.by,
        slow=tuple(sorted(int(name) for name in names[slow])),
        best=int(names[best]),
        factor=float(means[slow].mean() / means[best]),
        gain_ns=gain_ns,
        share=gain_ns / max(1.0, total_ns),
    )
