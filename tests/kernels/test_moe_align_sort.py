"""moe_align_sort: equal to torch's sort, element by element; on the CPU target, and as gfx942 machine code."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
import torch
from single_gpu import assert_refused, at_offset, cpu_options, poisoned, record
from widths import IS_CPU_TARGET, WARP_WIDTHS

from changed_kernels import breaking
from instrumented_kernels.moe_align_sort import Plan, Sorted, reference
from instrumented_kernels.moe_align_sort import plan as plans
from instrumented_kernels.moe_align_sort.plan import VARIANTS, Problem

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "single_gpu.json"
# Tokens, K, experts, block size.
SHAPES = [
    (0, 2, 8, 4),
    (1, 1, 1, 1),
    (5, 8, 8, 3),
    (77, 3, 500, 16),
    (300, 8, 256, 64),
    (130, 7, 257, 1),
    (400, 2, 3, 1000),
    (9, 2, 1024, 7),
]


def distinct_ids(n: int, k: int, num_experts: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    keys = torch.rand(n, num_experts, generator=generator)
    return keys.argsort(dim=1)[:, :k].int().contiguous()


def skewed_ids(n: int, k: int, num_experts: int, hot: float) -> torch.Tensor:
    """Every choice is expert 1 with this probability."""
    generator = torch.Generator().manual_seed(7)
    ids = torch.randint(0, num_experts, (n, k), generator=generator, dtype=torch.int32)
    return torch.where(torch.rand(n, k, generator=generator) < hot, 1, ids).int()


def call(plan: Plan, ids: torch.Tensor, num_experts: int, block_size: int, **how: object) -> Sorted:
    """A call into poisoned memory."""
    capacity = Problem(ids.numel(), num_experts, block_size, "", None).capacity
    with ExitStack() as stack:
        out = Sorted(
            *(
                stack.enter_context(poisoned((length,), torch.int32, offset=1))
                for length in (capacity, capacity // block_size, 1)
            )
        )
        plan(ids, num_experts, block_size, out=out, **how)  # type: ignore[arg-type]
        return Sorted(*(each.clone() for each in out))


def assert_equal(out: Sorted, expected: Sorted) -> None:
    for name, got, wanted in zip(Sorted._fields, out, expected, strict=True):
        assert torch.equal(got, wanted), name


@pytest.fixture(scope="module", params=WARP_WIDTHS)
def plan(request: pytest.FixtureRequest) -> Plan:
    return Plan(options=cpu_options(request.param))


def test_the_default_grid_of_few_ids_is_the_fastest_measured() -> None:
    gpu = SimpleNamespace(
        is_on_cpu=False,
        _library=SimpleNamespace(warp_width=32),
        _builds=SimpleNamespace(max_resident_blocks=lambda *_: 264),
    )

    def num_blocks(num_ids: int, variant: str = "chained") -> int:
        return Plan._num_blocks(cast(Plan, gpu), Problem(num_ids, 256, 64, variant, None), 0, 16)

    rows = json.loads(RESULTS.read_text())["rows"]
    of_shape = [row for row in rows if (row["kernel"], row["shape"]) == ("moe_align_sort", "8192")]
    times = {name: us for row in of_shape for name, us in row["sweep"].items()}
    assert min(times, key=lambda name: times[name]) == f"{num_blocks(8192 * 8)} blocks"
    assert (num_blocks(1 << 17), num_blocks((1 << 17) + 1)) == (64, 33)
    assert num_blocks(8192 * 8, "dcp") == 16
    assert (num_blocks(1), num_blocks(1 << 24)) == (1, 264)


@pytest.mark.amd
@pytest.mark.parametrize("warp_width", WARP_WIDTHS)
@pytest.mark.parametrize("size", ["few", "large"])
def test_tiles_of_larger_batches(
    warp_width: int, size: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With tiles that are whole, partial and empty. All other tests have few ids."""
    monkeypatch.setattr(plans, "_FEW_IDS", 0)
    monkeypatch.setattr(plans, "_LARGE_IDS", 0 if size == "large" else 1 << 22)
    plan = Plan(options=cpu_options(warp_width))
    for n, k, num_experts, num_blocks in [(700, 8, 256, 2), (77, 8, 13, 3), (1, 1, 1, None)]:
        ids = distinct_ids(n, k, num_experts)
        out = call(plan, ids, num_experts, 64, variant="chained", num_blocks=num_blocks)
        assert_equal(out, reference(ids, num_experts, 64))
        assert plans._size_of(Problem(n * k, num_experts, 64, "chained", None)) == size


@pytest.mark.amd
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(("n", "k", "num_experts", "block_size"), SHAPES)
def test_equal_to_a_stable_sort(
    plan: Plan, n: int, k: int, num_experts: int, block_size: int, variant: str
) -> None:
    ids = distinct_ids(n, k, num_experts)
    out = call(plan, ids, num_experts, block_size, variant=variant)
    assert_equal(out, reference(ids, num_experts, block_size))


@pytest.mark.amd
@pytest.mark.parametrize("variant", ["dcp", "chained"])
@pytest.mark.parametrize("num_blocks", [1, 2, 7, 40])
def test_any_grid(plan: Plan, variant: str, num_blocks: int) -> None:
    if (variant, num_blocks) == ("dcp", 40) and not IS_CPU_TARGET:
        pytest.skip("its blocks wait for each other, and the emulated device holds 16")
    ids = distinct_ids(500, 4, 16)
    out = call(plan, ids, 16, 32, variant=variant, num_blocks=num_blocks)
    assert_equal(out, reference(ids, 16, 32))


