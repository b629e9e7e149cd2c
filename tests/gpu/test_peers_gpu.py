"""Peers that never come, ranks that differ, devices that are not current, groups that start again: on GPUs."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gpu_processes import run

pytestmark = pytest.mark.gpu


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
