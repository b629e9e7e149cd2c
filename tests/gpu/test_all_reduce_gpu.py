"""The all-reduce on every number of GPUs that this machine has: exact values, graphs, free calls, a capture."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kprof.trace import Trace

pytestmark = pytest.mark.gpu

ROOT = Path(__file__).parents[2]


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("num_gpus", [1, 2, 4, 8])
def test_values_are_exact(num_gpus: int, require_gpus: Callable[[int], None]) -> None:
    require_gpus(num_gpus)
    result = run(
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        str(num_gpus),
        str(ROOT / "tests/gpu/run_all_reduce_cases.py"),
    )
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
    assert "wrong values by rank and case" in result.stdout


@pytest.mark.parametrize("num_gpus", [2, 4, 8])
def test_capture_of_gpus_joins_puts_and_waits(
    num_gpus: int, tmp_path: Path, require_gpus: Callable[[int], None]
) -> None:
    require_gpus(num_gpus)
    capture = tmp_path / "run.kprof"
    record = ["kprof_cli", "record", "--nproc", str(num_gpus), "-o", str(capture), "--"]
    workload = ["python", "-m", "instrumented_kernels.all_reduce", "--variant", "twoshot"]
    result = run(*record, *workload, "--numel", "65536", "--target", "cuda")
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
    trace = Trace.open(capture)
    assert trace.alignment is not None
    bound = max(trace.alignment.bound_between_ns(0, rank) for rank in range(num_gpus))
    flows = trace.frame(
        "SELECT count(*) AS n, count(*) FILTER (wait_end_ns < send_start_ns - ?) AS early "
        "FROM flows",
        [2 * bound],
    )
    assert flows["n"][0] > num_gpus * (num_gpus - 1)
    assert flows["early"][0] == 0
