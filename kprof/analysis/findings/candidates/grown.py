"""Places that take longer than they took in another recording.

A place is compared with itself: what it usually took there in a call. So nothing has to be alike
within one recording, and roles that differ by design are no excess.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import numpy as np

from kprof.analysis.findings.candidates.candidate import Basis, Candidate, Comparable, Place
from kprof.analysis.findings.candidates.excess import (
    Cells,
    Deviation,
    cells_of_elements,
    deviations_of,
    members,
    on_links_of,
    shared_by_all,
)
from kprof.analysis.findings.candidates.grouping import joined
from kprof.analysis.findings.candidates.slow_places import saved_by, slow_candidate
from kprof.analysis.findings.thresholds import LEAST_SPREAD_BETWEEN
from kprof.analysis.replay.columns import grouped, grouped_quantile
from kprof.analysis.replay.elements import Family
from kprof.analysis.replay.spans import Floats, Ints

# Between the 10 % and the 90 % quantile lie so many standard deviations of a normal distribution.
_BETWEEN: Final = 2.563


def grown_since(basis: Basis, base: Basis, bound_ns: float) -> list[Candidate]:
    """What could be as it was in the base, class by class; classes that the base does not have are
    left out. `bound_ns` is how far off two clocks may be."""
    known = {name: kind for kind, name in enumerate(_names(base))}
    found: list[Candidate] = []
    for kind, name in enumerate(_names(basis)):
        if (before := known.get(name)) is not None:
            found += _grown(basis, kind, _cells(base, before)[0], bound_ns)
    return [h for h in joined(basis, found) if h.saved_ns.sum() > 0]


def _names(basis: Basis) -> Iterator[tuple[object, ...]]:
    """What every class is called in every recording: numbers of regions and kernels are of one."""
    spans = basis.graph.spans
    kernels = np.unique(np.array(spans.launch_kernel, dtype=str))
    for one in basis.classes:
        if one.family is Family.LAUNCH:
            yield one.family, str(kernels[one.region]), one.is_first
            continue
        region = spans.region_names[one.region] if one.family is not Family.TRAVEL else ""
        # Kernels that are always launched together may have other names there.
        together = one.kernels if len(one.kernels) < len(kernels) else ()
        yield one.family, together, region, one.is_first, spans.region_names[one.before]


def _cells(basis: Basis, kind: int) -> tuple[Cells, Ints, Ints]:
    """The cells of a class, its elements, and the cell of each; of transfers those that were seen:
    of the others only a bound is known."""
    elements = basis.elements
    chosen = np.flatnonzero((elements.kind == kind) & elements.is_seen)
    cells, cell = cells_of_elements(elements, chosen, elements.value_ns[chosen])
    if basis.classes[kind].family is Family.TRAVEL:
        # In one call more transfers of a link are seen than in another.
        cells = replace(cells, sum_ns=cells.sum_ns / cells.count, count=np.ones(len(cells.count)))
    return cells, chosen, cell


def _grown(basis: Basis, kind: int, before: Cells, bound_ns: float) -> list[Candidate]:
    cells, chosen, cell = _cells(basis, kind)
    if len(before.call) == 0 or len(cells.call) == 0:
        return []
    value = basis.elements.value_ns[chosen]
    one = Comparable(basis, kind, chosen, value)
    # What clocks cannot tell is no growth of what two ranks have to do with.
    is_across = one.family in (Family.TRAVEL, Family.LAUNCH)
    floor_ns = max(one.floor_ns, bound_ns if is_across else 0.0)
    level, spread = _usual(before, cells, floor_ns)
    y = np.log((cells.sum_ns + floor_ns) / (level + floor_ns))
    sigma = np.full(len(y), spread)
    shared = shared_by_all(cells, y, sigma, basis.num_calls)
    rest = y - shared.excess[cells.call] if shared else y
    usual_ns = float((before.sum_ns / before.count).mean())
    found = []
    for deviation in [
        *([shared] if shared else []),
        *deviations_of(cells, rest, sigma, basis.num_calls),
    ]:
        if one.family is Family.TRAVEL:
            excess = np.where(members(cells, deviation), deviation.excess[cells.call], 0.0)
            saved = value * (1 - np.exp(-excess))[cell]
        else:
            saved = saved_by(cells, cell, value, deviation, usual_ns, floor_ns)
        place = Place(deviation.first, deviation.second, one.family is Family.TRAVEL)
        hidden, of_hidden = _hidden(one, deviation, value, saved)
        of_none = np.full(len(hidden), len(cells.call))
        parts = np.r_[chosen, hidden], np.r_[saved, of_hidden], np.r_[cell, of_none]
        found += slow_candidate(one, deviation, place, *parts)
    return found


def _hidden(
    one: Comparable, deviation: Deviation, value: Floats, saved: Floats
) -> tuple[Ints, Floats]:
    """Transfers on the links of a deviation that nobody waited for: as much slower as the others,
    they would hold up what those let go."""
    elements = one.basis.elements
    hidden = np.flatnonzero((elements.kind == one.number) & ~elements.is_seen)
    hidden = on_links_of(deviation, elements, hidden)
    is_in = saved > 0
    share = float(np.median(saved[is_in] / value[is_in])) if is_in.any() else 0.0
    return hidden, elements.value_ns[hidden] * share


def _usual(before: Cells, cells: Cells, floor_ns: float) -> tuple[Floats, float]:
    """What every cell usually took in the base: the median of its place over calls, or that of all
    places where the base does not have it; and the spread of its logarithm there."""
    examples, place = grouped(before.first, before.second)
    medians = grouped_quantile(place, before.sum_ns, len(examples), 0.5)
    places = zip(before.first[examples].tolist(), before.second[examples].tolist(), strict=True)
    by_place = dict(zip(places, medians.tolist(), strict=True))
    log = np.log((before.sum_ns + floor_ns) / (medians[place] + floor_ns))
    low, high = np.quantile(log, [0.1, 0.9])
    others = float(np.median(medians))
    keys = zip(cells.first.tolist(), cells.second.tolist(), strict=True)
    level = np.array([by_place.get(key, others) for key in keys])
    return level, max(LEAST_SPREAD_BETWEEN, float(high - low) / _BETWEEN)
