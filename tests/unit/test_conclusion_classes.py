"""A case of each class in which conclusions once went wrong; the benchmark has their rates."""

from __future__ import annotations

import pytest

from benchmarks.conclusion_classes import judge
from patterns.classes import CLASSES

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", CLASSES)
def test_the_planted_cause_is_named_and_nothing_else(name: str) -> None:
    verdict = judge(name, 0, 11)
    assert verdict.first is not False
    assert verdict.all is not False
    assert verdict.silent is not False


# By class, number and seed: one block in each call, always another one, at 40 % of a call; calls whose sizes are in order;
# a slow SM that has the same block in most calls.
@pytest.mark.parametrize(
    ("name", "number", "seed"),
    [("cliff", 21, 77), ("sizes", 27, 20261125), ("position", 4, 20261128)],
)
def test_what_once_went_wrong_is_right(name: str, number: int, seed: int) -> None:
    verdict = judge(name, number, seed)
    assert (verdict.first, verdict.silent) in [(True, None), (None, True)]
