"""The benchmarks that need no GPU still run, on very little.

What they measure is no matter for a test.
"""

from __future__ import annotations

import importlib
import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from kprof.analysis import Finding
from kprof.analysis.findings.kinds import named

SMALL = {
    "finishing": ["--events", "200000", "--repeats", "1"],
    "host_bound": ["--seconds", "0.1", "--rounds", "1"],
    "analysis_scale": ["--events", "50000", "--ranks", "2", "--only", "report"],
    "launch_cost": ["--launches", "10", "--repeats", "2"],
    "explanation_accuracy": ["--cases", "3", "--seed", "1"],
    "draining": ["--seconds", "1", "--plain-seconds", "1", "--blocks", "4", "--events-per-second", "9000"],
    "planted_hangs": ["--hangs", "1", "--slow", "1"],
}  # fmt: skip


@pytest.mark.parametrize("name", SMALL)
def test_a_benchmark_runs(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    more = ["--dir", str(tmp_path)] if name == "analysis_scale" else []
    monkeypatch.setattr(sys, "argv", [name, *SMALL[name], *more])
    assert not importlib.import_module(f"benchmarks.{name}").main()
    assert capsys.readouterr().out.strip()


@pytest.mark.parametrize("kernel", ["ring_all_gather", "triton"])
def test_recordings_of_a_planted_cause_are_judged(
    kernel: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is found depends on the scheduler, but the kernel ran, its results are right, and there is a verdict."""
    if kernel == "triton":
        pytest.importorskip("triton")
    pytest.importorskip("torch")
    more = ["--kernels", kernel, "--causes", "slow rank", "--recordings", "1"]
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setattr(sys, "argv", ["same_finding", str(tmp_path), *more])
    importlib.import_module("benchmarks.same_finding").main()
    result = json.loads((tmp_path / "same_finding.json").read_text())
    assert result["recordings"] == 1
    assert result["rows"][0]["verdict"] in ("right", "too noisy", "nothing", "different")
    assert result["rows"][0]["said"]


def test_a_finding_about_another_place_is_not_the_planted_cause() -> None:
    same = importlib.import_module("benchmarks.same_finding")
    cause = same.Cause(same.SLOW, "reduce", 4000, (1, 2))
    found = Finding(kind=named("slow"), ranks=(1,), blocks=(1,), region="reduce")
    assert cause.is_named_by(found)
    others = (
        {"ranks": (0,)},
        {"blocks": (0, 1)},
        {"blocks": ()},
        {"region": "put"},
        {"kind": named("late_start")},
    )
    assert not [other for other in others if cause.is_named_by(replace(found, **other))]
