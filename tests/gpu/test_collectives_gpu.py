"""The all-to-all and the all-reduce on every number of GPUs that this machine has: values against float64, a capture, peers
that never come, ranks that differ, devices that are not current, and groups that start again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from gpu_processes import ROOT, record, run

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("num_gpus", [1, 2, 4, 8])
@pytest.mark.parametrize("cases", ["run_cases.py", "run_all_reduce_cases.py"])
def test_values_are_right(cases: str, num_gpus: int, require_gpus: Callable[[int], None]) -> None:
    require_gpus(num_gpus)
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(num_gpus)]
    assert "wrong values by rank" in run(*launcher, str(ROOT / "tests/gpu" / cases))


@pytest.mark.parametrize("num_gpus", [2, 4, 8])
def test_capture_of_gpus_is_on_one_clock(
    num_gpus: int, tmp_path: Path, require_gpus: Callable[[int], None]
) -> None:
    require_gpus(num_gpus)
    workload = ["python", "-m", "instrumented_kernels.all_to_all", "--target", "cuda"]
    options = ["--nproc", str(num_gpus), "--", *workload, "--shape", "64,6,2048,32"]
    trace = record(tmp_path / "run.kprof", *options)
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


@pytest.mark.parametrize("num_gpus", [2, 4])
def test_every_call_ends_right_or_raises(
    num_gpus: int, require_gpus: Callable[[int], None]
) -> None:
    require_gpus(num_gpus)
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(num_gpus)]
    said = run(*launcher, "tests/gpu/run_peer_cases.py")
    assert said.count("all cases of peers are right") == num_gpus


def test_a_plain_harness_starts_groups_again_and_again(require_gpus: Callable[[int], None]) -> None:
    require_gpus(2)
    said = run("tests/kernels/restarts.py", "cuda", "2")
    assert said.count("0 wrong values in 10 groups") == 2
