"""What Triton makes of the calls, for GPUs that are not here: nothing is run, the machine code is read."""

from __future__ import annotations

import re

import pytest
from needed import require_nvdisasm, require_triton

require_triton()

import compiled  # noqa: E402
from code_samples import SAMPLES, a_buffer, code_of, require_target  # noqa: E402
from compiled import Pointer, compile_for  # noqa: E402
from sample_kernels import PLAIN, copy  # noqa: E402
from stripped import without_kprof  # noqa: E402

import kprof.triton as kp  # noqa: E402
from benchmarks.triton_overhead.kernels import DISTRIBUTED  # noqa: E402
from kprof.recording.launches.launch_buffer import LaunchBuffer  # noqa: E402

pytestmark = pytest.mark.native

TARGETS = ["sm_90", "gfx942", "gfx950"]
KERNELS = list(SAMPLES)
COPIES = ["copy", "copy in one chunk"]
MATMULS = ["matmul", "matmul in one chunk", "matmul with events in its loop"]
ATOMIC = r"\b(ATOM|ATOMG|RED|REDG)\b|atomic"
# Kernels' own atomics are of the system, kprof's of the device.
OF_THE_SYSTEM = r"\.SYS\b|\bsc1\b"
STORE = r"STG\.E\.128|(global|buffer|flat)_store_dwordx4"
RECORDS_OF_A_HEADER = 3
# Of half a record, on AMD.
PAST_CACHES = r"^global_store_dwordx2 .* sc0 sc1$"


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("target", TARGETS)
def test_off_is_the_code_of_a_kernel_without_kprof(target: str, name: str) -> None:
    expected = code_of(target, name, "without kprof").instructions
    assert len(expected) > 20
    assert code_of(target, name, "off").instructions == expected
    assert code_of(target, name, "recorded").instructions != expected


@pytest.mark.parametrize("target", TARGETS)
def test_a_constexpr_turns_it_off(target: str) -> None:
    require_target(target)
    sample = SAMPLES["copy"]
    prof = a_buffer(sample.regions)
    arguments = (*sample.before, prof, *sample.after)
    off = compile_for(target, sample.kernel, *arguments, **sample.constants | {"SCHEME": PLAIN})
    # Unused, the buffer still takes its place among the arguments.
    plain = compile_for(target, without_kprof(sample.kernel), *arguments, **sample.constants)
    assert off.instructions == plain.instructions


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("target", TARGETS)
def test_every_event_adds_one_store_and_its_atomics_lie_apart(target: str, name: str) -> None:
    """A track begins with a header of three stores, and so does the next chunk, behind every event. A track in one
    chunk takes no other. On AMD headers are not stored like records."""
    plain, recorded = (code_of(target, name, how) for how in ("without kprof", "recorded"))
    num_events, num_headers = events_and_headers(recorded, name)
    added = recorded.count(STORE) - plain.count(STORE)
    most = num_events + (RECORDS_OF_A_HEADER * num_headers if recorded.is_nvidia else 0)
    # LLVM may make one of two ends of branches that are alike.
    assert most - (0 if SAMPLES[name].is_short else 2) <= added <= most
    own = rf"({ATOMIC}).*({OF_THE_SYSTEM})"
    assert recorded.count(own) <= plain.count(own) == plain.count(ATOMIC)
    with_atomics = [
        block
        for block in recorded.blocks
        if any(re.search(ATOMIC, line) and not re.search(OF_THE_SYSTEM, line) for line in block)
    ]
    assert len(with_atomics) > num_events
    assert not [line for block in with_atomics for line in block if re.search(STORE, line)]


