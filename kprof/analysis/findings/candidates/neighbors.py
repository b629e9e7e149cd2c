"""With whom ranks exchange data: who has more neighbors has more to do, and nothing to balance."""

from __future__ import annotations

import numpy as np

from kprof.analysis.findings.candidates.candidate import Comparable
from kprof.analysis.findings.thresholds import FEW, LEAST_PEERS
from kprof.analysis.replay.columns import grouped
from kprof.analysis.replay.spans import Ints, Spans


def is_by_neighbors(one: Comparable, peer: Ints) -> bool:
    """Whether some ranks have more because they have more peers.

    So have those inside a plane whose ranks exchange their edges, or those of a mesh. Every pair of
    ranks has the same number in every block of every call: who routes items, or has more of them,
    has not.
    """
    rank, block = one.basis.elements.first[one.chosen], one.basis.elements.second[one.chosen]
    call = one.basis.elements.call[one.chosen]
    pairs, _ = grouped(rank, peer)
    units, _ = grouped(call, block)
    cells, cell = grouped(call, block, rank, peer)
    is_even = len(cells) == len(pairs) * len(units) and len(set(np.bincount(cell).tolist())) == 1
    return is_even or _is_as_many_for_each(one)


def _is_as_many_for_each(one: Comparable) -> bool:
    """Whether every block has as many items for each of the ranks to which its rank sends: items
    that get data ready name no peer."""
    spans, elements, chosen = one.basis.graph.spans, one.basis.elements, one.chosen
    neighbors = _num_receivers(spans, int(elements.first.max()) + 1)
    units, unit = grouped(elements.call[chosen], elements.first[chosen], elements.second[chosen])
    of_unit = neighbors[elements.first[chosen[units]]]
    return bool(of_unit.all()) and len(set((np.bincount(unit) / of_unit).tolist())) == 1


def serves_several(one: Comparable) -> bool:
    """Whether items come after waits for two ranks in a row, so that none is of one rank only."""
    spans = one.basis.graph.spans
    last = spans.previous[one.basis.elements.at[one.chosen]]
    last = last[last >= 0]
    before = spans.previous[last]
    are_waits = (before >= 0) & (spans.send[last] >= 0) & (spans.send[before] >= 0)
    are_two = are_waits & (spans.peer[last] != spans.peer[before])
    return len(last) > 0 and bool(are_two.mean() > FEW)


def have_as_many_neighbors(spans: Spans, ranks: Ints) -> bool:
    """Whether three ranks or more send to, and get data from, as many others each: they are peers,
    like the servers of a job, and no stages."""
    num_ranks, gets = int(ranks.max()) + 1, np.flatnonzero(spans.send >= 0)
    num_senders = _num_others(spans.rank[gets], spans.rank[spans.send[gets]], num_ranks)
    counts = _num_receivers(spans, num_ranks)[ranks], num_senders[ranks]
    return len(ranks) >= LEAST_PEERS and all(np.ptp(count) == 0 < count[0] for count in counts)


def _num_receivers(spans: Spans, num_ranks: int) -> Ints:
    """By rank, to how many others it sends."""
    sends = np.flatnonzero(spans.is_of("send") & (spans.peer >= 0))
    return _num_others(spans.rank[sends], spans.peer[sends], num_ranks)


def _num_others(rank: Ints, other: Ints, num_ranks: int) -> Ints:
    """By rank, with how many distinct others it comes."""
    pairs, _ = grouped(rank, other)
    return np.bincount(rank[pairs], minlength=num_ranks)
