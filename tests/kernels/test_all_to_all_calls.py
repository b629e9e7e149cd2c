"""The one call and its plans: made once, kept per group and shape, freed when the group is gone.

The torch variant, groups that come and go, ranks that change their shape.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from thread_ranks import ThreadGroup, run_threads
from typer.testing import CliRunner

from instrumented_kernels.all_to_all import (
    Plan,
    Problem,
    TorchPlan,
    all_to_all,
    close_plans,
    make_plan,
)
from instrumented_kernels.all_to_all.__main__ import app
from instrumented_kernels.all_to_all.routing import count_wrong, make_inputs, reference
from kprof.devices.groups import SoloGroup

ROOT = Path(__file__).parents[2]
SMALL = Problem(num_experts=8, top_k=3, hidden=40, max_tokens=256)
VARIANTS = ["torch", "rank_flags", "token_flags", "fused", "balanced", "pipelined"]


TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


def run(*command: str) -> str:
    done = subprocess.run(
        [sys.executable, *command], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    return done.stdout


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_process_alone_is_a_group_of_one(variant: str) -> None:
    inputs = make_inputs(SMALL, 5, 1)
    for _ in range(2):
        out = all_to_all(inputs.x, inputs.indices, inputs.weights, num_experts=8, variant=variant)
        assert count_wrong(out, reference(SMALL, inputs, 1)) == 0
    close_plans()


def test_plans_are_made_once_per_shape_and_variant(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    original = Plan.__init__

    def counting(self: Plan, *arguments: object, **named: object) -> None:
        made.append(named["variant"])
        original(self, *arguments, **named)

    monkeypatch.setattr(Plan, "__init__", counting)
    for num_tokens in (5, 3, 5):
        for variant in ("fused", "pipelined"):
            inputs = make_inputs(SMALL, num_tokens, 1)
            all_to_all(inputs.x, inputs.indices, inputs.weights, num_experts=8, variant=variant)
    assert made == ["fused", "pipelined"]
    close_plans()
    all_to_all(inputs.x, inputs.indices, inputs.weights, num_experts=8, variant="fused")
    assert made == ["fused", "pipelined", "fused"]
    close_plans()


def test_a_plain_harness_starts_groups_again_and_again() -> None:
    """On the same port: who keeps the group of the round before would keep its store there."""
    told = run("tests/kernels/restarts.py", "cpu", "2")
    assert told.count("0 wrong values in 10 groups, 0 plans of dead groups left") == 2


def test_a_rank_that_changes_its_shape_is_named() -> None:
    told = re.findall(r"<rank (\d): ([^>]*)>", run(*TORCHRUN, "tests/kernels/shape_changes.py"))
    assert sorted(rank for rank, _ in told) == ["0", "1"]
    for _, message in told:
        assert "all_to_all of Problem(num_experts=8, top_k=3, hidden=40" in message
        assert "all_to_all for the first time on cpu" in message
        assert "hidden=48" in message


def test_the_torch_variant_needs_a_torch_group() -> None:
    def work(group: ThreadGroup) -> None:
        TorchPlan(group, SMALL)

    with pytest.raises(ValueError, match="start the ranks with torchrun"):
        run_threads(2, work)


def test_the_torch_variant_refuses_what_the_others_refuse() -> None:
    plan = make_plan(SoloGroup(), SMALL, variant="torch", device="cpu")
    inputs = make_inputs(SMALL, 4, 1)
    with pytest.raises(ValueError, match="indices must lie in"):
        plan(inputs.x, inputs.indices + 8, inputs.weights)
    with pytest.raises(TypeError, match=r"x must be torch\.float16"):
        plan(inputs.x.float(), inputs.indices, inputs.weights)


OPTIONS = ["--target", "cpu", "--shape", "8,3,40,6", "--skew", "3", "--skew-rank"]


def test_the_command_runs_ranks_as_processes() -> None:
    workload = ["-m", "instrumented_kernels.all_to_all", "--variant", "torch"]
    told = run(*TORCHRUN, *workload, *OPTIONS, "1")
    assert "all_to_all torch on cpu: 2 ranks" in told
    assert "0 wrong values" in told


def test_the_command_runs_alone() -> None:
    result = CliRunner().invoke(app, ["--variant", "pipelined", *OPTIONS, "0"])
    assert result.exit_code == 0, result.output
    assert "all_to_all pipelined on cpu: 1 ranks" in result.stdout
    assert "0 wrong values" in result.stdout


def test_the_command_says_what_is_wrong() -> None:
    result = CliRunner().invoke(app, ["--target", "cpu", "--variant", "fastest"])
    assert result.exit_code == 1
    assert result.stderr.startswith(
        "all_to_all: variant 'fastest' is not known; choose one of torch, "
    )
