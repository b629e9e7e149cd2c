"""Replays calls with edits: when would they end if some of their times were shorter?

The graph is laid out once, in levels: the nodes of a level depend on levels before it only. A
replay of many edits fills a table of nodes x edits level by level. The rows of a level are
contiguous, so each level takes a few numpy calls.

    replay = Replay(graph)
    edits = [Edit(own=Change(...)), ...]
    replay.call_ends(edits)         # edits x calls
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kprof.analysis.replay.columns import turns_of
from kprof.analysis.replay.graph import Graph
from kprof.analysis.replay.spans import Bools, Floats, Ints
from kprof.analysis.replay.turns import Change, Edit, Queues, starts_after_opening
from kprof.analysis.replay.waves import Wave

__all__ = ["Change", "Edit", "Replay"]

# The size of the table; more edits are replayed in several tables.
_TABLE_BYTES: Final = 96 << 20
_MOST_AT_ONCE: Final = 256

# Fills in rows of the table; the other array is what edits subtract in queues.
_Turn = Callable[[Floats, Floats], None]


@dataclass(frozen=True)
class _Level:
    """[begin, end) of its first edges, one for every row, and of its second edges, which belong to
    the first rows. `turns` fill in further rows afterwards."""

    edges: tuple[tuple[int, int], tuple[int, int]]
    turns: list[_Turn]


class Replay:
    """A graph laid out for replays; see the module.

    Nodes are the ends of spans, the starts of launches, one root, and helpers: ends of launches and
    calls, openings of barriers, ends of blocks, places and grants of locks. A node has one or two
    edges: a tree of nodes stands for the latest of many.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.num_spans = len(graph.spans)
        self.queues = Queues(graph)
        self._connect(takes_turns=True)
        level, is_left = self._try_levels()
        if is_left.any() and self.turns:
            # Turns by arrival would make a circle here: the recorded order stays.
            self._connect(takes_turns=False)
            level, is_left = self._try_levels()
        self.had_circle = bool(is_left.any())
        self._lay_out(self._without_circles(level, is_left))

    def _connect(self, *, takes_turns: bool) -> None:
        """The edges of every node: first and second edges x nodes."""
        graph, spans = self.graph, self.graph.spans
        self.num_nodes = 0
        self.turns: dict[int, _Turn] = {}
        self._edges: list[tuple[Ints | int, Ints, Ints, Floats | float]] = []
        nodes, launches = self._new_nodes(self.num_spans), self._new_nodes(len(graph.launch_rank))
        root = self._new_nodes(1)
        base = np.where(graph.before >= 0, graph.before, launches[spans.launch])
        gap = starts_after_opening(graph) if takes_turns else graph.gap_ns
        for wave in graph.waves if takes_turns else ():
            self._add_places(wave, base)
        self._join(0, nodes, base, gap + graph.own_ns)
        self._join(1, nodes, graph.releaser, graph.travel_ns)
        self._add_launches(launches, root)
        met = np.flatnonzero(graph.barrier >= 0)
        self.met = met[np.argsort(graph.barrier[met], kind="stable")]
        barrier = graph.barrier[self.met]
        opened, self.entering = self._latest(barrier, base[self.met], gap[self.met])
        self._join(1, self.met, opened[barrier], graph.travel_ns[self.met])
        if takes_turns:
            self._add_grants(base)
        self.sources, self.ns = np.full((2, self.num_nodes), -1), np.zeros((2, self.num_nodes))
        for side, node, source, ns in self._edges:
            self.sources[side, node], self.ns[side, node] = source, ns

    def _new_nodes(self, count: int) -> Ints:
        self.num_nodes += count
        return np.arange(self.num_nodes - count, self.num_nodes)

    def _join(self, side: Ints | int, nodes: Ints, sources: Ints, ns: Floats | float = 0.0) -> None:
        """First edges (side 0) or second ones: nodes come so long after their sources."""
        self._edges.append((side, nodes, sources, ns))

    def _latest(
        self, groups: Ints, sources: Ints, ns: Floats | float = 0.0
    ) -> tuple[Ints, tuple[Ints, Ints]]:
        """A node for every group, from 0 on, as late as the latest of its sources, each after its
        `ns`; and side and node of the edge from every source. Groups are sorted."""
        side = turns_of(groups) % 2
        groups = groups[side == 0]
        nodes = self._new_nodes(len(groups))
        entered = nodes[np.cumsum(side == 0) - 1]
        self._join(side, entered, sources, ns)
        if (groups[1:] != groups[:-1]).all():
            return nodes, (side, entered)
        return self._latest(groups, nodes)[0], (side, entered)

    def _add_places(self, wave: Wave, base: Ints) -> None:
        """Places of a launch, which the first spans of blocks that found no room get as `base`."""
        of_block = np.repeat(np.arange(len(wave.lasts)), [len(last) for last in wave.lasts])
        ends, _ = self._latest(of_block, np.concatenate(wave.lasts))
        of_first, _ = self._latest(np.zeros(wave.room, dtype=np.int64), ends[: wave.room])
        places = self._new_nodes(len(ends) - wave.room)
        # Ends before those of the place before it are known when that is.
        self._join(0, places, np.r_[of_first, ends[wave.room : -1]])
        self._join(1, places[1:], places[:-1])
        for turn, place in enumerate(places.tolist()):
            base[wave.firsts[wave.room + turn]] = place
            self.turns[place] = partial(self._open, turn, place, ends[: wave.room + turn])

    def _add_launches(self, launches: Ints, root: Ints) -> None:
        """A launch starts after the end of the one before it, or after the root, which is at 0."""
        graph, spans = self.graph, self.graph.spans
        lasts = np.flatnonzero(np.r_[spans.track[1:] != spans.track[:-1], True][: self.num_spans])
        ended, _ = self._latest(spans.launch[lasts], lasts)
        follows = graph.launch_before >= 0
        since = np.where(follows, 0, graph.call_start[graph.launch_call])
        source = np.where(follows, ended[graph.launch_before], root)
        self._join(0, launches, source, graph.launch_gap_ns + since)
        self.calls, _ = self._latest(graph.launch_call, ended)

    def _add_grants(self, base: Ints) -> None:
        """Locks are granted when all who queue for them have come."""
        members = self.queues.members
        queue = self.graph.queue[members]
        come, _ = self._latest(queue, base[members])
        grants = self._new_nodes(len(members))
        self._join(0, grants, come[queue])
        self._join(1, members, grants, self.graph.travel_ns[members])
        for number, (first, last) in enumerate(self.queues.bounds):
            its = slice(first, last)
            self.turns[int(grants[first])] = partial(
                self._hand_out, number, grants[its], base[members[its]]
            )

    def _open(self, turn: int, place: int, ends: Ints, table: Floats, _off: Floats) -> None:
        """A place is open for the k-th block that found no room when k of those before it ended."""
        ended = table[self.row[ends]]
        table[self.row[place]] = np.partition(ended, turn, axis=0)[turn]

    def _hand_out(self, number: int, grants: Ints, base: Ints, table: Floats, off: Floats) -> None:
        """The lock goes to all members of a queue in turn."""
        table[self.row[grants]] = self.queues.grants(number, table[self.row[base]], off)

    def _lay_out(self, level: Ints) -> None:
        """Number the rows, and the edges of rows: first edges of all, then second edges."""
        has_second = self.sources[1] >= 0
        order = np.lexsort((~has_second, level))
        self.row = np.empty_like(order)
        self.row[order] = np.arange(len(order))
        self.edge_from = self.row[self.sources[:, order].ravel()]
        self.edge_ns = self.ns[:, order].reshape(-1, 1)
        self.edge_of_met = np.full(self.num_spans, -1)
        self.edge_of_met[self.met] = self.entering[0] * len(level) + self.row[self.entering[1]]
        turns: dict[int, list[_Turn]] = defaultdict(list)
        for node, turn in self.turns.items():
            turns[int(level[node])].append(turn)
        bounds = np.searchsorted(level[order], np.arange(1, int(level.max()) + 2)).tolist()
        joined = np.bincount(level[has_second], minlength=len(bounds)).tolist()
        self.most_joined = max(joined)
        self.levels = [
            _Level(
                ((first, last), (len(level) + first, len(level) + first + joined[number])),
                turns[number],
            )
            for number, (first, last) in enumerate(itertools.pairwise(bounds), start=1)
        ]

    def _without_circles(self, level: Ints, is_left: Bools) -> Ints:
        """The longest path from the root to every node.

        Clock errors and damaged records may make a circle. Then spans that ended before their
        releaser keep their length; if that is not enough, so do all spans that the circle reaches.
        """
        spans = self.graph.spans
        if is_left.any():
            releaser = self.graph.releaser
            self._keep_lengths((releaser >= 0) & (spans.end[releaser] > spans.end))
            level, is_left = self._try_levels()
        if is_left.any():
            self._keep_lengths(is_left[: self.num_spans])
            level, is_left = self._try_levels()
        assert not is_left.any(), "launches wait for each other in a circle"
        return level

    def _keep_lengths(self, chosen: Bools) -> None:
        """Let these spans take as long as recorded, whatever releases them."""
        spans = self.graph.spans
        cut = np.flatnonzero(chosen & (self.sources[1, : self.num_spans] >= 0))
        self.sources[1, cut] = -1
        self.ns[0, cut] += (spans.end - spans.start)[cut] - self.graph.own_ns[cut]

    def _try_levels(self) -> tuple[Ints, Bools]:
        """Kahn's algorithm, a whole front at a time: each round takes the nodes with no open edges.

        Returns the level of every node, and which nodes have none because of a circle.
        """
        side, target = np.nonzero(self.sources >= 0)
        source = self.sources[side, target]
        order = np.argsort(source, kind="stable")
        followers = target[order]
        starts = np.searchsorted(source[order], np.arange(self.num_nodes + 1))
        missing = np.bincount(target, minlength=self.num_nodes)
        level = np.zeros(self.num_nodes, dtype=np.int64)
        front = np.flatnonzero(missing == 0)
        depth = 0
        while len(front):
            level[front] = depth
            depth += 1
            reached = followers[_ranges(starts[front], starts[front + 1])]
            np.subtract.at(missing, reached, 1)
            front = np.unique(reached[missing[reached] == 0])
        return level, missing > 0

    def call_ends(self, edits: Sequence[Edit]) -> Floats:
        """The end of every call after every edit: edits x calls, ns on the clock of the spans."""
        at_once = max(1, min(_MOST_AT_ONCE, _TABLE_BYTES // (8 * self.num_nodes)))
        parts = [self._ends(edits[i : i + at_once]) for i in range(0, len(edits), at_once)]
        return np.concatenate(parts) if parts else np.zeros((0, len(self.calls)))

    def _ends(self, edits: Sequence[Edit]) -> Floats:
        """`call_ends` of edits that fit into one table."""
        ends: Floats = self._run(edits)[self.row[self.calls]].T
        if (pause_ns := self.graph.pause_ns) is not None:
            ends[:, 1:] = self.graph.call_start[1:] + np.diff(ends, axis=1) - pause_ns
        return ends

    def keep(self, edit: Edit) -> None:
        """Make an edit part of the graph: later edits come on top of it."""
        self.queues.keep(edit)
        for change in self._edges_of(edit):
            np.subtract.at(self.edge_ns[:, 0], change.at, change.saved_ns)

    def span_ends(self, edit: Edit) -> Floats:
        """The end of every span after an edit."""
        return self._run([edit])[self.row[: self.num_spans], 0]

    def _run(self, edits: Sequence[Edit]) -> NDArray[np.float64]:
        at, number, saved = self._subtracted(edits)
        off = self.queues.subtracted(edits)
        table = np.zeros((self.num_nodes, len(edits)))
        scratch = np.empty((self.most_joined, len(edits)))
        bounds = np.searchsorted(at, np.array([lv.edges for lv in self.levels])).tolist()
        for lv, taken in zip(self.levels, bounds, strict=True):
            (first, last), (second, joined) = lv.edges
            rows, others = table[first:last], scratch[: joined - second]
            for arrived, (begin, end), (i, j) in zip((rows, others), lv.edges, taken, strict=True):
                np.take(table, self.edge_from[begin:end], axis=0, out=arrived, mode="clip")
                arrived += self.edge_ns[begin:end]
                if i < j:
                    np.subtract.at(arrived, (at[i:j] - begin, number[i:j]), saved[i:j])
            np.maximum(rows[: len(others)], others, out=rows[: len(others)])
            for take_turn in lv.turns:
                take_turn(table, off)
        return table

    def _edges_of(self, edit: Edit) -> Iterator[Change]:
        """What an edit subtracts, by the number of the edge."""
        entering = self.edge_of_met[edit.gap.at]
        yield Change(self.row[edit.own.at], edit.own.saved_ns)
        yield Change(self.row[edit.gap.at], edit.gap.saved_ns)
        yield Change(entering[entering >= 0], edit.gap.saved_ns[entering >= 0])
        yield Change(self.row[self.num_spans + edit.launch_gap.at], edit.launch_gap.saved_ns)
        yield Change(self.num_nodes + self.row[edit.travel.at], edit.travel.saved_ns)

    def _subtracted(self, edits: Sequence[Edit]) -> tuple[Ints, Ints, Floats]:
        """What edits subtract: edges, in their order, with the number of the edit and ns."""
        parts = [(i, change) for i, edit in enumerate(edits) for change in self._edges_of(edit)]
        at = np.concatenate([change.at for _, change in parts])
        number = np.repeat([i for i, _ in parts], [len(change.at) for _, change in parts])
        saved = np.concatenate([change.saved_ns for _, change in parts])
        order = np.argsort(at, kind="stable")
        return at[order], number[order], saved[order]


def _ranges(starts: Ints, ends: Ints) -> Ints:
    """The numbers of [start, end) of every pair, one after the other."""
    lengths = ends - starts
    total = int(lengths.sum())
    shift = np.repeat(starts - np.r_[0, np.cumsum(lengths)[:-1]], lengths)
    return np.arange(total) + shift