def events_and_headers(code: compiled.Code, name: str) -> tuple[int, int]:
    """How often code stores an event, and a header."""
    sample = SAMPLES[name]
    num_events = sample.num_events
    if not code.is_nvidia and name == "matmul with events in its loop":
        num_events += 1  # the pipelined loop's last turn stands behind the loop
    return num_events, 1 if sample.is_short else 1 + num_events


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("target", ["gfx942", "gfx950"])
def test_headers_go_past_the_caches_of_a_chiplet(target: str, name: str) -> None:
    """The host reads them while a kernel hangs. Nothing waits for them."""
    plain, recorded = (code_of(target, name, how) for how in ("without kprof", "recorded"))
    assert plain.count(PAST_CACHES) == 0
    _, num_headers = events_and_headers(recorded, name)
    assert recorded.count(PAST_CACHES) == 2 * RECORDS_OF_A_HEADER * num_headers
    code = recorded.instructions
    stores = [i for i, line in enumerate(code) if re.search(PAST_CACHES, line)]
    for i, last in zip(stores[::2], stores[1::2], strict=True):
        assert last == i + 1
        saved = code[i - 1].split()[1]
        assert code[i - 2].startswith("v_cmp_eq_u32 vcc, 0, v")
        assert code[i - 1] == f"s_and_saveexec_b64 {saved} vcc"
        assert code[i + 2] == f"s_mov_b64 exec, {saved.rstrip(',')}"


def test_a_gpu_of_one_l2_has_no_such_store() -> None:
    sample = SAMPLES["copy"]
    arguments = (*sample.before, a_buffer(sample.regions), *sample.after)
    code = compile_for("gfx90a", sample.kernel, *arguments, **sample.constants)
    assert code.count(r"sc0|sc1|\bglc\b.*\bslc\b") == 0
    assert code.count(STORE) >= 2 * RECORDS_OF_A_HEADER + 1
    assert code.spills == 0


@pytest.mark.parametrize("name", COPIES)
@pytest.mark.parametrize("target", TARGETS)
def test_an_event_is_one_store_of_sixteen_bytes_and_no_atomic(target: str, name: str) -> None:
    """From the clock at the end of a row to the branch that one event in 61 takes."""
    code = code_of(target, name, "recorded").instructions
    clock = r"SR_GLOBALTIMERLO" if target.startswith("sm_") else r"^s_memrealtime"
    row = r"\bLDG\.E\.128" if target.startswith("sm_") else r"^buffer_store_dwordx4"
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


@pytest.mark.parametrize("name", MATMULS)
def test_a_matmul_of_three_stages_stays_pipelined(name: str) -> None:
    """Copies into shared memory that are under way while the tensor cores work."""
    plain, recorded = (code_of("sm_90", name, how) for how in ("without kprof", "recorded"))
    assert plain.count("LDGSTS") > 0
    assert recorded.count("LDGSTS") == plain.count("LDGSTS")
    assert recorded.count("GMMA") == plain.count("GMMA")


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("target", TARGETS)
def test_recording_takes_few_registers_and_spills_none(target: str, name: str) -> None:
    plain, recorded = (code_of(target, name, how) for how in ("off", "recorded"))
    assert recorded.registers <= plain.registers + 32
    assert recorded.spills == plain.spills == 0


@pytest.mark.parametrize("name", ["copy in one chunk", "matmul in one chunk"])
@pytest.mark.parametrize("target", TARGETS)
def test_a_track_in_one_chunk_costs_little_code(target: str, name: str) -> None:
    """Registers, and on NVIDIA barriers: those of the claim that a track without a chunk makes."""
    plain, recorded = (code_of(target, name, how) for how in ("off", "recorded"))
    assert recorded.registers <= plain.registers + 12
    assert recorded.count(r"\bBAR\b|s_barrier") <= plain.count(r"\bBAR\b|s_barrier") + 5
    unbounded = code_of(target, name.removesuffix(" in one chunk"), "recorded")
    assert len(recorded.instructions) < len(unbounded.instructions)


def key_of_a_copy(prof: kp.Buffer | None) -> str:
    sample = SAMPLES["copy"]
    return compiled.launch_key(
        "sm_90", sample.kernel, *sample.before, prof, *sample.after, **sample.constants
    )


