"""The causes of lost time in a run: where, how much and in which calls."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from simulation.program import Floats, Op, Program


class Kind(str, Enum):
    """What a cause does. The comments explain its `amount`."""

    SLOW = "slow"  # work takes (1 + amount) times as long
    DELAY = "delay"  # one operation of a track takes amount ns longer
    LATE_START = "late start"  # the first launch of a rank starts amount ns later
    IDLE_GAP = "idle gap"  # nothing is recorded for amount ns before one operation of every track
    SLOW_ITEMS = "slow items"  # every n-th operation of a region takes (1 + amount) times as long
    MORE_ITEMS = "more items"  # (1 + amount) times the items
    SLOW_LINK = "slow link"  # data takes amount ns longer


class When(str, Enum):
    """The calls with a cause."""

    CONSTANT = "constant"
    OCCASIONAL = "occasional"
    PERIODIC = "periodic"
    GROWING = "growing"
    MOVING = "moving"


@dataclass(frozen=True)
class Cause:
    """One cause. None means all ranks, blocks or regions. `weights[call]` multiplies the amount (0: not in this
    call). A moving cause is at `path[call]` = (rank, block) in place of `ranks` and `blocks`. `link` is
    (source, destination), -1 for any. `every` is the n of slow items."""

    kind: Kind
    amount: float
    weights: tuple[float, ...]
    when: When = When.CONSTANT
    ranks: tuple[int, ...] | None = None
    blocks: tuple[int, ...] | None = None
    region: str | None = None
    link: tuple[int, int] | None = None
    every: int = 1
    path: tuple[tuple[int, int], ...] | None = None

    def amount_in(self, call: int) -> float:
        """The amount in a call."""
        return self.amount * self.weights[call]

    def is_at(self, program: Program, call: int) -> NDArray[np.bool_]:
        """The operations that it affects in a call."""
        rank, block = program.of_ops(program.track_rank), program.of_ops(program.track_block)
        ranks, blocks = self.ranks, self.blocks
        if self.path is not None:
            ranks, blocks = (self.path[call][0],), (self.path[call][1],)
        chosen = np.ones(len(program), dtype=bool)
        if ranks is not None:
            chosen &= np.isin(rank, ranks)
        if blocks is not None:
            chosen &= np.isin(block, blocks)
        if self.region is not None:
            chosen &= program.region == self.region
        return chosen


def change_durations(cause: Cause, program: Program, call: int, duration: Floats) -> None:
    """Make operations longer, in place."""
    amount = cause.amount_in(call)
    is_work = (program.op == Op.WORK) | (program.op == Op.SEND)
    chosen = cause.is_at(program, call) & is_work
    if cause.kind is Kind.SLOW:
        duration[chosen] *= 1 + amount
    elif cause.kind is Kind.SLOW_ITEMS:
        duration[chosen & (program.turn % cause.every == cause.every - 1)] *= 1 + amount
    elif cause.kind is Kind.DELAY:
        duration[_once_per_track(program, chosen)] += amount


def change_gaps(cause: Cause, program: Program, call: int, gap: Floats) -> None:
    """Put time before operations, in place: before the first operation of its region on every track."""
    if cause.kind is Kind.IDLE_GAP:
        chosen = cause.is_at(program, call)
        gap[_once_per_track(program, chosen)] += cause.amount_in(call)


def change_travel(cause: Cause, program: Program, call: int, travel: Floats) -> None:
    """Make data travel longer, in place. Travel times belong to waits."""
    if cause.kind is not Kind.SLOW_LINK or cause.link is None:
        return
    src, dst = cause.link
    chosen = program.op == Op.WAIT
    rank = program.of_ops(program.track_rank)
    chosen &= program.peer != rank
    if src >= 0:
        chosen &= program.peer == src
    if dst >= 0:
        chosen &= rank == dst
    travel[chosen] += cause.amount_in(call)


def _once_per_track(program: Program, chosen: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """The first chosen operation of every track and stage."""
    once = np.zeros(len(program), dtype=bool)
    at = np.flatnonzero(chosen)
    _, first = np.unique(program.track[at], return_index=True)
    once[at[first]] = True
    return once
