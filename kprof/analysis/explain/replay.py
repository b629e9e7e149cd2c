"""Replay calls with edits: what would their ends be if some of their times were others?

The graph is laid out once, in levels: what a level's nodes depend on lies in levels before. A
replay of many edits is a table of nodes x edits that is filled level by level; rows lie one after
the other, so that every step is a few calls over whole blocks of memory.

    replay = Replay(graph)
    edits = [Edit(duration={...}), ...]
    replay.call_ends(edits)         # edits x calls
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kprof.analysis.explain.graph import Graph
from kprof.analysis.explain.spans import Bools, Floats, Ints
from kprof.analysis.explain.turns import Change, Edit, Queues, opening, starts_after_opening

__all__ = ["Change", "Edit", "Replay"]

# Of the table of nodes x edits; more edits are replayed in several tables.
_TABLE_BYTES: Final = 96 << 20
_MOST_AT_ONCE: Final = 256


@dataclass(frozen=True)
class _Level:
    """Rows [first, last) of a level: those before `joined_end` have two edges, the others one.

    Then meetings.
    """

    first: int
    joined_end: int
    last: int
    meetings: tuple[int, ...]


class Replay:
    """A graph laid out for replays; see the module.

    Nodes are spans, then launches (their starts), then barriers (their openings), then, where
    turns are taken as they come, ends of blocks, places, queues and grants of locks; then one root.
    A node has one or two edges, or, as a meeting, many: a launch has one from the last span of
    every track of the launch before.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.num_spans = len(graph.spans)
        self.num_launches = len(graph.launch_rank)
        self.num_barriers = int(graph.barrier.max(initial=-1)) + 1
        self.queues = Queues(graph)
        self.had_circle = False
        self._connect(takes_turns=bool(graph.waves or self.queues.bounds))
        level, is_left = self._try_levels()
        if is_left.any() and self.takes_turns:
            # What comes first here waits for what comes later: the recorded order stays.
            self._connect(takes_turns=False)
            level, is_left = self._try_levels()
        self._lay_out(self._without_circles(level, is_left))

    def _connect(self, *, takes_turns: bool) -> None:
        """First and second edge of every node, and the edges of meetings."""
        graph, spans = self.graph, self.graph.spans
        self.takes_turns = takes_turns
        self.waves = graph.waves if takes_turns else ()
        self._number_nodes()
        count = self.root + 1
        launch_node = self.num_spans + spans.launch
        base = np.where(graph.before >= 0, graph.before, launch_node)
        gap = starts_after_opening(graph) if takes_turns else graph.gap_ns
        for wave, places in zip(self.waves, self.place_nodes, strict=True):
            for place, starting in zip(places.tolist(), wave.firsts[wave.room :], strict=True):
                base[starting] = place
        self.first_from = np.full(count, self.root, dtype=np.int64)
        self.first_ns = np.zeros(count)
        self.second_from = np.full(count, -1, dtype=np.int64)
        self.second_ns = np.zeros(count)
        self.first_from[: self.num_spans] = base
        self.first_ns[: self.num_spans] = gap + graph.own_ns
        released = np.flatnonzero(graph.releaser >= 0)
        self.second_from[released] = graph.releaser[released]
        self.second_ns[released] = graph.travel_ns[released]
        met = np.flatnonzero(graph.barrier >= 0)
        barrier_node = self.num_spans + self.num_launches + graph.barrier
        self.second_from[met] = barrier_node[met]
        self.second_ns[met] = graph.travel_ns[met]
        if takes_turns:
            members = self.queues.members
            self.second_from[members] = self.first_grant + np.arange(len(members))
            self.second_ns[members] = graph.travel_ns[members]
        launches = self.num_spans + np.arange(self.num_launches)
        self.first_ns[launches] = graph.launch_gap_ns
        first = graph.launch_before < 0
        self.first_ns[launches[first]] += graph.call_start[graph.launch_call[first]]
        self.meeting_from, self.meeting_ns = self._meetings(base, gap, met)
        self._connect_turns(base)

    def _number_nodes(self) -> None:
        """Numbers of what turns need: ends of blocks, places, queues, grants."""
        node = self.num_spans + self.num_launches + self.num_barriers
        self.end_nodes: list[Ints] = []
        self.place_nodes: list[Ints] = []
        for wave in self.waves:
            count = len(wave.firsts)
            self.end_nodes.append(np.arange(node, node + count))
            self.place_nodes.append(np.arange(node + count, node + 2 * count - wave.room))
            node += 2 * count - wave.room
        self.first_queue = node
        self.first_grant = node + (len(self.queues.bounds) if self.takes_turns else 0)
        self.root = self.first_grant + (len(self.queues.members) if self.takes_turns else 0)

    def _connect_turns(self, base: Ints) -> None:
        """Ends of blocks, places, queues and grants, as meetings; `turns` is what each place and
        each queue stands for."""
        self.turns: dict[int, tuple[int, int]] = {}
        for number, wave in enumerate(self.waves):
            ends, places = self.end_nodes[number], self.place_nodes[number]
            for node, last in zip(ends.tolist(), wave.lasts, strict=True):
                self._wait_for(node, last)
            for turn, node in enumerate(places.tolist()):
                # Ends before those of the place before it are known when that is.
                before = ends[: wave.room] if turn == 0 else ends[[wave.room + turn - 1]]
                self._wait_for(node, before if turn == 0 else np.r_[before, places[turn - 1]])
                self.turns[node] = (number, turn)
        for number, (begin, end) in enumerate(self.queues.bounds if self.takes_turns else ()):
            node = self.first_queue + number
            self._wait_for(node, base[self.queues.members[begin:end]])
            for grant in range(self.first_grant + begin, self.first_grant + end):
                self._wait_for(grant, np.array([node]))
            self.turns[self.first_grant + begin] = (number, -1)

    def _wait_for(self, node: int, sources: Ints) -> None:
        self.meeting_from[node], self.meeting_ns[node] = sources, np.zeros(len(sources))

    def _meetings(
        self, base: Ints, gap: Floats, met: Ints
    ) -> tuple[dict[int, Ints], dict[int, Floats]]:
        graph, spans = self.graph, self.graph.spans
        sources: dict[int, Ints] = {}
        weights: dict[int, Floats] = {}
        self.barrier_edge: dict[int, tuple[int, int]] = {}
        order = met[np.argsort(graph.barrier[met], kind="stable")]
        for members in np.split(order, np.flatnonzero(np.diff(graph.barrier[order])) + 1):
            if len(members) == 0:
                continue
            node = self.num_spans + self.num_launches + int(graph.barrier[members[0]])
            sources[node], weights[node] = base[members], gap[members]
            self.barrier_edge |= {int(m): (node, i) for i, m in enumerate(members.tolist())}
        is_last = np.r_[spans.track[1:] != spans.track[:-1], True] if len(spans) else []
        ends = np.flatnonzero(is_last)
        of_launch = np.split(ends, np.flatnonzero(np.diff(spans.launch[ends])) + 1)
        for launch in np.flatnonzero(graph.launch_before >= 0).tolist():
            node = self.num_spans + launch
            sources[node] = of_launch[int(graph.launch_before[launch])]
            weights[node] = np.full(len(sources[node]), float(graph.launch_gap_ns[launch]))
        self.call_tracks = ends
        return sources, weights

    def _lay_out(self, level: Ints) -> None:
        is_joined = self.second_from >= 0
        is_meeting = np.zeros(self.root + 1, dtype=bool)
        is_meeting[list(self.meeting_from)] = True
        kind = np.where(is_meeting, 2, np.where(is_joined, 0, 1))
        order = np.lexsort((kind, level))
        self.row = np.empty(self.root + 1, dtype=np.int64)
        self.row[order] = np.arange(self.root + 1)
        self.levels: list[_Level] = []
        ordered_level, ordered_kind = level[order], kind[order]
        edges = np.searchsorted(ordered_level, np.arange(int(level.max(initial=0)) + 2))
        for first, last in zip(edges[1:-1].tolist(), edges[2:].tolist(), strict=True):
            kinds = ordered_kind[first:last]
            joined = first + int((kinds == 0).sum())
            plain = joined + int((kinds == 1).sum())
            self.levels.append(_Level(first, joined, plain, tuple(order[plain:last].tolist())))
        self.rows_from = self.row[self.first_from[order]]
        self.rows_ns = self.first_ns[order][:, None]
        second = np.maximum(self.second_from[order], 0)
        self.second_rows_from = self.row[second]
        self.second_rows_ns = self.second_ns[order][:, None]

    def _without_circles(self, level: Ints, is_left: Bools) -> Ints:
        """The longest way from the root to every node.

        Clock errors and damaged records may make a circle. Then a span that ended before what
        releases it keeps its length; if that is not enough, so does every span that the circle
        reaches.
        """
        spans = self.graph.spans
        self.had_circle = bool(is_left.any())
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
        cut = np.flatnonzero(chosen & (self.second_from[: self.num_spans] >= 0))
        self.second_from[cut] = -1
        self.first_ns[cut] += (spans.end - spans.start)[cut] - self.graph.own_ns[cut]

    def _try_levels(self) -> tuple[Ints, Bools]:
        """Kahn over whole fronts: each round takes the nodes that nothing is missing for.

        Returns the level of every node, and which nodes a circle kept from getting one.
        """
        sources = [self.first_from[: self.root], self.second_from[: self.root]]
        targets = [np.arange(self.root), np.arange(self.root)]
        for node, froms in self.meeting_from.items():
            sources.append(froms)
            targets.append(np.full(len(froms), node))
        source, target = np.concatenate(sources), np.concatenate(targets)
        target, source = target[source >= 0], source[source >= 0]
        order = np.argsort(source, kind="stable")
        followers = target[order]
        starts = np.searchsorted(source[order], np.arange(self.root + 2))
        missing = np.bincount(target, minlength=self.root + 1)
        level = np.zeros(self.root + 1, dtype=np.int64)
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
        at_once = max(1, min(_MOST_AT_ONCE, _TABLE_BYTES // (8 * (self.root + 1))))
        parts = [self._ends(edits[i : i + at_once]) for i in range(0, len(edits), at_once)]
        return np.concatenate(parts) if parts else np.zeros((0, self.graph.spans.num_calls))

    def gains(self, edits: Sequence[Edit]) -> Floats:
        """What every call gets shorter: edits x calls, in ns."""
        gains: Floats = self.graph.call_end[None, :] - self.call_ends(edits)
        return gains

    def keep(self, edit: Edit) -> None:
        """Make an edit part of the graph: later edits come on top of it."""
        self.queues.keep(edit)
        first, second, meetings = self._edges_of(edit)
        for rows_ns, changes in ((self.rows_ns, first), (self.second_rows_ns, second)):
            for change in changes:
                np.subtract.at(rows_ns[:, 0], self.row[change.at], change.saved_ns)
        for node, edge, saved in meetings:
            self.meeting_ns[node][edge] -= saved

    def span_ends(self, edit: Edit) -> Floats:
        """The end of every span after an edit."""
        ends: Floats = self._run([edit])[self.row[: self.num_spans], 0]
        return ends

    def _ends(self, edits: Sequence[Edit]) -> Floats:
        table = self._run(edits)
        spans = self.graph.spans
        ends = table[self.row[self.call_tracks]]
        call = spans.call[self.call_tracks]
        firsts = np.flatnonzero(np.r_[True, call[1:] != call[:-1]])
        results: Floats = np.maximum.reduceat(ends, firsts, axis=0).T
        return results

    def _run(self, edits: Sequence[Edit]) -> NDArray[np.float64]:
        first, second, meetings = self._deltas(edits)
        off = self.queues.taken_off(edits)
        table = np.zeros((self.root + 1, len(edits)))
        scratch = np.empty(
            (max((lv.joined_end - lv.first for lv in self.levels), default=0), len(edits))
        )
        for number, lv in enumerate(self.levels):
            rows = table[lv.first : lv.last]
            np.take(table, self.rows_from[lv.first : lv.last], axis=0, out=rows, mode="clip")
            rows += self.rows_ns[lv.first : lv.last]
            first.apply(number, table)
            count = lv.joined_end - lv.first
            if count:
                joined = scratch[:count]
                chosen = slice(lv.first, lv.joined_end)
                np.take(table, self.second_rows_from[chosen], axis=0, out=joined, mode="clip")
                joined += self.second_rows_ns[chosen]
                second.apply(number, joined, lv.first)
                np.maximum(rows[:count], joined, out=rows[:count])
            for node in lv.meetings:
                if node in self.turns:
                    self._take_turns(node, table, off)
                elif node < self.first_grant:
                    self._meet(node, table, meetings)
        return table

    def _meet(
        self, node: int, table: Floats, meetings: dict[int, list[tuple[int | slice, int, float]]]
    ) -> None:
        arrived = table[self.row[self.meeting_from[node]]] + self.meeting_ns[node][:, None]
        for edge, edit, saved in meetings.get(node, ()):
            arrived[edge, edit] -= saved
        table[self.row[node]] = arrived.max(axis=0)

    def _take_turns(self, node: int, table: Floats, off: Floats) -> None:
        """Open a place; or, for the first grant of a queue, hand the lock to all of its members."""
        number, turn = self.turns[node]
        if turn >= 0:
            ends = self.end_nodes[number][: self.waves[number].room + turn]
            table[self.row[node]] = opening(self.waves[number], turn, table[self.row[ends]])
            return
        first, last = self.queues.bounds[number]
        base = table[self.row[self.meeting_from[self.first_queue + number]]]
        rows = self.row[self.first_grant + np.arange(first, last)]
        table[rows] = self.queues.grants(number, base, off)

    def _edges_of(
        self, edit: Edit
    ) -> tuple[list[Change], list[Change], list[tuple[int, int | slice, float]]]:
        """What an edit takes off: first edges of nodes, second edges, and edges of meetings (node,
        which of its edges, ns)."""
        launches = edit.launch_gap
        plain = self.graph.launch_before[launches.at] < 0
        first = Change(self.num_spans + launches.at[plain], launches.saved_ns[plain])
        pairs = zip(launches.at[~plain].tolist(), launches.saved_ns[~plain].tolist(), strict=True)
        meetings: list[tuple[int, int | slice, float]] = [
            (self.num_spans + launch, slice(None), saved) for launch, saved in pairs
        ]
        is_met = self.graph.barrier[edit.gap.at] >= 0
        met = zip(edit.gap.at[is_met].tolist(), edit.gap.saved_ns[is_met].tolist(), strict=True)
        meetings += [(*self.barrier_edge[at], saved) for at, saved in met]
        return [edit.own, edit.gap, first], [edit.travel], meetings

    def _deltas(
        self, edits: Sequence[Edit]
    ) -> tuple[_Deltas, _Deltas, dict[int, list[tuple[int | slice, int, float]]]]:
        """What edits take off, by level: first edges, second edges, edges of meetings."""
        first: list[tuple[int, Change]] = []
        second: list[tuple[int, Change]] = []
        by_node: dict[int, list[tuple[int | slice, int, float]]] = {}
        for number, edit in enumerate(edits):
            of_first, of_second, meetings = self._edges_of(edit)
            first += [(number, change) for change in of_first]
            second += [(number, change) for change in of_second]
            for node, edge, saved in meetings:
                by_node.setdefault(node, []).append((edge, number, saved))
        bounds = np.array([lv.first for lv in self.levels])
        return _Deltas(self.row, first, bounds), _Deltas(self.row, second, bounds), by_node


class _Deltas:
    """What is taken off the edges of rows, sorted by level."""

    def __init__(self, row: Ints, parts: list[tuple[int, Change]], bounds: Ints) -> None:
        rows = np.concatenate([row[change.at] for _, change in parts])
        edits = np.concatenate([np.full(len(change.at), number) for number, change in parts])
        saved = np.concatenate([change.saved_ns for _, change in parts])
        order = np.argsort(rows, kind="stable")
        self.rows, self.edits, self.saved = rows[order], edits[order], saved[order]
        self.edges = np.r_[np.searchsorted(self.rows, bounds), len(rows)].tolist()

    def apply(self, level: int, table: Floats, offset: int = 0) -> None:
        """Take off what belongs to a level; `table` begins with row `offset`."""
        first, last = self.edges[level], self.edges[level + 1]
        if first < last:
            chosen = slice(first, last)
            np.subtract.at(
                table, (self.rows[chosen] - offset, self.edits[chosen]), self.saved[chosen]
            )


def _ranges(starts: Ints, ends: Ints) -> Ints:
    """The numbers of [start, end) of every pair, one after the other."""
    lengths = ends - starts
    total = int(lengths.sum())
    shift = np.repeat(starts - np.r_[0, np.cumsum(lengths)[:-1]], lengths)
    numbers: Ints = np.arange(total) + shift
    return numbers
