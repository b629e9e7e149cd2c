"""The kernels for one GPU as operators of torch, and their command lines: fake implementations, torch.compile's view of them,
what is refused, and that no option is ignored."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest
import torch
from single_gpu import record
from typer.testing import CliRunner

from instrumented_kernels import moe_align_sort, ops, rms_norm_fp8, skinny_gemm, swiglu_fp8
from instrumented_kernels.skinny_gemm import Plan, Roles
from kprof.recording.rank.recorder import Recorder
from kprof_cli.main import app

X = torch.randn(3, 16, generator=torch.Generator().manual_seed(1)).half()
IDS = torch.tensor([[0, 3], [1, 3], [7, 0]], dtype=torch.int32)
CALLS = {
    "moe_align_sort": (IDS, 8, 4),
    "rms_norm_fp8": (X, X, X[0].contiguous(), 2.0, 1e-6),
    "skinny_gemm": (X.to(torch.float8_e4m3fn), X.to(torch.float8_e4m3fn), 2.0),
    "swiglu_fp8": (X, 2.0),
}
PLANS = {
    "rms_norm_fp8": rms_norm_fp8.Plan,
    "skinny_gemm": skinny_gemm.Plan,
    "swiglu_fp8": swiglu_fp8.Plan,
}


@pytest.mark.parametrize("name", CALLS)
def test_torch_finds_nothing_wrong(name: str) -> None:
    """Schema, aliasing, and that the fake outputs have the shapes and types of the real ones."""
    # torch's look at schemas multiplies the inputs on the CPU, which it cannot do with fp8.
    schema = () if name == "skinny_gemm" else ("test_schema",)
    torch.library.opcheck(getattr(ops, name), CALLS[name], test_utils=(*schema, "test_faketensor"))


def test_they_give_what_torch_gives() -> None:
    for got, wanted in zip(
        ops.moe_align_sort(IDS, 8, 4), moe_align_sort.reference(IDS, 8, 4), strict=True
    ):
        assert torch.equal(got, wanted)
    y, total = ops.rms_norm_fp8(*CALLS["rms_norm_fp8"])
    assert torch.equal(total, X + X)
    wanted_y, _ = rms_norm_fp8.reference(X, X, X[0], 2.0, y.dtype)
    assert torch.allclose(y.float(), wanted_y.float(), rtol=0.13)
    activated = ops.swiglu_fp8(X, 2.0)
    wanted_y = swiglu_fp8.reference(X, 2.0, activated.dtype)
    assert torch.allclose(activated.float(), wanted_y.float(), rtol=0.13, atol=0.01)


@pytest.mark.parametrize("name", ["rms_norm_fp8", "skinny_gemm", "swiglu_fp8"])
def test_a_backward_pass_says_that_there_is_no_gradient(name: str) -> None:
    """Operators work with parameters as inputs; plans, whose outputs torch cannot follow, refuse them."""
    first, *others = CALLS[name]
    first = first.clone().requires_grad_()
    out = getattr(ops, name)(first, *others)
    out = out if isinstance(out, torch.Tensor) else out[0]
    with pytest.raises(NotImplementedError, match=f"kprof::{name} has no gradient; call it under"):
        out.float().sum().backward()
    plan = PLANS[name]("cpu")
    with pytest.raises(ValueError, match=r"requires a gradient, and this kernel computes none"):
        plan(first, *others[: 3 if name == "rms_norm_fp8" else None])
    with torch.no_grad():
        plan(first, *others[: 3 if name == "rms_norm_fp8" else None])


def test_kernels_with_different_regions_of_one_name_are_recorded_together(tmp_path: Path) -> None:
    """`reduce` is a barrier of rms_norm_fp8, and sums of skinny_gemm."""
    norm, gemm = rms_norm_fp8.Plan("cpu"), skinny_gemm.Plan("cpu")
    tokens, weights, _ = CALLS["skinny_gemm"]
    capture = tmp_path / "run.kprof"

    def calls(recorder: Recorder) -> None:
        for _ in range(2):
            norm(X, X, X[0], 2.0, recorder=recorder)
            gemm(tokens, weights, variant="split_k", recorder=recorder)

    trace = record(capture, calls)
    found = trace.frame(
        "SELECT DISTINCT kernel, region, category FROM events WHERE region LIKE 'reduce%' ORDER BY 2"
    )
    assert found.to_numpy().tolist() == [
        ["rms_norm_fp8/tuned", "reduce", "sync"],
        ["skinny_gemm/split_k", "reduce (compute)", "compute"],
    ]
    for command in ("report", "stats"):
        result = CliRunner().invoke(app, [command, str(capture)])
        assert result.exit_code == 0, result.output
    assert "reduce (compute)" in result.output


def test_a_compiled_function_has_no_break() -> None:
    def layer(x: torch.Tensor) -> torch.Tensor:
        y, total = ops.rms_norm_fp8(x * 2, x, X[0], 2.0)
        return ops.swiglu_fp8(total, 1.0).float() + y.float()[:, :8]

    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(X), layer(X))


@pytest.mark.parametrize(
    ("name", "arguments", "sentence"),
    [
        ("moe_align_sort", (IDS, 16, 0), "the block size is 0; give 1 or more"),
        (
            "rms_norm_fp8",
            (X, X[:2], X[0], 2.0),
            r"residual must have shape \[3, 16\], got \[2, 16\]",
        ),
        ("rms_norm_fp8", (X, X, X[0], 2.0, -1.0), "epsilon is -1.0; give 0 or more"),
        ("rms_norm_fp8", (X, X, X[0], 2.0, 1e300), "epsilon is 1e[+]300; give a number that fp32"),
        ("rms_norm_fp8", (None, X, X[0], 2.0), "x must be a tensor, got NoneType"),
        ("rms_norm_fp8", (X, None, X[0], 2.0), "residual must be a tensor, got NoneType"),
        ("moe_align_sort", (None, 16, 4), "topk_ids must be a tensor, got NoneType"),
        ("skinny_gemm", (X, X), "tokens must be torch.float8_e4m3fn, got torch.float16"),
        ("skinny_gemm", (None, X), "tokens must be a tensor, got NoneType"),
        ("swiglu_fp8", (None, 2.0), "x must be a tensor, got NoneType"),
        ("swiglu_fp8", (X, 0.0), "the fp8 scale is 0.0; give a number"),
    ],
)
def test_a_compiled_function_says_what_an_uncompiled_one_says(
    name: str, arguments: tuple[object, ...], sentence: str
) -> None:
    operator = getattr(ops, name)
    with pytest.raises((TypeError, ValueError), match=sentence):
        operator(*arguments)
    torch._dynamo.reset()
    with pytest.raises(torch._dynamo.exc.TorchRuntimeError, match=sentence):
        torch.compile(lambda: operator(*arguments), backend="aot_eager")()
    moved = [each.to("meta") if isinstance(each, torch.Tensor) else each for each in arguments]
    with pytest.raises((TypeError, ValueError), match=sentence):
        operator(*moved)


def test_numbers_that_torch_compiles_for_any_value_are_checked() -> None:
    compiled = torch.compile(ops.moe_align_sort, backend="aot_eager", dynamic=True)
    for block_size in (4, 5):
        assert torch.equal(
            compiled(IDS, 8, block_size)[0], ops.moe_align_sort(IDS, 8, block_size)[0]
        )
    with pytest.raises(
        torch._dynamo.exc.TorchRuntimeError, match=r"the block size is -?[0-9a-z]+; give 1 or more"
    ):
        compiled(IDS, 8, -2)


def test_a_compiled_function_may_compute_the_experts_and_the_block_size() -> None:
    def sort(ids: torch.Tensor, experts: torch.Tensor, size: torch.Tensor) -> list[torch.Tensor]:
        return list(ops.moe_align_sort(ids, experts.item(), size.item()))

    torch._dynamo.reset()
    compiled = torch.compile(sort, backend="aot_eager", fullgraph=True)
    for experts, size in [(8, 4), (16, 3)]:
        got = compiled(IDS, torch.tensor(experts), torch.tensor(size))
        for each, wanted in zip(got, ops.moe_align_sort(IDS, experts, size), strict=True):
            assert torch.equal(each, wanted)
    with pytest.raises(
        (ValueError, torch._dynamo.exc.TorchRuntimeError), match="experts: give 1 to 1024"
    ):
        compiled(IDS, torch.tensor(0), torch.tensor(4))


GEMM = "skinny_gemm --rows 64 --depth 512 --repeats 1 --target cpu"


def run(line: str) -> Any:
    name, *arguments = line.split()
    module = importlib.import_module(f"instrumented_kernels.{name}.__main__")
    return CliRunner().invoke(module.app, arguments)


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("moe_align_sort --experts 0", "moe_align_sort: 0 experts: give 1 to 1024"),
        ("moe_align_sort --experts -3", "moe_align_sort: -3 experts: give 1 to 1024"),
        ("rms_norm_fp8 --rows -1", "rms_norm_fp8: -1 rows of 16384: give 0 or more rows"),
        ("swiglu_fp8 --columns 0", "swiglu_fp8: 64 rows of 0: give 0 or more rows of 1 or more"),
        ("skinny_gemm --depth 0", "skinny_gemm: 8 x 2304 x 0: give 1 or more of each"),
        (f"{GEMM} --variant specialised --slots 99", "skinny_gemm: a queue of 99 slots"),
        (f"{GEMM} --consumers 4", "skinny_gemm: direct has no roles; they are for specialised"),
        (f"{GEMM} --consumers 4 --tokens 40", "skinny_gemm: 40 tokens: a skinny GEMM has up to"),
    ],
)
def test_bad_options_end_in_one_line(line: str, sentence: str) -> None:
    result = run(f"{line} --target cpu")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith(sentence)
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("options", "roles"),
    [
        ("", None),
        ("--consumers 4", Roles(2, 4, 2)),
        ("--slots 3", Roles(2, 1, 3)),
        ("--token-producers 2", Roles(2, 1, 2, 2)),
        ("--producers 3 --slots 4", Roles(3, 1, 4)),
    ],
)
def test_options_of_roles_work_alone(
    options: str, roles: Roles | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    call = Plan.__call__

    def noted(self: Plan, *arguments: Any, **how: Any) -> Any:
        found.append(how["roles"])
        return call(self, *arguments, **how)

    monkeypatch.setattr(Plan, "__call__", noted)
    assert run(f"{GEMM} --variant specialised {options}").exit_code == 0
    assert set(found) == {roles}