@pytest.mark.amd
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("hot", [0.5, 1.0])
def test_one_hot_expert(plan: Plan, variant: str, hot: float) -> None:
    ids = skewed_ids(600, 8, 256, hot)
    assert_equal(call(plan, ids, 256, 128, variant=variant), reference(ids, 256, 128))


@pytest.mark.amd
@pytest.mark.parametrize("offset", [1, 2, 3])
def test_ids_at_any_address(plan: Plan, offset: int) -> None:
    ids = at_offset(distinct_ids(200, 3, 32), offset)
    assert_equal(call(plan, ids, 32, 8), reference(ids, 32, 8))


@pytest.mark.skipif(not IS_CPU_TARGET, reason="schedules are the CPU target's")
@pytest.mark.parametrize("variant", ["dcp", "chained"])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_any_order_of_threads(variant: str, seed: int) -> None:
    ids = distinct_ids(300, 4, 40)
    plan = Plan(options=cpu_options(32), schedule_seed=seed)
    out = call(plan, ids, 40, 16, variant=variant, num_blocks=5)
    assert_equal(out, reference(ids, 40, 16))


def test_bad_calls_are_refused_before_any_launch() -> None:
    plan = Plan(options=cpu_options(32))
    ids = distinct_ids(4, 2, 8)
    cases = [
        (ValueError, r"topk_ids\[2, 1\] is 9, and the experts are 0 to 7", (wrong(ids, 9), 8, 4)),
        (ValueError, r"topk_ids\[2, 1\] is -1", (wrong(ids, -1), 8, 4)),
        (ValueError, "the block size is 0", (ids, 8, 0)),
        (ValueError, "names 2 experts per token, but there are only 1", (ids, 1, 4)),
        (ValueError, "0 experts: give 1 to 1024", (ids, 0, 4)),
        (TypeError, "must be torch.int32, got torch.int64", (ids.long(), 8, 4)),
        (ValueError, "must be contiguous", (ids.t(), 8, 4)),
        (ValueError, r"shape \[n, K\]", (ids.flatten(), 8, 4)),
        (TypeError, "topk_ids must be a tensor, got list", ([[0, 1]], 8, 4)),
        (TypeError, "the block size is 2.5; give a whole number", (ids, 8, 2.5)),
        (TypeError, "the block size is True; give a whole number", (ids, 8, True)),
        (TypeError, "the number of experts is 8.0; give a whole number", (ids, 8.0, 4)),
        (
            ValueError,
            "8 ids in blocks of 1099511627776 do not fit .*; give a smaller",
            (ids, 8, 2**40),
        ),
    ]
    assert_refused(plan, cases)
    with pytest.raises(ValueError, match="1073741824 ids: give up to 1073741823; split the tokens"):
        plans.check(ids, Problem(1 << 30, 8, 4, "chained", None), "cpu")
    with pytest.raises(ValueError, match="variant 'fast' is not known"):
        plan(ids, 8, 4, variant="fast")
    for num_blocks in (0, 10**10):
        with pytest.raises(ValueError, match=f"a grid of {num_blocks} blocks; give 1 to 65536"):
            plan(ids, 8, 4, num_blocks=num_blocks)
    assert plan._num_calls == 0


def wrong(ids: torch.Tensor, value: int) -> torch.Tensor:
    changed = ids.clone()
    changed[2, 1] = value
    return changed


@pytest.mark.amd
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("value", [-3, 40, 2**31 - 1])
def test_the_kernel_leaves_out_ids_of_no_expert_and_tells(
    plan: Plan, variant: str, value: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU nobody looks at the ids before."""
    monkeypatch.setattr("instrumented_kernels.moe_align_sort.plan._check_ids", lambda *_: None)
    ids = wrong(distinct_ids(100, 3, 40), value)
    with pytest.raises(ValueError, match=f"element 7 of the flattened topk_ids is {value}, "):
        call(plan, ids, 40, 8, variant=variant)
    assert_equal(
        call(plan, distinct_ids(100, 3, 40), 40, 8), reference(distinct_ids(100, 3, 40), 40, 8)
    )


def test_a_barrier_that_a_block_never_reaches_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounded waits: a grid whose last block is missing, as another process may hold its place on a GPU."""
    plan = breaking(Plan, "all blocks arrive")(options=cpu_options(32), timeout_s=0.2)
    with pytest.raises(
        RuntimeError, match=r"more than 0\.2 s for the other blocks .* wait-for-counts"
    ):
        call(plan, distinct_ids(100, 3, 8), 8, 8, variant="dcp", num_blocks=3)


@pytest.mark.amd
def test_what_is_recorded(tmp_path: Path) -> None:
    ids = distinct_ids(300, 4, 16)
    plan = Plan(options=cpu_options(32))
    blocks = {"single_block": None, "dcp": 3, "chained": 3}
    trace = record(
        tmp_path / "run.kprof",
        lambda recorder: [
            call(plan, ids, 16, 8, variant=name, num_blocks=blocks[name], recorder=recorder)
            for name in VARIANTS
        ],
    )
    rows = trace.frame(
        "SELECT kernel, region, count(*) AS n, sum(ids) AS ids FROM events GROUP BY ALL"
    )
    found = {(row.kernel.split("/")[1], row.region): (row.n, row.ids) for row in rows.itertuples()}
    num_ids = ids.numel()
    assert found["single_block", "place"] == (1, num_ids)
    assert found["dcp", "count"] == found["dcp", "place"] == (3, num_ids)
    assert found["dcp", "wait-for-scan"][0] == 3
    assert found["count", "count"] == found["place", "place"] == (3, num_ids)
    assert found["place", "look-back"][0] == 3
