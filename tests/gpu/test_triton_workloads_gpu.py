"""Triton workloads under `kprof record`: beside C++ on two GPUs, by warps with roles, and made by torch.compile."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path

import pytest

from gpu_processes import ROOT, record

# The all-reduce in C++ records cycles, which the trace puts on the clock of the others. Its steps
# are 32 ns.
CYCLES_ON_THE_CLOCK_NS = 100
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        importlib.util.find_spec("triton") is None,
        reason="Triton is missing: pip install torch triton",
    ),
]


def test_kernels_in_triton_and_in_cpp_share_a_trace_and_a_clock(
    tmp_path: Path, require_gpus: Callable[[int], None]
) -> None:
    """The workload compares with float64. Every send is joined, none of them too late, and launches do not
    overlap."""
    require_gpus(2)
    calls = 20
    workload = ["python", "-m", "instrumented_kernels.triton_collectives", "--target", "cuda"]
    kinds = ["--kinds", "oneshot,cpp-oneshot,twoshot,dispatch", "--numbers", "100000"]
    trace = record(
        tmp_path / "run.kprof", "--nproc", "2", "--", *workload, *kinds, "--calls", str(calls)
    )
    counts = trace.frame("SELECT category, count(*) AS n FROM events GROUP BY 1")
    by_category = dict(zip(counts["category"], counts["n"], strict=True))
    flows = trace.frame("SELECT count(*) AS n, count(DISTINCT send_region) AS kinds FROM flows")
    assert flows["n"][0] == by_category["send"] == by_category["wait"]
    assert flows["kinds"][0] == 5
    assert trace.alignment is not None
    bound_ns = trace.alignment.bound_between_ns(0, 1)
    early = trace.frame(
        "SELECT count(*) AS n FROM flows WHERE wait_end_ns < send_start_ns - ?", [bound_ns]
    )
    assert early["n"][0] == 0
    launches = trace.frame(
        """SELECT rank, kernel, launch, min(start_ns) AS begin, max(end_ns) AS done
           FROM events GROUP BY ALL ORDER BY rank, begin"""
    )
    kernels = ["oneshot", "all_reduce/oneshot", "twoshot", "dispatch"]
    for _, of_rank in launches.groupby("rank"):
        assert of_rank["kernel"].tolist() == [name for name in kernels for _ in range(calls)]
        gaps_ns = of_rank["begin"].to_numpy()[1:] - of_rank["done"].to_numpy()[:-1]
        assert gaps_ns.min() > -CYCLES_ON_THE_CLOCK_NS
    assert all(rank.counts.dropped == 0 for rank in trace.ranks)


@pytest.mark.parametrize("stages", [2, 4])
def test_both_roles_of_a_matmul_record_every_tile_and_every_step(
    tmp_path: Path, require_gpus: Callable[[int], None], stages: int
) -> None:
    """The workload compares with float64. The loads run in one warp behind the eight that multiply; which one is
    up to Triton."""
    require_gpus(1)
    size, calls = 2048, 2
    workload = ["python", "-m", "instrumented_kernels.triton_matmul", "--waits"]
    sizes = ["--size", str(size), "--stages", str(stages), "--calls", str(calls)]
    trace = record(tmp_path / "run.kprof", "--", *workload, *sizes)
    rows = trace.frame("SELECT region, warp, count(*) AS n FROM events GROUP BY ALL ORDER BY 1")
    loader = rows["warp"].max()
    assert loader >= 8
    num_tiles = (size // 128) * (size // 256) * calls
    num_steps = num_tiles * (size // 64)
    assert list(rows.itertuples(index=False, name=None)) == [
        ("load/tile", loader, num_tiles),
        ("load/wait", loader, num_steps),
        ("math/store", -1, num_tiles),
        ("math/tile", -1, num_tiles),
        ("math/wait", -1, num_steps),
    ]
    early = trace.frame(
        """SELECT count(*) AS n FROM events math JOIN events load USING (launch, block, payload)
           WHERE math.region = 'math/wait' AND load.region = 'load/wait' AND math.end_ns < load.end_ns"""
    )
    assert early["n"][0] == 0
    assert trace.ranks[0].counts.dropped == 0


def test_kernels_of_torch_compile_have_a_span_per_program(
    tmp_path: Path, require_gpus: Callable[[int], None]
) -> None:
    """The workload compares with float64. The first launch of a kernel that Inductor tunes is not recorded."""
    require_gpus(1)
    workload = ROOT / "tests" / "triton" / "compiled_by_torch.py"
    trace = record(tmp_path / "run.kprof", "--inductor", "--", "python", str(workload))
    launches = trace.frame(
        """SELECT kernel, region, launch, count(*) AS n, count(DISTINCT block) AS blocks,
                  max(block) + 1 AS programs
           FROM events GROUP BY ALL ORDER BY launch"""
    )
    assert (launches["n"] == launches["blocks"]).all()
    assert (launches["n"] == launches["programs"]).all()
    assert (launches["kernel"] == launches["region"]).all()
    by_kernel = launches.groupby("kernel").size()
    assert {"relu", "softmax"} == {
        word for word in ("relu", "softmax") for name in by_kernel.index if word in name
    }
    assert by_kernel.between(2, 3).all()
    assert trace.ranks[0].counts.dropped == 0
