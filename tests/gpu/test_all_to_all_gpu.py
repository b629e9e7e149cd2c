"""The all-to-all on every number of GPUs that this machine has: values against float64, and a capture."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kprof.devices.targets import Target, count_devices, find_compiler
from kprof.trace import Trace

pytestmark = pytest.mark.gpu

ROOT = Path(__file__).parents[2]


def require_gpus(num_gpus: int) -> None:
    if find_compiler(Target.CUDA) is None or count_devices(Target.CUDA) < num_gpus:
        pytest.skip(
            f"needs {num_gpus} NVIDIA GPUs and nvcc; this machine has {count_devices(Target.CUDA)}"
        )


@pytest.mark.parametrize("num_gpus", [1, 2, 4, 8])
def test_values_match_float64(num_gpus: int) -> None:
    require_gpus(num_gpus)
    launcher = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        str(num_gpus),
    ]
    result = subprocess.run(
        [*launcher, str(ROOT / "tests/gpu/run_cases.py")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
    assert "wrong values by rank, of" in result.stdout


@pytest.mark.parametrize("num_gpus", [2, 4, 8])
def test_capture_of_gpus_is_on_one_clock(num_gpus: int, tmp_path: Path) -> None:
    require_gpus(num_gpus)
    run = tmp_path / "run.kprof"
    command = [
        sys.executable,
        "-m",
        "kprof_cli",
        "record",
        "--nproc",
        str(num_gpus),
        "-o",
        str(run),
        "--",
    ]
    workload = [
        "python",
        "-m",
        "instrumented_kernels.all_to_all",
        "--shape",
        "64,6,2048,32",
        "--target",
        "cuda",
    ]
    result = subprocess.run(
        [*command, *workload], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
    trace = Trace.open(run)
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


@pytest.mark.parametrize("tool", ["memcheck", "racecheck"])
@pytest.mark.parametrize("variant", ["rank_flags", "balanced", "pipelined"])
def test_compute_sanitizer_finds_nothing(variant: str, tool: str) -> None:
    require_gpus(1)
    sanitizer = shutil.which("compute-sanitizer")
    if sanitizer is None:
        pytest.skip("compute-sanitizer is not installed")
    workload = ["-m", "instrumented_kernels.all_to_all", "--target", "cuda", "--variant", variant]
    shape = ["--shape", "8,3,264,6", "--repeats", "1", "--grid", "8"]
    result = subprocess.run(
        [sanitizer, "--tool", tool, "--error-exitcode", "7", sys.executable, *workload, *shape],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if "not supported" in result.stdout + result.stderr:
        pytest.skip("compute-sanitizer does not work on this machine")
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
    assert "0 wrong values" in result.stdout
