"""From a candidate that pays to a finding: where it is, when, what it gains."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from kprof.analysis.findings.candidates.candidate import Basis, Candidate, Place
from kprof.analysis.findings.candidates.excess import ALL
from kprof.analysis.findings.finding import Finding, Kind
from kprof.analysis.findings.kinds import all_kinds, named
from kprof.analysis.findings.thresholds import LEAST_OF_CALL, OF_ONE_CLASS, OF_ONE_REGION
from kprof.analysis.findings.when import when_of
from kprof.analysis.replay.elements import Family
from kprof.analysis.replay.spans import Bools, Floats

# Of more calls than this, none are drawn again.
_MOST_DRAWN: Final = 2000
# Of a normal value, 90 % are within so many standard deviations.
_WITHIN_90: Final = 1.645


def finding_of(
    basis: Basis, candidate: Candidate, gains_ns: Floats, main: int | None, alone_ns: float
) -> Finding:
    """A candidate that gains so much by call, on top of those before it, and `alone_ns` without
    them. `main` is the class that gains almost all of it by itself, or None."""
    graph = basis.graph
    lengths = (graph.call_end - graph.call_start).astype(float)
    shares = gains_ns / np.maximum(1.0, lengths)
    costly = candidate.calls & (shares >= LEAST_OF_CALL * shares.max(initial=0.0))
    if not costly.any():
        # Others hide it there.
        costly = candidate.calls
    when, period = when_of(candidate.calls, costly, candidate.excess, gains_ns, candidate.is_moving)
    gain, total = float(gains_ns.sum()), float(lengths.sum())
    kind = _kind(basis, candidate, main)
    where = kind.placed(_at(candidate.places, kind), np.unique(graph.launch_rank).tolist())
    return replace(
        where,
        region=_region(basis, candidate, main),
        calls=_ordinals(basis, candidate.calls),
        position=candidate.position,
        is_by_design=candidate.is_by_design,
        when=when,
        period=candidate.period or period,
        gain_ns=gain,
        interval_ns=_interval(gains_ns, lengths),
        share=gain / max(1.0, total),
        factor=_factor(basis, candidate, main),
        gains_ns=tuple(gains_ns.tolist()),
        costly_calls=_ordinals(basis, costly),
        alone_ns=alone_ns,
        total_ns=total,
    )


def _ordinals(basis: Basis, calls: Bools) -> tuple[int, ...]:
    return tuple(basis.graph.spans.ordinals[i] for i in np.flatnonzero(calls).tolist())


def _at(places: tuple[Place, ...], kind: Kind) -> Finding:
    """A finding of which nothing is known but its kind and where it is."""
    pairs = tuple((place.first, place.second) for place in places)
    if places[0].is_link:
        return Finding(kind=kind, links=pairs)
    ranks = tuple(sorted({first for first, _ in pairs} - {ALL}))
    if places[0].is_processor:
        processors = tuple(sorted({second for _, second in pairs}))
        return Finding(kind=kind, ranks=ranks, processors=processors)
    blocks = tuple(sorted({second for _, second in pairs} - {ALL}))
    is_open = any(ALL in pair for pair in pairs)
    places_of = () if is_open else pairs
    return Finding(kind=kind, ranks=ranks, blocks=blocks, places=places_of)


def _kind(basis: Basis, candidate: Candidate, main: int | None) -> Kind:
    """The kind of a candidate; of places that take longer, by what gains most there."""
    if candidate.kind is not None:
        return named(candidate.kind)
    family = _family(basis, candidate) if main is None else basis.classes[main].family
    return next(kind for kind in all_kinds() if kind.covers(candidate, family))


def _family(basis: Basis, candidate: Candidate) -> Family | None:
    """The family of almost all that is taken off, in whatever classes; else None."""
    family, saved_ns = basis.elements.family[candidate.chosen], candidate.saved_ns
    of_families = np.bincount(family, weights=saved_ns)
    best = int(of_families.argmax())
    return Family(best) if of_families[best] >= OF_ONE_CLASS * saved_ns.sum() else None


def _factor(basis: Basis, candidate: Candidate, main: int | None) -> float:
    """What is found against what comparable places take or have."""
    elements = basis.elements
    if candidate.counts_items:
        return float(np.exp(np.median(candidate.excess[candidate.calls])))
    is_main = _is_main(basis, candidate, main)
    chosen = candidate.chosen[is_main]
    value = float(elements.value_ns[chosen].sum())
    # What takes next to no time takes at most what the clocks cannot tell from none.
    number, count = np.unique(elements.family[chosen], return_counts=True)
    least = sum(n * basis.least_ns(Family(f)) for f, n in zip(number, count, strict=True))
    rest = value - float(candidate.saved_ns[is_main].sum())
    return float(max(1.0, value / max(least, rest)))


def _is_main(basis: Basis, candidate: Candidate, main: int | None) -> Bools:
    """Which of the elements are of the main class; all where there is none."""
    if main is None:
        return np.ones(len(candidate.chosen), dtype=bool)
    return basis.first_classes(candidate.chosen) == main


def _region(basis: Basis, candidate: Candidate, main: int | None) -> str | None:
    """The region that almost all of what is taken off belongs to."""
    if main is None and candidate.counts_items:
        # Which regions have more items is known from their numbers (`counts.py`), not from time.
        return None
    if main is not None and basis.classes[main].family is Family.LAUNCH:
        return None
    is_main = _is_main(basis, candidate, main)
    chosen, saved_ns = candidate.chosen[is_main], candidate.saved_ns[is_main]
    # Launches are of no region, and count against every one.
    is_span = basis.elements.family[chosen] != Family.LAUNCH
    spans = basis.graph.spans
    region = spans.region[basis.elements.at[chosen[is_span]]]
    if len(region) == 0:
        return None
    saved = np.bincount(region, weights=saved_ns[is_span])
    best = int(saved.argmax())
    return spans.region_names[best] if saved[best] >= OF_ONE_REGION * saved_ns.sum() else None


def _interval(gains: Floats, lengths: Floats) -> tuple[float, float]:
    """The 90 % interval of a gain in ns: calls drawn again a thousand times, with their own random
    numbers, unless there are thousands.

    What is drawn is the share: long calls gain more, and no call gains more than it takes.
    """
    count, gain, total = len(gains), float(gains.sum()), float(lengths.sum())
    if count < 2:
        return gain, gain
    if count > _MOST_DRAWN:
        # The sum over so many calls is normal, and drawing them takes gigabytes.
        share = gain / max(1.0, total)
        reach = _WITHIN_90 * float((gains - share * lengths).std()) * count**0.5
        low, high = gain - reach, gain + reach
    else:
        drawn = np.random.default_rng(0).integers(0, count, (1000, count))
        shares = gains[drawn].sum(axis=1) / np.maximum(1.0, lengths[drawn].sum(axis=1))
        low, high = (np.quantile(shares, [0.05, 0.95]) * total).tolist()
    # What it is without any single call is in it, too: a gain of one call is known that badly.
    without = (gain - gains) / np.maximum(1.0, total - lengths)
    low, high = min(low, without.min() * total), max(high, without.max() * total)
    return min(gain, max(0.0, float(low))), max(gain, min(total, float(high)))
