"""Edits, and what they reschedule: who gets a lock next, and when later blocks get a place.

A replay serves locks first come, first served, for every edit anew. It computes the turns at a lock
once it knows when all members of the queue arrive.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from kprof.analysis.replay.columns import runs_of
from kprof.analysis.replay.graph import Graph
from kprof.analysis.replay.spans import Floats, Ints

_NO_INTS: Final = np.zeros(0, dtype=np.int64)
_NO_FLOATS: Final = np.zeros(0, dtype=float)


@dataclass(frozen=True)
class Change:
    """What is subtracted from the times at some indices (spans, or launches), in ns."""

    at: Ints = field(default_factory=lambda: _NO_INTS)
    saved_ns: Floats = field(default_factory=lambda: _NO_FLOATS)


@dataclass(frozen=True)
class Edit:
    """One what-if: changes of own, gap and travel times by span, and of launch gaps by launch."""

    own: Change = field(default_factory=Change)
    gap: Change = field(default_factory=Change)
    travel: Change = field(default_factory=Change)
    launch_gap: Change = field(default_factory=Change)


class Queues:
    """The locks of a graph that are served first come, first served.

    `members` are the spans that take them, queue by queue (`bounds`). `takes` has a row each for
    the time to arrive, to look, to be handed the lock, and to hold it.
    """

    def __init__(self, graph: Graph) -> None:
        spans = graph.spans
        queued = np.flatnonzero(graph.queue >= 0)
        order = np.lexsort((spans.end[queued], graph.queue[queued]))
        self.members = queued[order]
        self.bounds = runs_of(graph.queue[self.members]) if len(queued) else []
        self.takes = np.stack(
            [
                graph.gap_ns[self.members],
                graph.own_ns[self.members],
                graph.travel_ns[self.members],
                (spans.end[graph.held_until] - spans.end)[self.members].astype(float),
            ]
        )
        self.turn_of = np.full(len(spans), -1, dtype=np.int64)
        self.turn_of[self.members] = np.arange(len(self.members))
        self.holder_of = np.full(len(spans), -1, dtype=np.int64)
        for turn, member in enumerate(self.members.tolist()):
            self.holder_of[member + 1 : int(graph.held_until[member]) + 1] = turn

    def subtracted(self, edits: Sequence[Edit]) -> Floats:
        """What edits subtract: rows of `takes` x members x edits."""
        off = np.zeros((4, len(self.members), len(edits)))
        if len(self.members) == 0:
            return off
        for number, edit in enumerate(edits):
            for row, change, turn_of in (
                (0, edit.gap, self.turn_of),
                (1, edit.own, self.turn_of),
                (2, edit.travel, self.turn_of),
                (3, edit.own, self.holder_of),
                (3, edit.gap, self.holder_of),
            ):
                turns = turn_of[change.at]
                is_in = turns >= 0
                np.add.at(off[row, :, number], turns[is_in], change.saved_ns[is_in])
        return off

    def keep(self, edit: Edit) -> None:
        """Make an edit part of the queues."""
        self.takes -= self.subtracted([edit])[:, :, 0]

    def grants(self, number: int, base: Floats, off: Floats) -> Floats:
        """When the lock is free for every member of a queue: members x edits; `base` is when what
        is before a member on its track ends."""
        first, last = self.bounds[number]
        coming, look, handed, held = self.takes[:, first:last, None] - off[:, first:last]
        comes = base + coming
        free = np.full(base.shape[1], -np.inf)
        granted = np.empty_like(base)
        edits = np.arange(base.shape[1])
        for turn in np.argsort(comes, axis=0, kind="stable"):
            granted[turn, edits] = free
            got = np.maximum((comes + look)[turn, edits], free + handed[turn, edits])
            free = got + held[turn, edits]
        return granted


def starts_after_opening(graph: Graph) -> Floats:
    """The gaps of a graph. The gap of a later block counts from when there was a place for it."""
    gap = graph.gap_ns.copy()
    for wave in graph.waves:
        for opened, first in zip(wave.opened.tolist(), wave.firsts[wave.room :], strict=True):
            gap[first] = graph.spans.start[first] - opened
    return gap
