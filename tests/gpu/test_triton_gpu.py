"""Triton kernels recorded on one GPU, and workloads under `kprof record`: every event once, what it costs, what is lost when
the arena is full; beside C++ on two GPUs, by warps with roles, and made by torch.compile."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gpu_processes import ROOT, record
from kprof import abi
from kprof.recording.launcher.record import session
from kprof.recording.rank.recorder import Recorder
from kprof.trace import Trace

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        importlib.util.find_spec("triton") is None,
        reason="Triton is missing: pip install torch triton",
    ),
]


if TYPE_CHECKING:
    from benchmarks.probe_overhead.bench import Bench
    from benchmarks.triton_overhead.bench import TritonBench


REPEATS = 60


@pytest.fixture(scope="module")
def benches() -> tuple[Bench, TritonBench]:
    from kprof.devices.targets import Target, count_devices, find_compiler

    if find_compiler(Target.CUDA) is None or count_devices(Target.CUDA) < 1:
        pytest.skip("needs an NVIDIA GPU and nvcc")
    from benchmarks.probe_overhead.bench import Bench
    from benchmarks.triton_overhead.bench import TritonBench

    cpp = Bench("cuda:0")
    return cpp, TritonBench("cuda:0", cpp.arena)


@pytest.mark.parametrize("scheme", ["kprof", "kprof, no chunk reserved", "kprof, without at_most"])
@pytest.mark.parametrize("programs_per_sm", [2, 4])
def test_every_row_is_recorded_once(
    benches: tuple[Bench, TritonBench], scheme: str, programs_per_sm: int
) -> None:
    from benchmarks.probe_overhead.bench import NUM_TOKENS
    from benchmarks.triton_overhead.bench import SCHEMES

    bench = benches[1]
    bench.reset()
    num_programs = programs_per_sm * bench.num_sms
    bench.copy(SCHEMES[scheme], num_programs)()
    events, decoder, _ = bench.decoded()
    assert sorted(events["payload"]) == list(range(NUM_TOKENS))
    assert (events["block"] == events["payload"] % num_programs).all()
    assert (events["duration_ns"] < 1e9).all()
    assert decoder.tally.counts.dropped == decoder.tally.counts.torn_chunks == 0
    assert events["hw_id"].nunique() == bench.num_sms


def test_a_program_records_its_matmul_in_order(benches: tuple[Bench, TritonBench]) -> None:
    from benchmarks.triton_overhead.bench import MATMUL_SIZE, SCHEMES, TILE

    bench = benches[1]
    bench.reset()
    bench.matmul(SCHEMES["kprof"])()
    events, _, _ = bench.decoded()
    num_tiles = MATMUL_SIZE**2 // (TILE["M"] * TILE["N"])
    assert events.groupby("region").size().tolist() == [num_tiles, num_tiles]
    events["end_ns"] = events["start_ns"] + events["duration_ns"]
    first, second = (
        events[events["region"] == region].set_index("block")
        for region in sorted(events["region"].unique())
    )
    assert sorted(first.index) == sorted(second.index) == list(range(num_tiles))
    assert (first["end_ns"] == second["start_ns"].reindex(first.index)).all()


def test_the_copy_costs_what_the_cpp_probe_costs(benches: tuple[Bench, TritonBench]) -> None:
    """Within half a point of the C++ probe, both with one event per row."""
    from benchmarks.triton_overhead.__main__ import copy_table

    cpp, bench = benches
    for programs_per_sm in (2, 4):
        table: dict[str, Any] = copy_table(cpp, bench, programs_per_sm, REPEATS)
        of_cpp = table["C++, kprof per warp"]["slowdown_percent"]
        assert table["kprof"]["slowdown_percent"] <= of_cpp + 0.5, table


def test_the_matmul_costs_at_most_one_percent(benches: tuple[Bench, TritonBench]) -> None:
    from benchmarks.triton_overhead.__main__ import matmul_table

    table: dict[str, Any] = matmul_table(benches[1], REPEATS)
    assert table["kprof"]["slowdown_percent"] <= 1.0, table


def test_a_full_arena_counts_what_it_drops_by_region(
    tmp_path: Path, benches: tuple[Bench, TritonBench]
) -> None:
    from sample_kernels import mark_regions, marks

    import kprof.triton as kp

    with session(tmp_path / "full.kprof") as directory:
        arena_bytes = abi.CHUNKS_OFFSET + 64 * abi.CHUNK_BYTES
        recorder = Recorder(
            directory, rank=0, world_size=1, device="cuda:0", arena_bytes=arena_bytes
        )
        marks[(500,)](kp.buffer("marks", 500, mark_regions, recorder=recorder), 1000)
        marks[(500,)](kp.buffer("marks", None, mark_regions, recorder=recorder), 1000)
        recorder.close()
    rank = Trace.open(tmp_path / "full.kprof").ranks[0]
    assert 0 < rank.counts.recorded <= 64 * abi.RECORDS_PER_CHUNK
    assert rank.counts.recorded + rank.counts.dropped == 2 * 500 * 1500
    assert {loss.region for loss in rank.losses} == {"done", "left"}


def test_partitions_of_a_gluon_kernel_have_a_track_each(
    tmp_path: Path, benches: tuple[Bench, TritonBench]
) -> None:
    import torch
    from gluon_kernels import NUM_STEPS, handed_over, regions

    import kprof.triton as kp

    out = torch.zeros(8, dtype=torch.int32, device="cuda")
    with session(tmp_path / "gluon.kprof") as directory:
        recorder = Recorder(directory, rank=0, world_size=1, device="cuda:0", arena_bytes=1 << 20)
        prof = kp.buffer("handed_over", 8, regions, tracks_per_program=2, recorder=recorder)
        handed_over[(8,)](out, NUM_STEPS, prof, num_warps=4)
        recorder.close()
    events = Trace.open(tmp_path / "gluon.kprof").frame(
        "SELECT region, block, warp, count(*) AS n FROM events GROUP BY ALL ORDER BY ALL"
    )
    rows = list(events.itertuples(index=False, name=None))
    assert rows == sorted(
        (region, block, warp, NUM_STEPS)
        for region, warp in (("load", 4), ("math", -1))
        for block in range(8)
    )


@pytest.mark.parametrize("memory", ["kprof", "torch"])
def test_collectives_of_two_gpus_are_right_and_joined(
    tmp_path: Path, require_gpus: Callable[[int], None], memory: str
) -> None:
    """The workload compares every result with float64. Every send has its wait, and no wait ends too early."""
    require_gpus(2)
    workload = ["python", "-m", "instrumented_kernels.triton_collectives", "--target", "cuda"]
    sizes = ["--calls", "20", "--numbers", "1000000", "--tokens", "2048", "--memory", memory]
    trace = record(tmp_path / "run.kprof", "--nproc", "2", "--", *workload, *sizes)
    counts = trace.frame("SELECT category, count(*) AS n FROM events GROUP BY 1").set_index(
        "category"
    )["n"]
    num_flows = int(trace.frame("SELECT count(*) AS n FROM flows")["n"][0])
    assert num_flows == counts["send"] == counts["wait"]
    assert trace.alignment is not None
    bound_ns = trace.alignment.bound_between_ns(0, 1)
    early = trace.frame(
        "SELECT count(*) AS n FROM flows WHERE wait_end_ns < send_start_ns - ?", [bound_ns]
    )
    assert early["n"][0] == 0
    assert all(rank.counts.dropped == 0 for rank in trace.ranks)


def test_the_page_leads_to_its_finding_on_a_gpu(
    tmp_path: Path, require_gpus: Callable[[int], None]
) -> None:
    """docs/triton.md, followed literally."""
    require_gpus(1)
    from page import finding, follow

    assert re.search(finding(), follow(tmp_path))


def test_a_tuned_kernel_is_recorded_in_its_best_configuration_only(
    tmp_path: Path, benches: tuple[Bench, TritonBench]
) -> None:
    import torch
    from tuned_kernel import regions, tuned

    import kprof.triton as kp

    x = torch.zeros(1 << 20, device="cuda")
    with session(tmp_path / "tuned.kprof") as directory:
        recorder = Recorder(directory, rank=0, world_size=1, device="cuda:0")
        prof = kp.buffer("tuned", None, regions, recorder=recorder)
        tuned[lambda meta: (x.numel() // meta["BLOCK"],)](x, prof)
        recorder.close()
    assert x.sum().item() == x.numel()
    trace = Trace.open(tmp_path / "tuned.kprof")
    block = tuned.best_config.kwargs["BLOCK"]
    assert trace.ranks[0].counts.recorded == x.numel() // block
    assert trace.frame("SELECT DISTINCT payload FROM events")["payload"].tolist() == [block]


# The all-reduce in C++ records cycles, which the trace puts on the clock of the others. Its steps
# are 32 ns.
CYCLES_ON_THE_CLOCK_NS = 100


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
