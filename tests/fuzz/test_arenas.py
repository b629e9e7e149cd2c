"""A short run of the fuzzer for arenas, the same in every run.

`python tests/fuzz/arenas.py` runs longer.
"""

from __future__ import annotations

import pytest
from arenas import NUM_VARIANTS, SHAPES, case, check, sound
from harness import run_cases

from kprof.recording.decoding import decode


@pytest.mark.parametrize("shape", SHAPES)
def test_sound_arenas_lose_nothing(shape: str) -> None:
    for variant in range(NUM_VARIANTS):
        assert sound(shape, variant).counts.recorded > 0


def test_damage_is_counted_and_the_rest_is_as_before() -> None:
    result = run_cases(case, "arenas.py", 1500, seed=2026, has_files=False)
    assert result.failures == []
    assert result.words.total() == 1500
    assert sum(n for name, n in result.words.items() if name.endswith("counted")) > 500


def test_a_broken_arena_can_be_had_again_by_its_seed() -> None:
    assert check("zones", 3, 77) == check("zones", 3, 77)


def test_the_fuzzer_finds_a_decoder_that_counts_no_torn_records(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(decode, "_count_torn", lambda *_: 0)
    result = run_cases(case, "arenas.py", 1500, seed=2026, has_files=False)
    assert "events are missing and nothing was counted" in "".join(result.failures)
