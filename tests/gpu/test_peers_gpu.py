"""Peers that never come, ranks that differ, devices that are not current, groups that start again: on GPUs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.gpu

ROOT = Path(__file__).parents[2]


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command], cwd=ROOT, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("num_gpus", [2, 4])
def test_every_call_ends_right_or_raises(
    num_gpus: int, require_gpus: Callable[[int], None]
) -> None:
    require_gpus(num_gpus)
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(num_gpus)]
    result = run(*launcher, "tests/gpu/run_peer_cases.py")
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-5000:]
    assert result.stdout.count("all cases of peers are right") == num_gpus


def test_a_plain_harness_starts_groups_again_and_again(require_gpus: Callable[[int], None]) -> None:
    require_gpus(2)
    result = run("tests/kernels/restarts.py", "cuda", "2")
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-5000:]
    assert result.stdout.count("0 wrong values in 10 groups") == 2
