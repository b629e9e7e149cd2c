"""The all-to-all and the all-reduce on every number of GPUs that this machine has: values against float64, and a capture."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kprof.trace import Trace

pytestmark = pytest.mark.gpu

ROOT = Path(__file__).parents[2]


def run(*command: str) -> subprocess.CompletedProcess[str]:
    paths = [str(ROOT / "tests/support"), *filter(None, [os.environ.get("PYTHONPATH")])]
    result = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
    return result


@pytest.mark.parametrize("num_gpus", [1, 2, 4, 8])
@pytest.mark.parametrize("cases", ["run_cases.py", "run_all_reduce_cases.py"])
def test_values_are_right(cases: str, num_gpus: int, require_gpus: Callable[[int], None]) -> None:
    require_gpus(num_gpus)
    launcher = ["torch.distributed.run", "--standalone", "--nproc-per-node", str(num_gpus)]
    assert "wrong values by rank" in run(*launcher, str(ROOT / "tests/gpu" / cases)).stdout


@pytest.mark.parametrize("num_gpus", [2, 4, 8])
def test_capture_of_gpus_is_on_one_clock(
    num_gpus: int, tmp_path: Path, require_gpus: Callable[[int], None]
) -> None:
    require_gpus(num_gpus)
    capture = tmp_path / "run.kprof"
    record = ["kprof_cli", "record", "--nproc", str(num_gpus), "-o", str(capture), "--"]
    workload = ["python", "-m", "instrumented_kernels.all_to_all", "--target", "cuda"]
    run(*record, *workload, "--shape", "64,6,2048,32")
    trace = Trace.open(capture)
    assert trace.alignment is not None
    bound = max(trace.alignment.bound_between_ns(0, rank) for rank in range(num_gpus))
    assert bound < 5000
    flows = trace.frame(
        "SELECT count(*) AS n, count(*) FILTER (wait_end_ns < send_start_ns - ?) AS early "
        "FROM flows",
        [2 * bound],
    )
    assert flows["n"][0] > 1000
    assert flows["early"][0] == 0
