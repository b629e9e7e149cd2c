"""What Triton makes of the calls, for GPUs that are not here: nothing is run, the machine code is read."""

from __future__ import annotations

import re
from typing import Any

import pytest
from needed import require_nvdisasm, require_triton

require_triton()

import compiled  # noqa: E402
import sample_kernels  # noqa: E402
from compiled import Code, Pointer, compile_for  # noqa: E402

import kprof.triton as kp  # noqa: E402
from kprof.recording.launch_buffer import LaunchBuffer  # noqa: E402

pytestmark = pytest.mark.native

TARGETS = list(compiled.TARGETS)
KERNELS = ["copy", "matmul", "matmul with events in its loop"]
ATOMIC = r"\b(ATOM|ATOMG|RED|REDG)\b|atomic"


def a_buffer(number: int = 5, num_warps: int = 0) -> kp.Buffer:
    buffer = LaunchBuffer(1 << 40, number, 100, 1, 64, 32, 32)
    prof = kp.pack(buffer, sample_kernels.regions, num_warps)
    assert prof is not None
    return prof


def code_of(target: str, name: str, prof: Any, *, without_kprof: bool = False) -> Code:
    if target.startswith("sm_"):
        require_nvdisasm()
    if name == "copy":
        kernel = sample_kernels.plain_copy if without_kprof else sample_kernels.copy
        return compile_for(target, kernel, Pointer(), Pointer(), 8192, prof, ROW=4096, RECORD=True)
    kernel = sample_kernels.plain_matmul if without_kprof else sample_kernels.matmul
    tile = {"M": 128, "N": 128, "K": 64, "num_stages": 3 if target.startswith("sm_") else 2}
    matrices = [Pointer("fp16")] * 3
    return compile_for(
        target, kernel, *matrices, 4096, 4096, 4096, prof, IN_LOOP=name != "matmul", **tile
    )


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("target", TARGETS)
def test_off_is_the_code_of_a_kernel_without_kprof(target: str, name: str) -> None:
    expected = code_of(target, name, None, without_kprof=True).instructions
    assert len(expected) > 20
    assert code_of(target, name, None).instructions == expected
    assert code_of(target, name, a_buffer()).instructions != expected


@pytest.mark.parametrize("target", TARGETS)
def test_a_constexpr_turns_it_off(target: str) -> None:
    arguments = (Pointer(), Pointer(), 8192, a_buffer())
    if target.startswith("sm_"):
        require_nvdisasm()
    off = compile_for(target, sample_kernels.copy, *arguments, ROW=4096, RECORD=False)
    plain = compile_for(target, sample_kernels.plain_copy, *arguments, ROW=4096, RECORD=False)
    assert off.instructions == plain.instructions


@pytest.mark.parametrize("target", TARGETS)
def test_an_event_is_one_store_of_sixteen_bytes_and_no_atomic(target: str) -> None:
    """From the clock at the end of a row to the branch that one event in 61 takes."""
    code = code_of(target, "copy", a_buffer()).instructions
    clock = r"SR_GLOBALTIMERLO" if target.startswith("sm_") else r"^s_memrealtime"
    row = r"^LDG\.E\.128" if target.startswith("sm_") else r"^buffer_store_dwordx4"
    last_row = max(i for i, line in enumerate(code) if re.search(row, line))
    end = next(i for i in range(last_row, len(code)) if re.search(clock, code[i]))
    hot_path = code[end : end + hot_path_length(code[end:])]
    assert len(hot_path) < 50
    (record,) = [line for line in hot_path if re.search(r"\bSTG\b|_store_", line)]
    assert re.search(r"STG\.E\.128|store_dwordx4", record)
    assert not [line for line in hot_path if re.search(ATOMIC, line)]


def hot_path_length(code: list[str]) -> int:
    """Up to the branch after the test of bits 4 to 9, in code that follows the store."""
    store = next(i for i, line in enumerate(code) if re.search(r"STG\.E\.128|store_dwordx4", line))
    return store + next(
        i for i, line in enumerate(code[store:]) if re.search(r"BRA|s_cbranch_scc", line)
    )


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("target", TARGETS)
def test_no_spills_are_added(target: str, name: str) -> None:
    assert code_of(target, name, a_buffer()).spills == 0


