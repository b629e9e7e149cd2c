"""Ranks whose clocks are known, and the messages and collectives that they exchange: for tests and benchmarks of
clocks that are put together from what happened before what."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from kprof.capture.manifest import Alignment
from kprof.clocks.limits import Limits, RankClock

Floats = np.ndarray

# How far a clock may be from the line through its ends over 10 s (kprof.clocks.path has it from GPUs).
BEND_NS = 60.0


@dataclass(frozen=True)
class Clock:
    """Shows `true + offset + rate * true`, bent in between, in whole steps."""

    offset_ns: float = 0.0
    rate: float = 0.0
    bend_ns: float = 0.0
    length_ns: float = 1e10
    step_ns: int = 1

    def read(self, true_ns: Floats) -> np.ndarray:
        bend_ns = self.bend_ns * np.sin(np.pi * true_ns / self.length_ns)
        shown = np.floor(true_ns * (1 + self.rate) + self.offset_ns + bend_ns)
        return shown.astype(np.int64) // self.step_ns * self.step_ns


@dataclass
class World:
    """So many ranks for so long; `draw` has all chance in it."""

    draw: np.random.Generator
    num_ranks: int = 2
    length_ns: float = 1e10
    step_ns: int = 1
    clocks: list[Clock] = field(default_factory=list)
    limits: list[Limits] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not self.clocks:
            self.clocks = [
                Clock(
                    7e12 + self.draw.uniform(-1e9, 1e9),
                    self.draw.uniform(-50e-6, 50e-6),
                    self.draw.uniform(-1, 1)
                    * min(BEND_NS, BEND_NS * (self.length_ns / 1e10) ** 1.5)
                    / 2,
                    self.length_ns,
                    self.step_ns,
                )
                for _ in range(self.num_ranks)
            ]

    def rank_clocks(self) -> dict[int, RankClock]:
        ends = np.array([0.0, self.length_ns + 5e6])
        return {
            r: RankClock(*map(int, clock.read(ends)), clock.step_ns)
            for r, clock in enumerate(self.clocks)
        }

    def moments(self, count: int, bursts: int = 0) -> Floats:
        """When messages are sent: evenly, or in so many bursts of 20 ms."""
        if not bursts:
            return np.sort(self.draw.uniform(0, self.length_ns, count))
        begins = self.draw.choice(
            np.sort(self.draw.uniform(0, self.length_ns - 2e7, bursts)), count
        )
        return np.sort(begins + self.draw.uniform(0, 2e7, count))

    def send(self, before: int, after: int, sent_ns: Floats, delay_ns: Floats) -> None:
        number = np.arange(len(sent_ns)) + sum(len(each.number) for each in self.limits)
        shown = self.clocks[before].read(sent_ns), self.clocks[after].read(sent_ns + delay_ns)
        self.limits.append(Limits(before, after, *shown, number))

    def meet(self, count: int, transfer_ns: float) -> None:
        """Collectives: ranks come at different times, and nobody leaves before `transfer_ns` after the last came."""
        moments = self.moments(count)
        begins = moments + self.draw.exponential(2e4, (self.num_ranks, count))
        ends = (
            begins.max(axis=0) + transfer_ns + self.draw.exponential(1e3, (self.num_ranks, count))
        )
        for a in range(self.num_ranks):
            for b in range(self.num_ranks):
                if a != b:
                    self.send(a, b, begins[a], ends[b] - begins[a])

    def exchange(self, which: int, distance_ns: float) -> int:
        """Join two messages of a side with each other's ends, which are at least so far apart; the number of the
        earlier wait's message."""
        limits = self.limits[which]
        first = int(self.draw.integers(0, len(limits.number) // 2))
        second = int(np.searchsorted(limits.seen_ns, limits.seen_ns[first] + distance_ns))
        limits.seen_ns[[first, second]] = limits.seen_ns[[second, first]]
        return int(limits.number[second])

    def errors_ns(self, alignment: Alignment) -> dict[tuple[int, int], float]:
        """The worst difference between aligned clocks of a pair at the same moments."""
        true_ns = np.linspace(0, self.length_ns, 25)
        shown = {entry.rank: self.clocks[entry.rank].read(true_ns) for entry in alignment.ranks}
        aligned = {
            entry.rank: np.array(
                [(int(ns) - 7 * 10**12) + entry.correction_ns(int(ns)) for ns in shown[entry.rank]]
            )
            for entry in alignment.ranks
        }
        return {
            (a, b): float(np.abs(aligned[b] - aligned[a]).max())
            for a in aligned
            for b in aligned
            if a < b
        }


def both_ways(
    world: World, delay_ns: Callable[[int, Floats], Floats], count: int, bursts: int = 0
) -> World:
    """Messages of ranks 0 and 1; `delay_ns(side, moments)` says how long they take."""
    for side, pair in enumerate([(0, 1), (1, 0)]):
        moments = world.moments(count, bursts)
        world.send(*pair, moments, delay_ns(side, moments))
    return world
