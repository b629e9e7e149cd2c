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
