"""The all-reduce on the CPU target: the right bits on every rank, in every variant, under many interleavings."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from reductions import DTYPES, VARIANTS, Call, Setting, run_calls
from thread_ranks import ThreadGroup, run_threads
from typer.testing import CliRunner
from waits import waited_s
from widths import IS_CPU_TARGET, SEEDS, WARP_WIDTHS

from benchmarks.all_reduce.__main__ import write_table
from combinations import all_pairs
from instrumented_kernels.all_reduce import HeapSizes, PeerTimeoutError
from instrumented_kernels.all_reduce.__main__ import app
from instrumented_kernels.all_reduce.tuning import TABLE_FILE, tuning_for, tuning_from
from instrumented_kernels.all_reduce.values import expected_sum, make_input
from kprof.devices.groups import SoloGroup

ROOT = Path(__file__).parents[2]
# How long a rank waits for one that never comes; an emulator takes many instructions for that.
PATIENCE_S = 0.2 if IS_CPU_TARGET else 0.1
LENGTHS = [1, 2, 3, 7, 8, 9, 63, 64, 65, 257, 1000, 4096, 4098]


def every_kind_of(variant: str, lengths: list[int]) -> list[Call]:
    """All element types, in place and not, at offsets that are aligned to 16, 4 and only 2 bytes."""
    return [
        Call(length, dtype, variant, offset, is_in_place)
        for length in lengths
        for dtype in DTYPES
        for offset, is_in_place in ((0, False), (8, True), (2, True), (1, False))
    ]


@pytest.mark.amd
@pytest.mark.parametrize(
    ("world_size", "warp_width", "variant"), all_pairs([2, 4], WARP_WIDTHS, VARIANTS)
)
def test_every_length_type_and_offset(world_size: int, warp_width: int, variant: str) -> None:
    calls = every_kind_of(variant, LENGTHS)
    wrong = run_calls(Setting(world_size, warp_width), calls)
    assert [call for call, count in zip(calls, wrong, strict=True) if count] == []


@pytest.mark.amd
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("world_size", [1, 3, 5, 8])
def test_other_numbers_of_ranks(world_size: int, variant: str) -> None:
    assert sum(run_calls(Setting(world_size), every_kind_of(variant, [5, 777]))) == 0


@pytest.mark.amd
@pytest.mark.parametrize("variant", VARIANTS)
def test_sizes_of_models(variant: str) -> None:
    """More than one launch each: the heap of the test is small."""
    sizes = HeapSizes(1 << 18, 1 << 18)
    calls = [Call(53472, variant=variant), Call(234_496, variant=variant, offset=1)]
    assert run_calls(Setting(2, warps_per_block=4, heap_sizes=sizes), calls) == [0, 0]


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("seed", SEEDS)
def test_every_schedule_is_right(seed: int, variant: str) -> None:
    calls = [Call(length, variant=variant) for length in (300, 5, 1100, 40)]
    assert run_calls(Setting(4, seed=seed), calls) == [0, 0, 0, 0]


@pytest.mark.amd
@pytest.mark.parametrize("grid", [1, 3, 7])
@pytest.mark.parametrize(
    "variant", ["oneshot_tree", "oneshot", "twoshot_packets", "twoshot", "ring"]
)
def test_any_grid(variant: str, grid: int) -> None:
    calls = [Call(length, variant=variant, grid=grid) for length in (2, 999)]
    assert run_calls(Setting(3), calls) == [0, 0]


def test_many_calls_with_a_slow_rank_and_no_barrier() -> None:
    """Sizes and variants change from call to call, so that every part of the heap is divided in many ways."""

    def dawdle(rank: int, number: int) -> None:
        if rank == number // 50 % 4 and number % 7 == 0:
            time.sleep(0.002)

    lengths = [1, 900, 33, 4, 257, 2050]
    names = [*VARIANTS, "auto"]
    calls = [Call(lengths[i * 5 % 6], variant=names[i % 8]) for i in range(400)]
    assert sum(run_calls(Setting(4), calls, dawdle)) == 0


@pytest.mark.amd
@pytest.mark.parametrize("variant", VARIANTS)
def test_values_that_are_no_numbers(variant: str) -> None:
    """NaNs of all bit patterns stay NaNs, infinities and zeros of both signs are added as IEEE 754 says."""

    def work(group: ThreadGroup) -> int:
        plan = Setting(2).plan(group)
        bits = torch.arange(-32768, 32768, dtype=torch.int32).to(torch.int16)
        wrong = 0
        halves = [bits, bits.flip(0).contiguous()]
        # NaNs of neighbouring bit patterns meet each other: all ranks keep the same one.
        words = bits[::16].to(torch.int32) << 16 | 0x1234
        singles = [words, words.roll(1)]
        kinds = ((torch.float16, halves), (torch.bfloat16, halves), (torch.float32, singles))
        for dtype, patterns in kinds:
            inputs, kind = [each.view(dtype) for each in patterns], patterns[0].dtype
            expected, result = expected_sum(inputs), plan(inputs[group.rank], variant=variant)
            same = (result.view(kind) == expected.view(kind)) | (result.isnan() & expected.isnan())
            everyone = group.all_gather(result.view(kind))
            wrong += int((~same).sum()) + int((everyone[0] != everyone[1]).sum())
        plan.close()
        return wrong

    assert run_threads(2, work) == [0, 0]


@pytest.mark.amd
@pytest.mark.parametrize(("world_size", "dtype", "variant"), all_pairs([1, 2, 3], DTYPES, VARIANTS))
def test_negative_zeros_keep_their_sign(world_size: int, dtype: torch.dtype, variant: str) -> None:
    """-0 + -0 is -0 as IEEE 754 and NCCL have it; one +0 makes it +0."""

    def work(group: ThreadGroup) -> list[bool]:
        plan = Setting(world_size).plan(group)
        tensor = torch.full((9,), -0.0, dtype=dtype)
        if group.rank == 0:
            tensor[4] = 0.0
        result = plan(tensor, variant=variant)
        plan.close()
        assert not result.any()
        return torch.signbit(result).tolist()

    expected = [i != 4 for i in range(9)]
    assert run_threads(world_size, work) == [expected] * world_size


@pytest.mark.amd
@pytest.mark.parametrize(
    ("variant", "region"),
    [
        ("oneshot_serial", "wait"),
        ("oneshot_lock", "wait"),
        ("oneshot_tree", "tree/wait"),
        ("oneshot", "wait"),
        ("twoshot_packets", "wait"),
        ("twoshot", "wait"),
    ],
)
def test_a_rank_that_never_comes_is_named(variant: str, region: str) -> None:
    def work(group: ThreadGroup) -> str:
        plan = Setting(2, timeout_s=PATIENCE_S).plan(group)
        if group.rank == 1:
            group.barrier()  # its heap must outlive what the other sends
            return ""
        with pytest.raises(PeerTimeoutError) as error:
            plan(torch.ones(100), variant=variant)
        with pytest.raises(RuntimeError, match="create a new plan"):
            plan(torch.ones(101), variant=variant)
        group.barrier()
        return str(error.value)

    message = run_threads(2, work)[0]
    assert waited_s(message, 0, 1) >= PATIENCE_S
    assert f"epoch 1, in {region};" in message


ODD = torch.zeros(40)
BAD_CALLS = {
    "type": ({"tensor": torch.zeros(4, dtype=torch.int32)}, "must be fp16, bf16 or fp32"),
    "contiguity": ({"tensor": torch.zeros(4, 4).t()}, "tensor must be contiguous"),
    "device": ({"tensor": torch.zeros(4, device="meta")}, "tensor is on meta"),
    "out's type": ({"tensor": ODD, "out": ODD.half()}, "out must be torch.float32"),
    "out's shape": ({"tensor": ODD, "out": torch.zeros(39)}, r"out must have shape \[40\]"),
    "out's contiguity": ({"tensor": ODD, "out": torch.zeros(80)[::2]}, "out must be contiguous"),
    "overlap": ({"tensor": ODD[:30], "out": ODD[10:]}, "overlaps tensor in part"),
    "variant": ({"tensor": ODD, "variant": "fastest"}, "choose auto or one of oneshot_serial"),
    "grid": ({"tensor": ODD, "grid": 300}, "give at most 254"),
    "grid of one": ({"tensor": ODD, "variant": "oneshot_serial", "grid": 2}, "oneshot_serial runs in 1 block"),
    "grid of ranks": ({"tensor": ODD, "variant": "oneshot_lock", "grid": 3}, "oneshot_lock runs in 1 block"),
}  # fmt: skip


@pytest.mark.parametrize(("arguments", "message"), BAD_CALLS.values(), ids=BAD_CALLS.keys())
def test_bad_calls_are_refused(arguments: dict, message: str) -> None:
    plan = Setting(1).plan(SoloGroup())
    with pytest.raises((ValueError, TypeError), match=message):
        plan(**arguments)


def test_a_bad_call_is_refused_after_a_good_one_of_its_kind() -> None:
    plan = Setting(1).plan(SoloGroup())
    plan(torch.zeros(16), variant="oneshot")
    with pytest.raises(ValueError, match="tensor must be contiguous"):
        plan(torch.zeros(4, 4).t(), variant="oneshot")


def test_an_empty_tensor_is_its_own_sum() -> None:
    assert Setting(1).plan(SoloGroup())(torch.zeros(0)).numel() == 0


def test_ranks_with_different_plans_are_refused() -> None:
    def work(group: ThreadGroup) -> None:
        Setting(heap_sizes=HeapSizes(1 << 16 + group.rank, 1 << 16)).plan(group)

    with pytest.raises(ValueError, match="they must be equal"):
        run_threads(2, work)


def test_the_table_names_variants_that_exist_at_every_size() -> None:
    for world_size in (1, 2, 4, 8, 30):
        tuning = tuning_for(world_size)
        for exponent in range(28):
            variant = tuning.variant(1 << exponent)
            assert variant in VARIANTS
            assert 1 <= tuning.grid(variant, 1 << exponent).num_blocks <= 254


MEASURED = {
    "4": {
        "variants": [[1024, "oneshot"], [131072, "oneshot"], [262144, "twoshot_packets"]],
        "grids": {"twoshot": [[1000, 1, 4], [2000, 2, 4]], "oneshot": [[1000, 1, 4], [2000, 2, 4]]},
    }
}


def test_other_numbers_of_ranks_take_the_table_at_sizes_that_are_alike() -> None:
    """Slices save 1.5 bytes per byte on 4 ranks, 5.25 on 8 and nothing on 2."""
    four, two, eight = (tuning_from(MEASURED, world_size) for world_size in (4, 2, 8))
    assert four.variant(131072) == "oneshot"
    assert four.variant(131073) == "twoshot_packets"
    assert two.variant(1 << 30) == "oneshot"
    assert eight.variant(131072 * 2 // 7) == "oneshot"
    assert eight.variant(131072 * 2 // 7 + 1) == "twoshot_packets"
    assert tuning_from(MEASURED, 1).variant(1 << 30) == "oneshot"
    assert eight.grid("twoshot", 2000).num_blocks == 1  # a slice is half as long
    assert eight.grid("oneshot", 2000).num_blocks == 2


def test_a_number_of_ranks_that_was_measured_is_taken_as_it_is() -> None:
    tables = MEASURED | {"2": {"variants": [[1024, "oneshot"], [2048, "twoshot"]], "grids": {}}}
    assert tuning_from(tables, 2).variant(2048) == "twoshot"
    assert tuning_from(tables, 3).measured_ranks == 4
    assert tuning_from(tables, 1).variant(2048) == "twoshot"


def test_a_new_measurement_keeps_those_of_other_numbers_of_ranks(tmp_path: Path) -> None:
    before = json.loads(TABLE_FILE.read_text())["by_world_size"]
    write_table(tmp_path / "tuned.json", 30, [[1024, "ring"]], {"ring": [[1024, 4, 8]]})
    tables = json.loads((tmp_path / "tuned.json").read_text())["by_world_size"]
    assert tables == before | {
        "30": {"variants": [[1024, "ring"]], "grids": {"ring": [[1024, 4, 8]]}}
    }
    assert tuning_from(tables, 30).grid("ring", 512).num_blocks == 4


def test_inputs_differ_by_rank_and_seed() -> None:
    """Else a rank that is left out, or a result of the call before, would not show."""
    first = make_input(0, 1000, torch.bfloat16, 1)
    assert not torch.equal(first, make_input(1, 1000, torch.bfloat16, 1))
    assert not torch.equal(first, make_input(0, 1000, torch.bfloat16, 2))


def test_the_command_runs_ranks_as_processes() -> None:
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    workload = ["-m", "instrumented_kernels.all_reduce", "--target", "cpu"]
    options = ["--variant", "ring", "--numel", "1001", "--dtype", "fp16"]
    command = [sys.executable, *launcher, *workload, *options]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr[-2000:]
    assert (
        "all_reduce/ring, 2 blocks on cpu: 2 ranks, 1001 x torch.float16, 3 calls" in result.stdout
    )
    assert "0 wrong values" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--variant", "fastest"], "variant 'fastest' is not known"),
        (["--dtype", "int8"], "--dtype 'int8' is not known"),
        (["--numel", "0"], "--numel takes a number of elements"),
        (["--graph"], "leave it out on the CPU target"),
    ],
)
def test_the_command_says_what_is_wrong(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(app, ["--target", "cpu", *arguments])
    assert result.exit_code == 1
    assert result.stderr.startswith("all_reduce: ")
    assert message in result.stderr