@pytest.mark.parametrize("name", KERNELS[1:])
def test_a_matmul_of_three_stages_stays_pipelined(name: str) -> None:
    """Copies into shared memory that are under way while the tensor cores work."""
    plain = code_of("sm_90", name, None)
    recorded = code_of("sm_90", name, a_buffer())
    assert plain.count("LDGSTS") > 0
    assert recorded.count("LDGSTS") == plain.count("LDGSTS")
    assert recorded.count("GMMA") == plain.count("GMMA")


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("target", TARGETS)
def test_recording_takes_few_registers(target: str, name: str) -> None:
    plain = code_of(target, name, None).registers
    assert code_of(target, name, a_buffer()).registers <= plain + 32


def test_a_launch_does_not_compile_anew_for_its_number() -> None:
    keys = {
        compiled.launch_key(
            "sm_90",
            sample_kernels.copy,
            Pointer(),
            Pointer(),
            8192,
            a_buffer(number),
            ROW=4096,
            RECORD=True,
        )
        for number in (0, 1, 2, 16, 48, 2**31, 2**32 - 1)
    }
    assert len(keys) == 1


def test_instrumented_and_plain_builds_share_no_cache_entry() -> None:
    keys = {
        compiled.launch_key(
            "sm_90", sample_kernels.copy, Pointer(), Pointer(), 8192, prof, ROW=4096, RECORD=True
        )
        for prof in (None, a_buffer(), a_buffer(num_warps=4))
    }
    assert len(keys) == 3


def test_other_regions_are_another_build() -> None:
    """A kernel that names regions of a region file does not change when the file does."""
    regions = kp.Regions()
    regions.define("copy", category="compute", row=24)
    other = kp.pack(LaunchBuffer(1 << 40, 5, 100, 1, 64, 32, 32), regions)
    assert other is not None
    assert other.build.value != a_buffer().build.value


@pytest.mark.parametrize("scheme", ["none", "kprof", "Triton-distributed's scheme"])
def test_kernels_of_the_benchmark_compile(scheme: str) -> None:
    """They run on a GPU only. Each scheme's instructions are there, and not those of another."""
    require_nvdisasm()
    from benchmarks.triton_overhead import kernels

    number = {"none": kernels.PLAIN, "kprof": kernels.KPROF}.get(scheme, kernels.DISTRIBUTED)
    launch = LaunchBuffer(1 << 40, 5, 100, 1, 64, 32, 32)
    prof = kp.pack(launch, kernels.regions) if scheme == "kprof" else None
    slots = Pointer("i64"), 64
    rows = Pointer("i32"), Pointer("i32"), 8192, 3584
    copied = compile_for(
        "sm_90", kernels.copy, *rows, prof, *slots, SCHEME=number, BLOCK=4096, num_warps=8
    )
    tile = {"M": 128, "N": 256, "K": 64, "num_warps": 8, "num_stages": 3}
    matrices = [Pointer("fp16")] * 3
    product = compile_for(
        "sm_90", kernels.matmul, *matrices, 4096, 4096, prof, *slots, SCHEME=number, **tile
    )
    for code in (copied, product):
        assert code.spills == 0
        assert (code.count("GLOBALTIMER") > 0) == (scheme != "none")
        # Some versions of Triton have a fence of their own in the matmul.
        assert (code.count("MEMBAR") > 1) == (scheme == "Triton-distributed's scheme")
        assert (code.count(ATOMIC) > 0) == (scheme == "kprof")
    assert product.count("LDGSTS") > 0


def test_partitions_of_a_gluon_kernel_wait_for_themselves_only() -> None:
    """A track takes its next chunk behind a barrier. One of the whole program would wait for the other partition."""
    require_nvdisasm()
    import gluon_kernels

    buffer = LaunchBuffer(1 << 40, 5, 100, 2, 64, 32, 32)
    prof = kp.pack(buffer, gluon_kernels.regions)
    out = Pointer("i32")
    off = compile_for("sm_90", gluon_kernels.handed_over, out, 100, None, num_warps=4)
    recorded = compile_for("sm_90", gluon_kernels.handed_over, out, 100, prof, num_warps=4)
    assert recorded.spills == 0
    assert off.count("GLOBALTIMER") == 0
    whole_program = r"BAR\.SYNC\S* 0x\d+$"
    assert recorded.count(whole_program) == off.count(whole_program)
    # 128 threads each: the default partition's four warps, and the worker's.
    assert recorded.count(r"BAR\.SYNC\S* 0x0, 0x80") > 0
    assert recorded.count(r"BAR\.SYNC\S* 0x2, 0x80") > 0
