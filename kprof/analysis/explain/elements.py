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

from kprof.analysis.explain.graph import Graph
from kprof.analysis.explain.replay import Change, Edit
from kprof.analysis.explain.spans import Bools, Floats, Ints


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


@dataclass(frozen=True)
class Kind:
    """A class of elements: its family, the kernels that it is of, its region (0: any), whether gaps
    are a track's first."""

    family: Family
    kernels: tuple[str, ...]
    region: int
    is_first: bool = False


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
    launches = np.arange(len(graph.launch_rank))
    no_region, no_block = np.zeros_like(crosses), np.full(len(launches), -1)
    sources = spans.rank[graph.releaser]
    kernel, of_launch, names = _kernels(graph)
    of_span = of_launch[spans.launch]
    parts = [
        (Family.OWN, spans.region[works], works, spans.rank, spans.block, graph.own_ns),
        (Family.GAP, _gap_classes(graph, gaps), gaps, spans.rank, spans.block, graph.gap_ns),
        (Family.TRAVEL, no_region, crosses, sources, spans.rank, graph.travel_ns),
        (Family.LAUNCH, kernel, launches, graph.launch_rank, no_block, graph.launch_gap_ns),
    ]  # fmt: skip
    seen = [
        part[5][part[2]] if part[0] is not Family.TRAVEL else elapsed[crosses] for part in parts
    ]
    family = np.concatenate([np.full(len(part[2]), part[0]) for part in parts])
    local = np.concatenate([part[1] for part in parts])
    together = np.concatenate([of_span[works], of_span[gaps], of_span[crosses], of_launch])
    classes, kind = _classes(family, together, local)
    at = np.concatenate([part[2] for part in parts])
    call = np.concatenate(
        [spans.call[works], spans.call[gaps], spans.call[crosses], graph.launch_call]
    )
    track = np.concatenate([spans.track[works], spans.track[gaps], spans.track[crosses], launches])
    kind = kind.reshape(-1).astype(np.int64)
    elements = Elements(
        family=family.astype(np.int64),
        kind=kind,
        call=call,
        first=np.concatenate([part[3][part[2]] for part in parts]),
        second=np.concatenate([part[4][part[2]] for part in parts]),
        turn=_turns(kind, track),
        at=at,
        value_ns=np.maximum(0.0, np.concatenate([part[5][part[2]] for part in parts])),
        seen_ns=np.maximum(0.0, np.concatenate(seen)),
        is_seen=np.concatenate(
            [graph.is_held[part[2]] | (part[0] is not Family.TRAVEL) for part in parts[:3]]
            + [np.ones(len(launches), dtype=bool)]
        ),
    )
    return elements, [_kind(int(f), names[n], int(key), count) for f, n, key in classes]


def _classes(family: Ints, together: Ints, local: Ints) -> tuple[list[tuple[int, int, int]], Ints]:
    """The distinct rows of three columns in their order, and the row of every element. One number
    for a row is found many times faster than rows are."""
    shape = tuple(int(column.max(initial=0)) + 1 for column in (family, together, local))
    keys, kind = np.unique(
        np.ravel_multi_index((family, together, local), shape), return_inverse=True
    )
    rows = np.stack(np.unravel_index(keys, shape), axis=1)
    return [(f, n, key) for f, n, key in rows.tolist()], kind


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
    """Gaps are told apart by whether a track has begun and by the region after them, where two
    ranks and more have such a gap; else there is nothing to compare with but all other gaps."""
    spans, count = graph.spans, len(graph.spans.region_names)
    region, is_first = spans.region[gaps], spans.previous[gaps] < 0
    for number in np.unique(region).tolist():
        here = (region == number) & ~is_first
        if len(np.unique(spans.rank[gaps[here]])) < 2:
            region = np.where(here, 0, region)
    return np.where(is_first, count, 0) * count + region


def _kind(family: int, kernels: tuple[str, ...], key: int, count: int) -> Kind:
    if family == Family.GAP:
        before, region = divmod(key, count)
        return Kind(Family.GAP, kernels, region, before == count)
    return Kind(Family(family), kernels, key)


def _turns(kind: Ints, track: Ints) -> Ints:
    order = np.lexsort((np.arange(len(kind)), track, kind))
    same = (kind[order][1:] == kind[order][:-1]) & (track[order][1:] == track[order][:-1])
    position = np.arange(len(kind))
    starts = (
        np.maximum.accumulate(np.where(np.r_[True, ~same], position, 0)) if len(kind) else position
    )
    turns = np.empty(len(kind), dtype=np.int64)
    turns[order] = position - starts
    return turns


def edit_of(elements: Elements, chosen: Ints, saved_ns: Floats) -> Edit:
    """The edit that takes times off elements."""
    family = elements.family[chosen]

    def change(wanted: Family) -> Change:
        is_it = family == wanted
        return Change(elements.at[chosen[is_it]], saved_ns[is_it])

    return Edit(*(change(wanted) for wanted in Family))
