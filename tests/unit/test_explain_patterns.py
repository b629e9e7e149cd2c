"""Patterns from a machine that shares nothing with the simulator: the first finding is what was planted, or silence."""

from __future__ import annotations

from enum import Enum

import pytest

from kprof.analysis.findings import explain_trace
from kprof.analysis.findings.finding import Kind
from patterns.cases import PATTERNS, Pattern

pytestmark = pytest.mark.slow
OF_TWO_CAUSES = ("two causes", "a straggler beside launch skew")


@pytest.mark.parametrize("pattern", PATTERNS, ids=lambda pattern: pattern.name.replace(" ", "-"))
def test_the_first_conclusion_is_what_was_planted(pattern: Pattern) -> None:
    run = pattern.run(True)
    explanation = explain_trace(run.trace())
    if pattern.expected is None:
        assert explanation.findings == ()
        assert pattern.limit in (None, *[limit.kind.value for limit in explanation.limits[:1]])
        return
    first, *others = explanation.findings
    assert bool(others) == (pattern.name in OF_TWO_CAUSES), others
    said = {name: getattr(first, name) for name in pattern.expected}
    said = {name: v.value if isinstance(v, Enum) else v for name, v in said.items()}
    said = {name: v.name if isinstance(v, Kind) else v for name, v in said.items()}
    assert said == pattern.expected
    if pattern.is_gain_known:
        total = sum(run.lengths)
        gain = total - sum(pattern.run(False).lengths)
        assert first.gain_ns == pytest.approx(gain, abs=max(0.03 * total, 0.1 * gain))
