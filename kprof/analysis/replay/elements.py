"""Everything in a graph that takes time by itself, in one table: what edits shorten.

    own      the duration of a span that does not wait; a look at its flag if it does
    gap      the time without records between two spans of a track, or before its first span
    travel   the time from a send to the wait that it releases
    launch   the time between a rank's launch and the one before, or since the call began

Elements of one class do the same thing, and only those are compared: spans of one region, gaps
between the same two regions. Kernels that are launched in different calls are different classes.
Every element has a place: its rank and block, or the source and destination of a transfer.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from kprof.analysis.replay.columns import grouped, turns_of
from kprof.analysis.replay.graph import Graph
from kprof.analysis.replay.replay import Change, Edit
from kprof.analysis.replay.spans import Bools, Floats, Ints


class Family(IntEnum):
    """The four of the module's table."""

    OWN = 0
    GAP = 1
    TRAVEL = 2
    LAUNCH = 3


@dataclass(frozen=True)
class Elements:
    """Columns over elements.

    at                  the span, or launch
    first, second       the place: rank and block (-1 for launches), or source and destination
    turn                the position among the elements of its class on its track
    value_ns            its time
    seen_ns, is_seen    the longest that a transfer can have taken, and whether a wait shows its
                        real time
    """

    family: Ints
    kind: Ints
    call: Ints
    first: Ints
    second: Ints
    turn: Ints
    at: Ints
    value_ns: Floats
    seen_ns: Floats
    is_seen: Bools

    def __len__(self) -> int:
        """The number of elements."""
        return len(self.at)

    def links(self, chosen: Ints) -> tuple[Ints, Ints]:
        """Number the places of some elements over all calls: an example of each, and every
        element's number."""
        return grouped(self.first[chosen], self.second[chosen])


@dataclass(frozen=True)
class ElementClass:
    """A class of elements: family, kernels, region (0: any), or for launches the kernel; whether
    they come first on a track, or on their rank; for gaps, the region before them (0: any, or
    first)."""

    family: Family
    kernels: tuple[str, ...]
    region: int
    is_first: bool = False
    before: int = 0

    @property
    def is_alike(self) -> bool:
        """Whether its elements do the same thing, so that each can be compared with the others."""
        return self.family is not Family.GAP or self.is_first or self.before != 0


def elements_of(graph: Graph) -> tuple[Elements, list[ElementClass]]:
    """All elements of a graph, and their classes; `kind` of an element points into these."""
    spans = graph.spans
    count = len(spans.region_names)
    # If the send of a wait is known, looking at the flag is work like any other.
    works = np.flatnonzero(~graph.is_wait | ((graph.releaser >= 0) & (spans.send >= 0)))
    gaps = np.flatnonzero((spans.previous >= 0) | (graph.before < 0))
    travels = np.flatnonzero((spans.send >= 0) & (graph.releaser == spans.send))
    crosses = travels[spans.rank[graph.releaser[travels]] != spans.rank[travels]]
    elapsed = (spans.end - spans.end[graph.releaser]).astype(float)
    sources = spans.rank[graph.releaser]
    launches = np.arange(len(graph.launch_rank))
    kernel, of_launch, names = _kernels(graph)
    # One that no other comes before counts from the start of the call.
    order = 2 * kernel + (graph.launch_before < 0)
    # By family: index, class within the family, place (two columns), and time of its elements.
    parts = (
        (works, spans.region[works], spans.rank[works], spans.block[works], graph.own_ns[works]),
        (gaps, _gap_classes(graph, gaps), spans.rank[gaps], spans.block[gaps], graph.gap_ns[gaps]),
        (crosses, 0 * crosses, sources[crosses], spans.rank[crosses], graph.travel_ns[crosses]),
        (launches, order, graph.launch_rank, 0 * launches - 1, graph.launch_gap_ns),
    )
    family = np.repeat(list(Family), [len(part[0]) for part in parts])
    at, local, first, second, value = (np.concatenate(one) for one in zip(*parts, strict=True))
    is_launch = family == Family.LAUNCH
    launch = np.where(is_launch, at, spans.launch[at])
    together = of_launch[launch]
    examples, kind = grouped(family, together, local)
    is_travel = family == Family.TRAVEL
    elements = Elements(
        family=family.astype(np.int64),
        kind=kind,
        call=graph.launch_call[launch],
        first=first,
        second=second,
        turn=turns_of(grouped(kind, np.where(is_launch, at, spans.track[at]))[1]),
        at=at,
        value_ns=np.maximum(0.0, value),
        seen_ns=np.maximum(0.0, np.where(is_travel, elapsed[at], value)),
        is_seen=graph.is_held[at] | ~is_travel,
    )
    classes = zip(family[examples], together[examples], local[examples], strict=True)
    return elements, [_kind(int(f), names[n], int(key), count) for f, n, key in classes]


def _kernels(graph: Graph) -> tuple[Ints, Ints, list[tuple[str, ...]]]:
    """By launch its kernel and the group of its kernel, and the kernels of every group.

    Kernels that are launched in the same calls are a group: they may be parts of one algorithm with
    the same regions.
    """
    names, kernel = np.unique(np.array(graph.spans.launch_kernel, dtype=str), return_inverse=True)
    is_in = np.zeros((len(names), int(graph.launch_call.max(initial=-1)) + 1), dtype=bool)
    is_in[kernel, graph.launch_call] = True
    group = np.unique(is_in, axis=0, return_inverse=True)[1].reshape(-1)
    members = [tuple(names[group == n].tolist()) for n in range(int(group.max(initial=-1)) + 1)]
    return kernel, group[kernel], members


def _gap_classes(graph: Graph, gaps: Ints) -> Ints:
    """The class of a gap: the regions before and after it, or that it comes first on its track.

    If fewer than two ranks have such a gap, the region before it does not count; if that is not
    enough, nor does the region after it.
    """
    spans, count = graph.spans, len(graph.spans.region_names)
    region, is_first = spans.region[gaps], spans.previous[gaps] < 0
    before = np.where(is_first, count, spans.region[spans.previous[gaps]])
    least_ranks = min(2, len(np.unique(spans.rank)))
    for column in (before, region):
        _, pair = np.unique(before * count + region, return_inverse=True)
        examples, _ = grouped(pair, spans.rank[gaps])
        is_of_few = np.bincount(pair[examples])[pair] < least_ranks
        column[is_of_few & ~is_first] = 0
    return before * count + region


def _kind(family: int, kernels: tuple[str, ...], key: int, count: int) -> ElementClass:
    if family == Family.GAP:
        before, region = divmod(key, count)
        is_first = before == count
        return ElementClass(Family.GAP, kernels, region, is_first, 0 if is_first else before)
    if family == Family.LAUNCH:
        return ElementClass(Family.LAUNCH, kernels, key // 2, bool(key % 2))
    return ElementClass(Family(family), kernels, key)


def edit_of(elements: Elements, chosen: Ints, saved_ns: Floats) -> Edit:
    """The edit that shortens elements."""
    family = elements.family[chosen]

    def change(wanted: Family) -> Change:
        is_it = family == wanted
        return Change(elements.at[chosen[is_it]], saved_ns[is_it])

    return Edit(*(change(wanted) for wanted in Family))
