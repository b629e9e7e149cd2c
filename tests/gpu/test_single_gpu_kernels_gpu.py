"""The kernels for one GPU on a GPU: the values of the CPU tests, torch.compile, graphs, what is recorded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from gpu_processes import record, run

pytestmark = pytest.mark.gpu

WORKLOADS = [
    *(f"moe_align_sort --variant {name}" for name in ("single_block", "dcp", "chained")),
    "moe_align_sort --tokens 262144 --hot 0.5",
    "moe_align_sort --tokens 262144 --hot 1.0",
    "moe_align_sort --tokens 600001 --hot 0.2",
    "moe_align_sort --tokens 1001 --experts 1000 --top-k 7 --block-size 1",
    *(f"rms_norm_fp8 --variant {name}" for name in ("pointwise", "vectors", "shared", "tuned")),
    "rms_norm_fp8 --rows 700",
    "rms_norm_fp8 --rows 700 --columns 1003 --bf16",
    "rms_norm_fp8 --rows 3 --columns 40000",
    *(f"swiglu_fp8 --variant {name}" for name in ("pointwise", "vectors", "packed", "tuned")),
    "swiglu_fp8 --rows 2000",
    "swiglu_fp8 --rows 5 --columns 1003 --bf16",
    *(
        f"skinny_gemm --variant {name} --tokens {tokens} --rows 1000 --depth {depth}"
        for name in ("tiled", "split_k", "specialised", "tuned", "direct", "ring", "groups")
        for tokens, depth in ((1, 16384), (16, 6656), (29, 1000))
    ),
]


@pytest.mark.parametrize("workload", WORKLOADS)
def test_values_are_right_called_and_from_a_graph(
    workload: str, require_gpus: Callable[[int], None]
) -> None:
    require_gpus(1)
    for how in ([], ["--graph"]):
        command = f"-m instrumented_kernels.{workload} --target cuda --repeats 5".split()
        assert "0 wrong values" in run(*command, *how)


def test_ids_that_name_no_expert_are_told_later(require_gpus: Callable[[int], None]) -> None:
    require_gpus(1)
    import torch

    from instrumented_kernels.moe_align_sort import Plan

    ids = torch.tensor([[0, 1], [2, 77]], dtype=torch.int32, device="cuda")
    plan = Plan("cuda")
    plan(ids, 4, 2)
    with pytest.raises(ValueError, match="element 3 of the flattened topk_ids is 77"):
        plan.wait()
    assert plan(ids[:1], 4, 2).num_padded.item() == 4


# torch.compile imports modules of torch that torch itself calls out of date.
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
# torch captures an empty graph of its own before it captures the first real one.
@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty")
def test_a_compiled_layer_gives_what_the_operators_give(
    require_gpus: Callable[[int], None],
) -> None:
    require_gpus(1)
    import torch

    from instrumented_kernels import ops

    x, weight = torch.randn(8, 4096, device="cuda").half(), torch.ones(4096, device="cuda").half()
    matrix = torch.randn(2048, 4096, device="cuda").to(torch.float8_e4m3fn)

    def layer(x: torch.Tensor) -> torch.Tensor:
        y, _ = ops.rms_norm_fp8(x, x * 2, weight, 4.0)
        return ops.swiglu_fp8(ops.skinny_gemm(y, matrix, 0.01), 2.0).float()

    compiled = torch.compile(layer, fullgraph=True, mode="reduce-overhead")
    for _ in range(3):
        assert torch.equal(compiled(x), layer(x))


def test_warps_of_a_block_are_joined(tmp_path: Path, require_gpus: Callable[[int], None]) -> None:
    require_gpus(1)
    workload = "instrumented_kernels.skinny_gemm --variant specialised --rows 320 --target cuda"
    command = ["python", "-m", *workload.split(), "--graph"]
    flows = record(tmp_path / "run.kprof", "--", *command).frame(
        "SELECT wait_region, count(*) AS n, bool_and(send_block = wait_block) AS same FROM flows GROUP BY ALL"
    )
    joined = {row.wait_region: row.n for row in flows.itertuples()}
    # 3 calls, 20 blocks, 64 chunks; the queue has 2 slots, and both producers wait for a place.
    assert joined == {
        "consumer/wait-weights": 3 * 20 * 64,
        "consumer/wait-tokens": 3 * 20 * 64,
        "weight-producer/wait-slot": 3 * 20 * 62,
        "token-producer/wait-slot": 3 * 20 * 62,
    }
    assert flows["same"].all()
