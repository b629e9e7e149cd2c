"""A world with known clocks: ping-pong played over links whose latencies a test chooses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from kprof.clocks.offset import OffsetSample, Pair, sample_from_readings

START_NS = 1_795_000_000_000_000_000


@dataclass(frozen=True)
class Clock:
    """local = true + offset + drift * (true - START), in steps."""

    offset_ns: float = 0.0
    drift: float = 0.0
    step_ns: int = 1

    def read(self, true_ns: np.ndarray | int) -> np.ndarray:
        elapsed = np.asarray(true_ns, dtype=np.int64) - START_NS
        bent = elapsed + np.rint(self.offset_ns + self.drift * elapsed).astype(np.int64)
        return START_NS + bent // self.step_ns * self.step_ns


@dataclass(frozen=True)
class Link:
    """Latency of the first to the second and back, and the scale of noise on top. `burst` rounds take 20 us more."""

    there_ns: float = 600.0
    back_ns: float = 600.0
    noise_ns: float = 80.0
    burst: tuple[int, int] = (0, 0)


@dataclass
class World:
    """Ranks, their clocks and their links."""

    clocks: list[Clock]
    seed: int = 0
    links: Mapping[Pair, Link] = field(default_factory=dict)
    lanes: int = 8
    rounds: int = 60

    def __post_init__(self) -> None:
        self._random = np.random.default_rng(self.seed)

    def play(self, pair: Pair, true_ns: int) -> OffsetSample:
        """One game of a pair that begins at a true time."""
        first, second = self.readings(pair, true_ns)
        step_ns = max(self.clocks[rank].step_ns for rank in pair)
        return sample_from_readings(first, second, float(step_ns))

    def readings(self, pair: Pair, true_ns: int) -> tuple[np.ndarray, np.ndarray]:
        link = self.links.get(pair, Link())
        shape = (self.lanes, self.rounds)
        there = link.there_ns + self._random.exponential(link.noise_ns, shape)
        back = link.back_ns + self._random.exponential(link.noise_ns, shape)
        back[:, slice(*link.burst)] += 20_000
        dawdling = self._random.uniform(0, 300, (2, *shape))
        laps = there + back + dawdling.sum(axis=0)
        # Floats hold nanoseconds since START, not since 1970.
        seen_a = true_ns - START_NS + np.cumsum(laps, axis=1) - laps
        sent_a = seen_a + dawdling[0]
        seen_b = sent_a + there
        sent_b = seen_b + dawdling[1]
        a, b = (self.clocks[rank] for rank in pair)
        return _pack(a, seen_a, sent_a), _pack(b, seen_b, sent_b)

    def calibrate(self, pairs: list[Pair], true_ns: int) -> dict[Pair, OffsetSample]:
        """One calibration: the pairs play one after the other, 0.4 ms apart."""
        return {pair: self.play(pair, true_ns + 400_000 * idx) for idx, pair in enumerate(pairs)}


def _pack(clock: Clock, seen: np.ndarray, sent: np.ndarray) -> np.ndarray:
    return np.stack(
        [clock.read(START_NS + np.rint(times).astype(np.int64)) for times in (seen, sent)], axis=2
    )


def pairs_of(num_ranks: int) -> list[Pair]:
    return [(a, b) for a in range(num_ranks) for b in range(a + 1, num_ranks)]


def star_of(num_ranks: int) -> list[Pair]:
    return [(0, rank) for rank in range(1, num_ranks)]


def random_clocks(seed: int, num_ranks: int, step_ns: int = 1) -> list[Clock]:
    """Offsets up to 10 ms either way, drifts up to 100 ppm."""
    random = np.random.default_rng(seed)
    return [
        Clock(float(random.uniform(-1e7, 1e7)), float(random.uniform(-1e-4, 1e-4)), step_ns)
        for _ in range(num_ranks)
    ]
