"""What-if against what happens: a delay is planted in a real (CPU) exchange, predicted away, and taken out."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_the_predicted_length_is_the_one_measured_without_the_delay(tmp_path: Path) -> None:
    result = tmp_path / "result.json"
    command = [sys.executable, "-m", "benchmarks.what_if", "--pairs", "3", "--calls", "5"]
    subprocess.run([*command, "--json", str(result)], cwd=ROOT, check=True, timeout=240)
    document = json.loads(result.read_text())
    medians = document["medians"]
    assert medians["with_delay_ms"] > 1.5 * medians["measured_ms"]
    assert abs(document["relative_error"]) < 0.1
