"""Colours of the report: people who see no red, no green or no blue can tell them apart."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from kprof.report.figures.base import CATEGORY_COLORS, PALETTE
from kprof.report.figures.ribbon import RIBBON_COLORS

Vector = np.ndarray
# How the colours of a screen look without one kind of cones (Machado et al. 2009, severity 1), in linear RGB.
SIGHT = {
    "all colours": np.eye(3),
    "no red": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]),
    "no green": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]),
    "no blue": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]),
}  # fmt: skip
# Oklab (Ottosson 2020), times 100: from about 2 on eyes see a difference.
TO_CONES = np.array(
    [
        [0.4122214708, 0.5363325363, 0.0514459929],
        [0.2119034982, 0.6806995451, 0.1073969566],
        [0.0883024619, 0.2817188376, 0.6299787005],
    ]
)
TO_LAB = np.array(
    [
        [0.2104542553, 0.7936177850, -0.0040720468],
        [1.9779984951, -2.4285922050, 0.4505937099],
        [0.0259040371, 0.7827717662, -0.8086757660],
    ]
)
LEAST_DIFFERENCE = 12


def linear(color: str) -> Vector:
    values = np.array([int(color[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def lab(rgb: Vector) -> Vector:
    return 100 * TO_LAB @ np.cbrt(TO_CONES @ np.clip(rgb, 0, 1))


@pytest.mark.parametrize("sight", SIGHT)
@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
@pytest.mark.parametrize("colors", [PALETTE, RIBBON_COLORS], ids=["page", "ribbon"])
def test_any_two_colours_can_be_told_apart(
    colors: dict[str, tuple[str, str]], scheme: int, sight: str
) -> None:
    seen = {name: lab(SIGHT[sight] @ linear(pair[scheme])) for name, pair in colors.items()}
    near = [
        (a, b, float(np.linalg.norm(seen[a] - seen[b])))
        for a, b in itertools.combinations(seen, 2)
        if np.linalg.norm(seen[a] - seen[b]) < LEAST_DIFFERENCE
    ]
    assert near == []


def test_the_palette_has_every_category() -> None:
    assert list(PALETTE)[: len(CATEGORY_COLORS)] == list(CATEGORY_COLORS)
    assert all(PALETTE[name][0] == color for name, color in CATEGORY_COLORS.items())
