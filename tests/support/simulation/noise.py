"""Noise that belongs to operations: a hash of seed, call and operation, not the next random
number."""

from __future__ import annotations

from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from simulation.program import Floats, mixed

Shape = Literal["normal", "lognormal", "spikes"]
SHAPES: Final[tuple[Shape, ...]] = ("normal", "lognormal", "spikes")
# One operation in 500 takes two to four times as long.
_SPIKE_SHARE: Final = 0.002


def uniform(keys: NDArray[np.uint64], *salts: int) -> Floats:
    """A number in (0, 1) per key."""
    for salt in salts:
        keys = mixed(keys ^ np.uint64(salt & 0xFFFFFFFFFFFFFFFF))
    values: Floats = (keys >> np.uint64(11)).astype(float) * 2.0**-53 + 2.0**-54
    return values


def normal(keys: NDArray[np.uint64], *salts: int) -> Floats:
    """A standard normal number per key (Box and Muller)."""
    radius = np.sqrt(-2 * np.log(uniform(keys, *salts, 1)))
    values: Floats = radius * np.cos(2 * np.pi * uniform(keys, *salts, 2))
    return values


def factors(keys: NDArray[np.uint64], shape: Shape, spread: float, *salts: int) -> Floats:
    """The factor of every operation's duration relative to its mean."""
    values = normal(keys, *salts)
    if shape == "lognormal":
        scattered: Floats = np.exp(spread * values - spread * spread / 2)
        return scattered
    scattered = np.maximum(0.2, 1 + spread * values)
    if shape == "spikes":
        is_spike = uniform(keys, *salts, 3) < _SPIKE_SHARE
        scattered = np.where(is_spike, scattered * (2 + 2 * uniform(keys, *salts, 4)), scattered)
    return scattered
