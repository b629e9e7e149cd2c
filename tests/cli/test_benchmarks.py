"""The benchmarks that need no GPU still run, on very little.

What they measure is no matter for a test.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

SMALL = {
    "decode_throughput": ["--records", "200000", "--repeats", "1"],
    "export_throughput": ["--events", "30000"],
    "analysis_scale": ["--events", "50000", "--ranks", "2"],
    "clock_accuracy": ["--cases", "4"],
    "launch_cost": ["--launches", "10", "--repeats", "2"],
    "explanation_accuracy": ["--cases", "3", "--seed", "1"],
    "soak": ["--seconds", "1"],
    "draining": [
        "--seconds",
        "1",
        "--plain-seconds",
        "1",
        "--blocks",
        "4",
        "--events-per-second",
        "9000",
    ],
    "planted_hangs": ["--hangs", "1", "--slow", "1"],
}


@pytest.mark.parametrize("name", SMALL)
def test_a_benchmark_runs(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    more = ["--dir", str(tmp_path)] if name == "analysis_scale" else []
    monkeypatch.setattr(sys, "argv", [name, *SMALL[name], *more])
    assert not importlib.import_module(f"benchmarks.{name}").main()
    assert capsys.readouterr().out.strip()


def test_results_are_kept_as_json() -> None:
    files = list((ROOT / "benchmarks" / "results").glob("*.json"))
    assert files
    for file in files:
        json.loads(file.read_text())
