"""The benchmark of explanations goes on where it stopped."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks import explanation_accuracy
from benchmarks.explanation_accuracy import BARS, Verdict, summary_of

ROOT = Path(__file__).parents[2]


@pytest.fixture
def judged(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The cases that are judged, in order; verdicts are made up."""
    cases: list[tuple[int, int]] = []

    def judge(number: int, seed: int) -> Verdict:
        cases.append((number, seed))
        return Verdict(number, "ring", ("slow, constant",), True, number != 1, (True,))

    monkeypatch.setattr(explanation_accuracy, "judge", judge)
    return cases


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", ["explanation_accuracy", *arguments])
    explanation_accuracy.main()


def test_a_log_is_gone_on_with(
    judged: list[tuple[int, int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, result = tmp_path / "cases.jsonl", tmp_path / "result.json"
    run(monkeypatch, "--cases", "2", "--seed", "7", "--log", str(log))
    run(monkeypatch, "--cases", "4", "--log", str(log), "--json", str(result))
    assert judged == [(0, 7), (1, 7), (2, 7), (3, 7)]
    document = json.loads(result.read_text())
    assert (document["seed"], document["rates"]["planted"]) == (7, 4)
    assert document["rates"]["all"] == 0.75
    assert [failure["number"] for failure in document["failures"]] == [1]


def test_a_log_of_another_seed_is_refused(
    judged: list[tuple[int, int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "cases.jsonl"
    run(monkeypatch, "--cases", "1", "--seed", "7", "--log", str(log))
    with pytest.raises(SystemExit, match="is of seed 7"):
        run(monkeypatch, "--cases", "1", "--seed", "8", "--log", str(log))


def test_the_page_says_what_was_measured_and_the_bars_are_met() -> None:
    result = ROOT / "benchmarks" / "results" / "explanation_accuracy.json"
    document = json.loads(result.read_text())
    measured = document["rates"]
    assert measured["planted"] + measured["balanced"] >= 2000
    assert all(measured[name] >= least for name, (_, least) in BARS.items()), measured
    assert summary_of(document) in (ROOT / "docs" / "findings.md").read_text()
