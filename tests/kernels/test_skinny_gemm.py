"""skinny_gemm: within the error of fp32 accumulation of float64; on the CPU target, and as gfx942 machine code.

An emulator of gfx942 without that GPU's fp8 (widths.py: HAS_FNUZ) takes `v_smfmac`, which multiplies up to 8 tokens, for the
dense instruction. So more tokens run there, and `tests/native/test_amd_builds.py` looks at the sparse product.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
import torch
from single_gpu import (
    BUILDS,
    FP8_TYPES,
    assert_refused,
    at_offset,
    cpu_options,
    plans_of,
    poisoned,
    record,
)
from widths import HAS_ALL_FP8, IS_CPU_TARGET, WARP_WIDTHS, needs_all_fp8

from instrumented_kernels.skinny_gemm import Plan, Roles
from instrumented_kernels.skinny_gemm import plan as plans
from instrumented_kernels.skinny_gemm.plan import (
    GROUPS,
    RING_WARPS,
    SLOTS,
    VARIANTS,
    Kind,
    fastest_variant,
)
from kprof.analysis.replay.graph import Graph, build_graph
from kprof.analysis.replay.queues import (
    Queue,
    queues_of,
    with_more_places,
    with_more_producers,
)
from kprof.analysis.replay.spans import load_spans
from kprof.devices.targets import Target

# M, N, K: tails everywhere, no depth, more chunks than the queue has slots.
SHAPES = [(1, 16, 64), (3, 40, 300), (9, 17, 80), (32, 33, 16), (2, 5, 0), (0, 5, 64), (8, 20, 800)]
FEW_TOKENS = 5 if HAS_ALL_FP8 else 12
if not HAS_ALL_FP8:
    SHAPES = [
        shape for shape in [*SHAPES, (0, 5, 64), (16, 20, 800)] if shape[0] == 0 or shape[0] > 8
    ]
# Of a sum of products of magnitudes: fp32 adds K of them, fp16 rounds once.
SUM_ERROR = 2.0**-23
ROUNDING = 2.0**-11


RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "single_gpu.json"

plan_of = plans_of(Plan)


def fp8_values(rows: int, columns: int, fp8: torch.dtype, offset: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(rows * 1000 + columns)
    return at_offset(torch.randn(rows, columns, generator=generator).to(fp8), offset)


def check_call(
    plan: Plan, tokens: torch.Tensor, weights: torch.Tensor, scale: float = 0.37, **how: object
) -> None:
    wanted = scale * tokens.double() @ weights.double().t()
    size = scale * tokens.double().abs() @ weights.double().abs().t()
    with poisoned(tuple(wanted.shape), torch.float16, offset=1) as out:
        plan(tokens, weights, scale, out=out, **how)  # type: ignore[arg-type]
        limit = ROUNDING * wanted.abs() + tokens.shape[1] * SUM_ERROR * size + 2.0**-25
        assert bool(((out.double() - wanted).abs() <= limit).all())


@pytest.mark.amd
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(("warp_width", "fp8"), BUILDS)
def test_within_the_error_of_fp32(warp_width: int, fp8: torch.dtype, variant: str) -> None:
    plan = plan_of(warp_width, fp8)
    for m, n, k in SHAPES:
        check_call(plan, fp8_values(m, k, fp8), fp8_values(n, k, fp8), variant=variant)


@pytest.mark.amd
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("offset", [1, 4])
def test_any_address(variant: str, offset: int) -> None:
    plan, fp8 = plan_of(WARP_WIDTHS[-1], FP8_TYPES[-1]), FP8_TYPES[-1]
    for of_tokens, of_weights in [(offset, 0), (0, offset)]:
        tokens = fp8_values(FEW_TOKENS, 96, fp8, of_tokens)
        check_call(plan, tokens, fp8_values(20, 96, fp8, of_weights), variant=variant)


@pytest.mark.amd
@pytest.mark.parametrize("roles", [(1, 1, 1), (1, 3, 2), (4, 1, 3), (3, 2, 3, 2), (2, 2, 2, 3)])
@pytest.mark.parametrize("num_tokens", [8, 16, 32] if HAS_ALL_FP8 else [16, 32])
def test_any_roles(num_tokens: int, roles: tuple[int, ...]) -> None:
    plan, fp8 = plan_of(WARP_WIDTHS[-1], FP8_TYPES[-1]), FP8_TYPES[-1]
    tokens, weights = fp8_values(num_tokens, 1040, fp8), fp8_values(16, 1040, fp8)
    check_call(plan, tokens, weights, variant="specialised", roles=Roles(*roles))


@pytest.mark.skipif(not IS_CPU_TARGET, reason="schedules are the CPU target's")
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_any_order_of_threads(seed: int) -> None:
    fp8 = FP8_TYPES[0]
    plan = Plan(options=cpu_options(32, fp8), schedule_seed=seed)
    tokens, weights = fp8_values(7, 1500 // 16 * 16, fp8), fp8_values(30, 1500 // 16 * 16, fp8)
    check_call(plan, tokens, weights, variant="specialised", roles=Roles(3, 2, 2, 2))


@pytest.mark.amd
def test_numbers_that_are_none() -> None:
    plan, fp8 = plan_of(WARP_WIDTHS[-1], FP8_TYPES[-1]), FP8_TYPES[-1]
    tokens, weights = torch.ones(FEW_TOKENS, 64).to(fp8), torch.ones(16, 64).to(fp8)
    weights[4, 9] = float("nan")
    for variant in VARIANTS:
        out = plan(tokens, weights, variant=variant)
        assert bool(out[:, 4].isnan().all())
        assert int(out.isnan().sum()) == FEW_TOKENS


@pytest.mark.amd
@needs_all_fp8
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(("warp_width", "fp8"), BUILDS)
def test_every_value_of_fp8(warp_width: int, fp8: torch.dtype, variant: str) -> None:
    """Each of them beside each, subnormal ones too: a row of a matrix has one value."""
    values = torch.arange(256, dtype=torch.uint8).view(fp8).float().nan_to_num(0.0)
    column = values.to(fp8).view(-1, 1)
    weights, plan = column.expand(-1, 16).contiguous(), plan_of(warp_width, fp8)
    for first in range(0, 256, 32):
        tokens = torch.zeros(32, 16).to(fp8)
        tokens[:, first % 16] = column[first : first + 32, 0]
        check_call(plan, tokens, weights, 0.25, variant=variant)
        check_call(plan, tokens[:FEW_TOKENS], weights, 0.25, variant=variant)


@pytest.mark.amd
@pytest.mark.parametrize(("warp_width", "fp8"), BUILDS)
def test_too_large_for_fp16_is_infinite(warp_width: int, fp8: torch.dtype) -> None:
    plan = plan_of(warp_width, fp8)
    tokens, weights = (
        torch.full((FEW_TOKENS, 64), 200.0).to(fp8),
        torch.full((1, 64), -200.0).to(fp8),
    )
    assert bool((plan(tokens, weights) == float("-inf")).all())


def test_bad_calls_are_refused_before_any_launch() -> None:
    plan = plan_of(32, torch.float8_e4m3fn)
    x, w = fp8_values(4, 64, plan.fp8), fp8_values(16, 64, plan.fp8)
    before = plan._num_calls
    cases = [
        (ValueError, "the fp8 scale is 0", (x, w, 0.0)),
        (ValueError, "33 tokens: a skinny GEMM has up to 32", (fp8_values(33, 64, plan.fp8), w)),
        (TypeError, "tokens must be torch.float8_e4m3fn", (x.half(), w)),
        (TypeError, "weights must be torch.float8_e4m3fn", (x, w.to(torch.float8_e4m3fnuz))),
        (ValueError, r"weights must have shape \[16, 64\], got \[16, 32\]", (x, w[:, :32])),
        (ValueError, r"shapes \[M, K\] and \[N, K\]", (x[0], w)),
    ]
    assert_refused(plan, cases)
    for roles, sentence in [
        (Roles(0, 1, 2), "0 producers and 1 consumers: give 1 or more"),
        (
            Roles(14, 2, 2),
            "14 producers, 1 token producers and 2 consumers do not fit .*; give 16 in all",
        ),
        (Roles(2, 1, 2, 0), "0 token producers: give 1 or more"),
        (
            Roles(1, 1, 2, 20),
            "1 producers, 20 token producers and 1 consumers do not fit .*; give 16 in all",
        ),
        (Roles(2, 1, 0), "a queue of 0 slots: shared memory holds 1 to 6 for 8 tokens"),
        (Roles(2, 1, 9), "a queue of 9 slots: shared memory holds 1 to 6 for 8 tokens"),
    ]:
        with pytest.raises(ValueError, match=sentence):
            plan(x, w, variant="specialised", roles=roles)
    with pytest.raises(ValueError, match="direct has no roles; they are for specialised and tuned"):
        plan(x, w, roles=Roles(2, 1, 2))
    with pytest.raises(TypeError, match=r"the number of producers is 1\.5; give a whole number"):
        plan(x, w, variant="tuned", roles=Roles(1.5, 1, 2))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="tokens must be a tensor, got list"):
        plan(x.tolist(), w)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"out must be torch\.float16"):
        plan(x, w, out=torch.empty(4, 16))
    assert plan._num_calls == before
    assert SLOTS[8] == 6


@pytest.mark.amd
def test_what_is_recorded(tmp_path: Path) -> None:
    """Every chunk is loaded once and waited for once; warps have the roles that were asked for."""
    plan, fp8 = plan_of(WARP_WIDTHS[-1], FP8_TYPES[-1]), FP8_TYPES[-1]
    tokens, weights = fp8_values(FEW_TOKENS, 2048, fp8), fp8_values(32, 2048, fp8)
    how = {"variant": "specialised", "roles": Roles(2, 1, 2)}
    trace = record(tmp_path / "run.kprof", lambda r: plan(tokens, weights, recorder=r, **how))
    rows = trace.frame(
        "SELECT region, count(*) AS n, count(DISTINCT warp) AS warps, sum(slot) AS slots FROM "
        "events GROUP BY ALL"
    )
    found = {row.region: (row.n, row.warps, row.slots) for row in rows.itertuples()}
    num_chunks, num_blocks = 2048 // 256, 2
    total = num_blocks * sum(range(num_chunks))
    assert found["weight-producer/load"] == (num_blocks * num_chunks, 2, total)
    assert found["token-producer/load"] == (num_blocks * num_chunks, 1, total)
    assert (
        found["consumer/wait-weights"]
        == found["consumer/multiply"]
        == (num_blocks * num_chunks, 1, total)
    )
    flows = trace.frame(
        "SELECT send_region, wait_region, count(*) AS n, bool_and(send_block = wait_block) AS "
        "same, "
        "bool_and(wait_end_ns >= send_start_ns) AS later FROM flows GROUP BY ALL"
    )
    joined = {(row.send_region, row.wait_region): row.n for row in flows.itertuples()}
    num_turned = num_blocks * (num_chunks - 2)  # chunks that find the queue full
    assert joined == {
        ("weight-producer/load", "consumer/wait-weights"): num_blocks * num_chunks,
        ("token-producer/load", "consumer/wait-tokens"): num_blocks * num_chunks,
        ("consumer/multiply", "weight-producer/wait-slot"): num_turned,
        ("consumer/multiply", "token-producer/wait-slot"): num_turned,
    }
    assert flows["same"].all()
    assert flows["later"].all()


def test_ring_writes_an_event_per_eight_stages(tmp_path: Path) -> None:
    """A stage of few rows is 128 bytes of depth where warps have 32 lanes, 64 where they have 64."""
    plan, fp8 = plan_of(WARP_WIDTHS[-1], FP8_TYPES[-1]), FP8_TYPES[-1]
    num_stages, stage_depth = 17, {32: 128, 64: 64}[WARP_WIDTHS[-1]]
    num_warps = min(plans._CPU_WARPS, RING_WARPS[WARP_WIDTHS[-1]][0])
    depth = num_stages * num_warps * stage_depth
    tokens, weights = fp8_values(FEW_TOKENS, depth, fp8), fp8_values(16, depth, fp8)
    trace = record(
        tmp_path / "run.kprof", lambda r: plan(tokens, weights, recorder=r, variant="ring")
    )
    events = trace.frame(
        "SELECT count(*) AS n FROM events WHERE region = 'multiply' GROUP BY block, warp"
    )
    assert events["n"].tolist() == [3] * num_warps


def recorded_graph(directory: Path, roles: Roles) -> Graph:
    """What depends on what in a call of two blocks and 8 chunks."""
    plan, fp8 = plan_of(WARP_WIDTHS[-1], FP8_TYPES[-1]), FP8_TYPES[-1]
    tokens, weights = fp8_values(FEW_TOKENS, 2048, fp8), fp8_values(32, 2048, fp8)
    how = {"variant": "specialised", "roles": roles}
    trace = record(directory, lambda recorder: plan(tokens, weights, recorder=recorder, **how))
    return build_graph(load_spans(trace, [0]))


def order_of_loads(graph: Graph, queue: Queue) -> set[tuple[int, int, int]]:
    """(block, chunk, the chunk that its producer loaded before; -1: none)."""
    spans, found = graph.spans, set()
    for begin, fill in zip(queue.begins.tolist(), queue.fills.tolist(), strict=True):
        before = int(graph.before[begin])
        is_load = before >= 0 and spans.region[before] == queue.region
        earlier = int(spans.slot[before]) if is_load else -1
        found.add((int(spans.block[fill]), int(spans.slot[fill]), earlier))
    return found


def order_of_places(graph: Graph, queue: Queue) -> set[tuple[int, int, int]]:
    """(block, chunk, the chunk that has to be used up before it finds a place)."""
    spans = graph.spans
    held = [room for room in queue.rooms.tolist() if graph.releaser[room] >= 0]
    return {
        (int(spans.block[room]), int(spans.slot[room + 1]), int(spans.slot[graph.releaser[room]]))
        for room in held
    }


def weight_queue(graph: Graph) -> Queue:
    region = graph.spans.region_names.index("weight-producer/load")
    (queue,) = [queue for queue in queues_of(graph) if queue.region == region]
    return queue


def test_what_ifs_change_what_the_kernel_changes(tmp_path: Path) -> None:
    """A replay with more producers or places has the order of a run with as many."""
    few = recorded_graph(tmp_path / "few.kprof", Roles(2, 1, 2))
    queue = weight_queue(few)
    other = recorded_graph(tmp_path / "producers.kprof", Roles(4, 1, 2))
    expected = order_of_loads(other, weight_queue(other))
    assert order_of_loads(few, queue) != expected
    assert order_of_loads(with_more_producers(few, queue), queue) == expected
    other = recorded_graph(tmp_path / "places.kprof", Roles(2, 1, 4))
    expected = order_of_places(other, weight_queue(other))
    assert order_of_places(few, queue) != expected
    assert order_of_places(with_more_places(few, queue), queue) == expected


@pytest.mark.amd
def test_a_block_of_ring_has_its_share_of_the_rows() -> None:
    """Every kernel of `ring`, with shares that are not multiples of a tile, and more blocks than processors."""
    plan = plan_of(WARP_WIDTHS[-1], FP8_TYPES[-1])
    fp8 = FP8_TYPES[-1]
    for num_rows in (70, 170, 300, 400):
        check_call(plan, fp8_values(9, 80, fp8), fp8_values(num_rows, 80, fp8), variant="ring")
    gpu = SimpleNamespace(
        is_on_cpu=False, _num_processors=132, _library=SimpleNamespace(warp_width=32)
    )
    for num_rows, num_tokens, blocks, warps, tiles in [
        (2304, 8, 132, 8, 2), (13312, 16, 132, 4, 8), (16384, 8, 132, 4, 8), (13312, 32, 208, 4, 4),
        (40000, 8, 313, 4, 8), (100, 1, 7, 8, 2),
    ]:  # fmt: skip
        kind = Kind(num_tokens, num_rows, 16384, "ring", None, True)
        found = Plan._ring_geometry(cast(Plan, gpu), kind)
        assert (found, plans._ring_tiles(kind, found[0])) == ((blocks, warps), tiles)


@pytest.mark.amd
def test_groups_divide_rows_and_depth() -> None:
    """Both kernels of `groups` for every number of tokens, and a depth that takes more stages than a ring has."""
    plan, fp8 = plan_of(WARP_WIDTHS[-1], FP8_TYPES[-1]), FP8_TYPES[-1]
    depth = 9 * 256 * GROUPS[WARP_WIDTHS[-1]][0] + 16
    for num_rows in (20, 200):
        for num_tokens in (FEW_TOKENS, 16, 27):
            tokens, weights = fp8_values(num_tokens, depth, fp8), fp8_values(num_rows, depth, fp8)
            check_call(plan, tokens, weights, variant="groups")
    gpu = SimpleNamespace(_num_processors=132, _library=SimpleNamespace(warp_width=32))
    for num_rows, blocks, warps, rows in [
        (100, 7, 16, 32), (2304, 132, 16, 32), (4224, 132, 16, 32), (4225, 264, 16, 32), (8448, 264, 16, 32),
        (16384, 264, 8, 64), (16897, 265, 8, 64),
    ]:  # fmt: skip
        kind = Kind(8, num_rows, 16384, "groups", None, True)
        found = Plan._groups_geometry(cast(Plan, gpu), kind)
        assert (found, plans._group_rows(kind, found[0])) == ((blocks, warps), rows)


def test_ring_refuses_a_device_with_less_shared_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = Plan(options=cpu_options(*BUILDS[0]))
    monkeypatch.setattr(type(plan._library), "fits_shared_memory", lambda *_: False)
    values = fp8_values(1, 64, plan.fp8)
    with pytest.raises(ValueError, match="ring takes more shared memory than cpu gives a block"):
        plan(values, values, variant="ring")


def measured_us() -> dict[tuple[int, int, int], dict[str, float]]:
    """The median of every variant by shape."""
    rows = json.loads(RESULTS.read_text())["rows"]
    return {
        tuple(map(int, row["shape"].split(" x "))): {
            name: row["us"][name]["us"] for name in VARIANTS
        }
        for row in rows
        if row["kernel"] == "skinny_gemm" and "us" in row
    }


def test_the_default_is_the_fastest_measured_variant_or_close_to_it() -> None:
    measured = measured_us()
    assert len(measured) == 12
    for (tokens, rows, _), times in measured.items():
        best = fastest_variant(tokens, rows, 132, has_groups=True)
        assert times[best] <= 1.03 * min(times.values())
        del times["groups"]
        assert times[fastest_variant(tokens, rows, 132)] <= 1.03 * min(times.values())
        del times["ring"]
        assert times[fastest_variant(tokens, rows, 0)] <= 1.03 * min(times.values())


def test_ring_is_the_default_only_where_no_block_runs_alone_at_the_end() -> None:
    for tokens, rows, processors, variant in [
        (32, 8448, 132, "ring"), (32, 8500, 132, "split_k"), (32, 12672, 132, "ring"),
        (16, 16384, 132, "ring"), (16, 16384, 127, "direct"), (16, 16384, 64, "ring"), (8, 40000, 132, "direct"),
    ]:  # fmt: skip
        assert fastest_variant(tokens, rows, processors) == variant
        assert fastest_variant(tokens, rows, processors, has_groups=True) == "groups"


def test_groups_are_the_default_only_where_all_devices_have_wgmma(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan = Plan(options=cpu_options(*BUILDS[0]))
    monkeypatch.setattr(plan._library, "num_processors", 132)
    for arch, variant in [
        ("sm_90a", "groups"), ("sm_90a,sm_90a", "groups"), ("sm_90", "ring"), ("sm_90a,sm_100", "ring"),
    ]:  # fmt: skip
        monkeypatch.setattr(plan, "options", replace(plan.options, target=Target.CUDA, arch=arch))
        assert plan.default_variant(8, 2304) == variant


def test_ring_is_the_default_only_on_nvidia_where_it_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = Plan(options=cpu_options(*BUILDS[0]))
    assert plan.default_variant(8, 2304) == "direct"
    assert plan.default_variant(32, 16384) == "split_k"
    monkeypatch.setattr(plan, "options", replace(plan.options, target=Target.CUDA))
    monkeypatch.setattr(plan._library, "num_processors", 132)
    assert [plan.default_variant(8, rows) for rows in (0, 2304, 16384)] == ["ring"] * 3
    with pytest.raises(ValueError, match="33 tokens: a skinny GEMM has up to 32"):
        plan.default_variant(33, 2304)
    monkeypatch.setattr(type(plan._library), "fits_shared_memory", lambda *_: False)
    assert plan.default_variant(8, 2304) == "direct"
    assert plan.default_variant(32, 16384) == "split_k"
    monkeypatch.undo()
    monkeypatch.setattr(plan, "options", replace(plan.options, target=Target.HIP))
    assert plan.default_variant(8, 2304) == "direct"


def test_few_tiles_get_more_warps_in_split_k_only() -> None:
    gpu = SimpleNamespace(is_on_cpu=False, _library=SimpleNamespace(warp_width=32))
    for variant, num_tiles, num_warps in [
        ("split_k", 144, 16), ("split_k", 832, 8), ("direct", 144, 8), ("direct", 832, 8),
    ]:  # fmt: skip
        kind = Kind(8, 16 * num_tiles, 16384, variant, None, True)
        found = Plan._geometry(cast(Plan, gpu), kind, Roles(2, 1, 2), num_tiles)
        assert found == (num_tiles, num_warps)
