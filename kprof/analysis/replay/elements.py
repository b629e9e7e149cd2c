"""Everything in a graph that takes time by itself, in one table: what hypotheses shorten.

    own      a span that does not wait: its duration; of one that does: a look at its flag
    gap      between two spans of a track, or a launch and the first span of a track: no records
    travel   from a send to the wait that it holds up
    launch   between a rank's launch and the one before, or since the first rank began the call

Elements of one class do the same thing: the same region, the same two regions around a gap. Only
those are compared. Kernels that are launched in different calls do different things. Every element
has a place: a rank and a block; of a transfer, its source and its destination.
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
    """Columns over elements. `at` is a span, or a launch; `first` and `second` are the place
    (second: -1 for launches); `turn` is the how manieth of its class on its track an element is. Of
    a transfer that nobody had to wait for, only the most that it can have taken is known:
    `seen_ns`, and `is_seen` is false."""

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
        """A number from 0 on for every place, in whatever call, of some elements: an example of
        each, and the number of every element."""
        return grouped(self.first[chosen], self.second[chosen])


@dataclass(frozen=True)
class Kind:
    """A class of elements: its family, the kernels that it is of, its region (0: any), whether gaps
    are a track's first, and the region before a gap (0: any, or it is a first one)."""

    family: Family
    kernels: tuple[str, ...]
    region: int
    is_first: bool = False
    before: int = 0

    @property
    def is_alike(self) -> bool:
        """Whether its elements do the same thing, so that each can be compared with the others."""
        return self.family is not Family.GAP or self.is_first or self.before != 0


def elements_of(graph: Graph) -> tuple[Elements, list[Kind]]:
    """All elements of a graph, and their classes; `kind` of an element points into these."""
    spans = graph.spans
    count = len(spans.region_names)
    # Of a wait whose send is known, looking at the flag is work like any other.
    works = np.flatnonzero(~graph.is_wait | ((graph.releaser >= 0) & (spans.send >= 0)))
    gaps = np.flatnonzero((spans.previous >= 0) | (graph.before < 0))
    travels = np.flatnonzero((spans.send >= 0) & (graph.releaser == spans.send))
    crosses = travels[spans.rank[graph.releaser[travels]] != spans.rank[travels]]
    elapsed = (spans.end - spans.end[graph.releaser]).astype(float)
    sources = spans.rank[graph.releaser]
    launches = np.arange(len(graph.launch_rank))
    kernel, of_launch, names = _kernels(graph)
    # Of every family: what its elements are at, their own class, their place, and their time.
    parts = (
        (works, spans.region[works], spans.rank[works], spans.block[works], graph.own_ns[works]),
        (gaps, _gap_classes(graph, gaps), spans.rank[gaps], spans.block[gaps], graph.gap_ns[gaps]),
        (crosses, 0 * crosses, sources[crosses], spans.rank[crosses], graph.travel_ns[crosses]),
        (launches, kernel, graph.launch_rank, 0 * launches - 1, graph.launch_gap_ns),
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
    """By launch its kernel and the group of that, and the kernels of every group: those that are
    launched in the same calls. They may be parts of one algorithm and have regions in common."""
    names, kernel = np.unique(np.array(graph.spans.launch_kernel, dtype=str), return_inverse=True)
    is_in = np.zeros((len(names), int(graph.launch_call.max(initial=-1)) + 1), dtype=bool)
    is_in[kernel, graph.launch_call] = True
    group = np.unique(is_in, axis=0, return_inverse=True)[1].reshape(-1)
    members = [tuple(names[group == n].tolist()) for n in range(int(group.max(initial=-1)) + 1)]
    return kernel, group[kernel], members


def _gap_classes(graph: Graph, gaps: Ints) -> Ints:
    """Gaps are told apart by whether a track has begun and by the regions before and after them:
    where laps follow each other there is no time between them, and before the first one there may
    be work without a region. Where fewer than two ranks of several have such a gap, by the region
    after it only, or else there is nothing to compare with but all other gaps."""
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


def _kind(family: int, kernels: tuple[str, ...], key: int, count: int) -> Kind:
    if family == Family.GAP:
        before, region = divmod(key, count)
        is_first = before == count
        return Kind(Family.GAP, kernels, region, is_first, 0 if is_first else before)
    return Kind(Family(family), kernels, key)


def edit_of(elements: Elements, chosen: Ints, saved_ns: Floats) -> Edit:
    """The edit that takes times off elements."""
    family = elements.family[chosen]

    def change(wanted: Family) -> Change:
        is_it = family == wanted
        return Change(elements.at[chosen[is_it]], saved_ns[is_it])

    return Edit(*(change(wanted) for wanted in Family))
