"""compute-sanitizer on small calls of one rank: nothing out of bounds, no race in shared memory."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.gpu

ROOT = Path(__file__).parents[2]

SMALL = {
    "all_to_all": ["--shape", "8,3,264,6", "--grid", "8"],
    "all_reduce": ["--numel", "4099"],
}
VARIANTS = [
    *(("all_to_all", variant) for variant in ("rank_flags", "balanced", "pipelined")),
    *(("all_reduce", variant) for variant in ("oneshot_lock", "oneshot", "twoshot", "ring")),
]


@pytest.mark.parametrize("tool", ["memcheck", "racecheck"])
@pytest.mark.parametrize(("operation", "variant"), VARIANTS)
def test_nothing_is_found(
    operation: str, variant: str, tool: str, require_gpus: Callable[[int], None]
) -> None:
    require_gpus(1)
    sanitizer = shutil.which("compute-sanitizer") or shutil.which(
        "compute-sanitizer", path="/usr/local/cuda/bin"
    )
    if sanitizer is None:
        pytest.skip("compute-sanitizer is not installed")
    workload = ["-m", f"instrumented_kernels.{operation}", "--target", "cuda", "--variant", variant]
    result = subprocess.run(
        [
            *(sanitizer, "--tool", tool, "--error-exitcode", "7"),
            *(sys.executable, *workload, "--repeats", "1", *SMALL[operation]),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if "not supported" in result.stdout + result.stderr:
        pytest.skip("compute-sanitizer does not work on this machine")
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
    assert "0 wrong values" in result.stdout
