"""Whose place a late block took: by its definition, and where a launch has very many blocks."""

from __future__ import annotations

import numpy as np
import pytest

from kprof.analysis.replay.waves import _took_place_of


def _defined(starts: np.ndarray, ends: np.ndarray, processor: np.ndarray, room: int) -> list[int]:
    late, taken = [-1] * len(starts), set[int]()
    order = np.lexsort((ends, starts)).tolist()
    for position, block in enumerate(order):
        if position >= room:
            ended = [
                other
                for other in np.argsort(ends, kind="stable").tolist()
                if ends[other] <= starts[block]
                and processor[other] == processor[block]
                and other not in taken
                and order.index(other) < position
            ]
            late[block] = max(ended, key=lambda other: int(ends[other]), default=-1)
            taken.add(late[block])
    return late


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(50))
def test_a_block_takes_the_place_of_the_one_that_ended_last(seed: int) -> None:
    random = np.random.default_rng(seed)
    count = int(random.integers(1, 40))
    starts = random.integers(0, 30, count)
    ends = starts + random.integers(0, 8, count)
    processor, room = random.integers(0, 4, count), int(random.integers(1, 6))
    found = _took_place_of(starts, ends, processor, room)
    assert found.tolist() == _defined(starts, ends, processor, room)


def test_a_hundred_thousand_blocks_that_take_no_place_are_looked_through_once() -> None:
    """Each was compared with all that had ended, which took minutes."""
    starts = np.arange(100_000) * 10
    found = _took_place_of(starts, starts + 3, np.arange(100_000), 1)
    assert (found == -1).all()
