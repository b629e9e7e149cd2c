"""Two devices and their host with known clocks, compared over paths whose latencies a test chooses."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from clock_world import START_NS, World
from msgspec.structs import replace

from kprof.clocks.corner import Seen, other_paths
from kprof.clocks.offset import OffsetSample


@dataclass(frozen=True)
class Lane:
    """A device's way to memory of the host: of a read the request and what comes back, and of a write."""

    ask_ns: float = 450.0
    back_ns: float = 450.0
    write_ns: float = 500.0


def play_corner(
    world: World, true_ns: int, lanes: tuple[Lane, Lane] = (Lane(), Lane()), rounds: int = 1024
) -> tuple[Seen, Seen]:
    """What both devices and the host note, of stores that begin at a true time."""
    draw = np.random.default_rng(world.seed + 1)
    # True times count from the first store.
    visible = np.cumsum(draw.uniform(4000, 8000, rounds))
    notes, answers = [], []
    for lane in lanes:
        # A read samples the word when its request has arrived; one that misses is followed by the next.
        period = lane.ask_ns + lane.back_ns + 40
        asked = visible - lane.ask_ns - draw.uniform(0, period, rounds)
        hit = asked + period + lane.ask_ns + lane.back_ns
        answered = hit + draw.uniform(20, 300, rounds)
        notes.append(np.stack([asked, hit, answered], axis=1))
        answers.append(answered + lane.write_ns + draw.exponential(40, rounds))
    host = np.stack([visible - draw.uniform(50, 200, rounds), *answers], axis=1)
    devices = [
        clock.read(true_ns + np.rint(each).astype(np.int64))
        for clock, each in zip(world.clocks, notes, strict=True)
    ]
    first, second = devices
    return Seen(first, START_NS // 2 + np.rint(host).astype(np.int64)), Seen(second, None)


def calibrate_pair(
    world: World, true_ns: int, lanes: tuple[Lane, Lane] = (Lane(), Lane())
) -> OffsetSample:
    """One calibration of two ranks: the ping-pong, and a millisecond later their host."""
    others = other_paths(*play_corner(world, true_ns + 10**6, lanes))
    return replace(world.play((0, 1), true_ns), others=others)