def test_a_launch_does_not_compile_anew_for_its_number() -> None:
    numbers = (0, 1, 2, 16, 48, 2**31, 2**32 - 1)
    regions = SAMPLES["copy"].regions
    assert len({key_of_a_copy(a_buffer(regions, number)) for number in numbers}) == 1


@pytest.mark.parametrize("name", ["one_shot", "two_shot", "dispatch"])
def test_a_collective_compiles_once_for_all_ranks_and_calls(name: str) -> None:
    """Triton would compile again for a call's number that is 1 or divisible by 16."""
    sample = SAMPLES[name]
    before = list(sample.before)
    place = sample.kernel.arg_names.index("rank")
    keys = set()
    for rank, epoch in ((0, 1), (1, 2), (2, 16), (3, 17)):
        before[place : place + 2] = rank, epoch
        keys.add(compiled.launch_key("sm_90", sample.kernel, *before, None, **sample.constants))
    assert len(keys) == 1


def test_instrumented_and_plain_builds_share_no_cache_entry() -> None:
    regions = SAMPLES["copy"].regions
    buffers = (None, a_buffer(regions), a_buffer(regions, num_warps=4))
    assert len({key_of_a_copy(prof) for prof in buffers}) == 3


def test_other_regions_are_another_build() -> None:
    """A kernel that names regions of a region file does not change when the file does."""
    regions = kp.Regions()
    regions.define("copy", category="compute", row=24)
    assert a_buffer(regions).build.value != a_buffer(SAMPLES["copy"].regions).build.value


def test_the_scheme_that_the_benchmark_compares_with_compiles() -> None:
    """It runs on a GPU only."""
    require_nvdisasm()
    constants = SAMPLES["copy in one chunk"].constants | {"SCHEME": DISTRIBUTED}
    arguments = Pointer("i32"), Pointer("i32"), 8192, 3584, None, Pointer("i64"), 64
    code = compile_for("sm_90", copy, *arguments, **constants)
    assert code.spills == 0
    assert code.count("GLOBALTIMER") > 0
    assert code.count("MEMBAR") > 1
    assert code.count(ATOMIC) == 0


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


@pytest.mark.parametrize(("in_loop", "at_most"), [(False, None), (True, None), (False, 8)])
def test_the_matmul_whose_warps_have_roles_keeps_them_apart(
    in_loop: bool, at_most: int | None
) -> None:
    """A header for each role's track, and per event a record and, if it may be needed, the next header. No
    register is spilled."""
    require_nvdisasm()
    from instrumented_kernels.triton_matmul.call import NUM_WARPS, TILE, descriptor
    from instrumented_kernels.triton_matmul.kernels import persistent_matmul, regions

    class Matrix(Pointer):
        shape = (4096, 4096)

        def stride(self) -> tuple[int, int]:
            return 4096, 1

    a, b = (descriptor(Matrix("fp16"), *block) for block in ((TILE.m, TILE.k), (TILE.k, TILE.n)))
    off, recorded = (
        compile_for(
            "sm_90", persistent_matmul, a, b, Pointer("fp16"), 4096, 4096, 4096, prof,
            IN_LOOP=in_loop, STAGES=4, AT_MOST=at_most, num_warps=NUM_WARPS,
        )
        for prof in (None, a_buffer(regions))
    )  # fmt: skip
    assert recorded.spills == off.spills == 0
    assert recorded.count("HGMMA") == off.count("HGMMA") > 0
    # How many instructions the copies of a step become is up to ptxas.
    assert recorded.count("UTMALDG") > 0
    num_events = 5 if in_loop else 3
    per_event = 1 if at_most else 1 + RECORDS_OF_A_HEADER
    assert (
        recorded.count(STORE) - off.count(STORE) == 2 * RECORDS_OF_A_HEADER + num_events * per_event
    )
    assert off.count("GLOBALTIMER") == 0
