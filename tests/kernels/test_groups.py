"""The functions over torch process groups: groups that come and go, ranks that change their shape."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command], cwd=ROOT, capture_output=True, text=True, check=False
    )


def test_a_plain_harness_starts_groups_again_and_again() -> None:
    """On the same port: who keeps the group of the round before would keep its store there."""
    result = run("tests/kernels/restarts.py", "cpu", "2")
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-3000:]
    assert result.stdout.count("0 wrong values in 10 groups") == 2


def test_a_rank_that_changes_its_shape_is_named() -> None:
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    result = run(*launcher, "tests/kernels/shape_changes.py")
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-3000:]
    told = re.findall(r"<rank (\d): ([^>]*)>", result.stdout)
    assert sorted(rank for rank, _ in told) == ["0", "1"]
    for _, message in told:
        assert "all_to_all of Problem(num_experts=8, top_k=3, hidden=40" in message
        assert "all_to_all for the first time on cpu" in message
        assert "hidden=48" in message
