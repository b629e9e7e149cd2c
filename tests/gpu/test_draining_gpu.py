"""An arena of a GPU that is drained while kernels run: every event is found, from loops and graphs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from gpu_processes import run

pytestmark = pytest.mark.gpu

SECONDS = 10


@pytest.mark.parametrize("options", [(), ("--graph",)])
def test_a_run_longer_than_its_arena_loses_nothing(
    tmp_path: Path, require_gpus: Callable[[int], None], options: tuple[str, ...]
) -> None:
    """160 MB of records through 64 MiB. How long calls take is for the benchmark to say."""
    require_gpus(1)
    output = tmp_path / "result.json"
    lengths = ["--seconds", str(SECONDS), "--plain-seconds", "2", "-o", str(output)]
    run("-m", "benchmarks.draining", "--device", "cuda", *lengths, *options)
    (drained,) = json.loads(output.read_text())["drained"]
    assert drained["recorded"] * 16 > 64 << 20
    assert drained["recorded"] == drained["emitted"]
    assert (drained["dropped"], drained["unsplit_launches"]) == (0, 0)
