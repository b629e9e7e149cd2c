"""Replays of ranks that nothing joins: no clock in common, or no flow from a send to its wait.

Durations need neither. Each rank is replayed by itself, with waits as long as they were. If one
rank gets faster, the others wait less: a track by as much as any other rank gained, and by no more
than what it waits beyond the track that waits least, for some waiting belongs to every exchange.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from kprof.analysis.replay.columns import extents
from kprof.analysis.replay.graph import Graph, nothing_joins
from kprof.analysis.replay.replay import Edit, Replay
from kprof.analysis.replay.spans import Floats, Spans


def replay_of(graph: Graph) -> Replay:
    """The replay that fits what joins the ranks of a graph."""
    is_elastic = nothing_joins(graph.spans, graph.releaser, graph.barrier)
    return ElasticReplay(graph) if is_elastic else Replay(graph)


def begun_together(spans: Spans) -> Spans:
    """Spans of ranks without a clock in common, as if all ranks had begun every call at once."""
    pair = spans.call * (int(spans.rank.max(initial=0)) + 1) + spans.rank
    _, number = np.unique(pair, return_inverse=True)
    first, last = extents(number, spans.start, spans.end)
    length = np.zeros(spans.num_calls, dtype=np.int64)
    np.maximum.at(length, spans.call, (last - first)[number])
    shift = first[number] - (np.cumsum(length) - length)[spans.call]
    return replace(spans, start=spans.start - shift, end=spans.end - shift)


class ElasticReplay(Replay):
    """A replay in which what one rank gains shortens the waits of the others; see the module."""

    def __init__(self, graph: Graph) -> None:
        super().__init__(graph)
        spans = graph.spans
        self._last = np.flatnonzero(np.r_[spans.track[1:] != spans.track[:-1], True])
        pair = graph.launch_call * (int(graph.launch_rank.max()) + 1) + graph.launch_rank
        self._pair = np.unique(pair, return_inverse=True)[1][spans.launch[self._last]]
        self._call = spans.call[self._last]
        waited = self._waited()
        least = np.full(spans.num_calls, np.inf)
        np.minimum.at(least, self._call, waited)
        self._spare = (waited - least[self._call])[:, None]
        self._before = self._of_ranks(spans.end[self._last][:, None].astype(float))

    def _waited(self) -> Floats:
        """What every track waited, and the longest waits of the launches before it."""
        graph, spans = self.graph, self.graph.spans
        # What another track of the rank releases does not wait for other ranks.
        is_open = graph.is_wait & (graph.releaser < 0)
        waits = np.where(is_open, spans.end - spans.start, 0)
        of_track = np.bincount(spans.track, weights=waits)
        launch = spans.launch[self._last]
        longest = np.zeros(len(graph.launch_rank))
        np.maximum.at(longest, launch, of_track)
        so_far = np.zeros(len(longest))
        for number, before in enumerate(graph.launch_before.tolist()):
            if before >= 0:
                so_far[number] = so_far[before] + longest[before]
        return of_track + so_far[launch]

    def _of_ranks(self, ends: Floats) -> Floats:
        """The last end of every rank in every call: (call, rank) x edits."""
        latest = np.full((int(self._pair.max()) + 1, ends.shape[1]), -np.inf)
        np.maximum.at(latest, self._pair, ends)
        return latest

    def _ends(self, edits: Sequence[Edit]) -> Floats:
        """With waits that other ranks shorten."""
        ends = self._run(edits)[self.row[self._last]]
        gained = self._before - self._of_ranks(ends)
        calls = np.zeros(len(gained), dtype=np.int64)
        calls[self._pair] = self._call
        best = np.zeros((self.graph.spans.num_calls, len(edits)))
        np.maximum.at(best, calls, gained)
        shorter = ends - np.minimum(self._spare, best[self._call])
        latest = np.full_like(best, -np.inf)
        np.maximum.at(latest, self._call, shorter)
        return latest.T
