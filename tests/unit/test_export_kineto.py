"""PyTorch profiler traces beside the events inside the kernels: on one axis, within the bound that is said."""

from __future__ import annotations

import gzip
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kprof.errors import ExportError
from kprof.export import ExportSummary, write
from kprof.trace import Trace
from synthetic import TraceBuilder

REGIONS = 'REGION(R_COPY, "copy", compute, bytes:32)\n'
# The profiler's clock is this far ahead of the device's: epoch nanoseconds, as Kineto writes them.
OFFSET_NS = 1_763_000_000_000_123_457
BASE_NS = 1_763_000_000_000_000_000
NUM_LAUNCHES = 5
Processor = Callable[[Path], Any]


def launch_times(rank: int) -> list[tuple[int, int]]:
    """Device times of the launches; uneven gaps, so that their order can be recognised."""
    return [
        (100_000 * i * i + 7_000 * rank, 100_000 * i * i + 7_000 * rank + 30_000)
        for i in range(1, NUM_LAUNCHES + 1)
    ]


def device_trace(num_ranks: int = 2, is_aligned: bool = True) -> Trace:
    build = TraceBuilder(REGIONS, num_ranks=num_ranks, is_aligned=is_aligned)
    for i in range(NUM_LAUNCHES):
        build.launch(i + 1, "all_reduce")
    for rank in range(num_ranks):
        for i, (start, end) in enumerate(launch_times(rank)):
            for block in range(3):
                build.span(
                    rank,
                    "copy",
                    start + block,
                    end - start - 2 * block,
                    block=block,
                    launch=i + 1,
                    bytes=1,
                )
    return build.trace()


def slice_at(
    category: str, name: str, pid: int, tid: int, begin_ns: int, ns: int
) -> dict[str, Any]:
    """As the profiler writes one."""
    named = {"ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid}
    return named | {"ts": begin_ns / 1000, "dur": ns / 1000}


def profile(
    rank: int,
    *,
    lead_ns: int = 900,
    tail_ns: int = 700,
    launches: slice = slice(None),
    offset_ns: int = OFFSET_NS,
) -> dict[str, Any]:
    """A profiler trace in which each kernel encloses its launch by `lead_ns` and `tail_ns`."""
    events: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "python"}},
        slice_at("kernel", "void at::native::other_kernel<4>(float*)", 0, 7, 1500, 2250),
    ]
    for start, end in launch_times(rank)[launches]:
        begin_ns = start - lead_ns + offset_ns - BASE_NS
        duration_ns = end - start + lead_ns + tail_ns
        name = "void ns::all_reduce<float, 8>(float*, int)"
        events.append(slice_at("kernel", name, rank, 7, begin_ns, duration_ns))
        launched = ("cuda_runtime", "cudaLaunchKernel", 42, 42)
        events.append(slice_at(*launched, begin_ns - 5000, 3000))
    return {
        "schemaVersion": 1,
        "baseTimeNanoseconds": BASE_NS,
        "distributedInfo": {"rank": rank, "world_size": 2},
        "traceEvents": events,
    }


def save(tmp_path: Path, content: dict[str, Any], name: str) -> Path:
    path = tmp_path / name
    data = json.dumps(content).encode()
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return path


def profiles(tmp_path: Path, **options: Any) -> list[Path]:
    return [
        save(tmp_path, profile(rank, **options), f"trace_rank{rank}.json.gz") for rank in range(2)
    ]


def bound_of(notices: tuple[str, ...]) -> int:
    (notice,) = (n for n in notices if "PyTorch" in n)
    found = re.search(r"within ([\d,]+) ns", notice)
    assert found is not None
    return int(found[1].replace(",", ""))


def test_blocks_lie_under_the_kernels_that_ran_them(tmp_path: Path, processor: Processor) -> None:
    summary = write(device_trace(), tmp_path / "run.pftrace", torch_traces=profiles(tmp_path))
    loaded = processor(summary.path)
    assert loaded.import_errors() == []
    rows = loaded.rows(
        """WITH tree AS (
               SELECT s.ts, s.ts + s.dur AS end_ts, s.name, s.category, t.name AS line, root.name AS rank
               FROM slice s JOIN track t ON t.id = s.track_id JOIN track root ON root.id = t.parent_id)
           SELECT b.rank, b.line, k.line, k.name FROM tree b
           JOIN tree k ON k.rank = b.rank AND k.category = 'kernel' AND k.ts <= b.ts AND k.end_ts >= b.end_ts
           WHERE b.name = 'copy' ORDER BY b.rank, b.line, b.ts"""
    )
    assert rows == [
        (
            f"Rank {rank} (host0, device {rank})",
            f"block {block}",
            "PyTorch stream 7",
            "void ns::all_reduce<float, 8>(float*, int)",
        )
        for rank in range(2)
        for block in range(3)
        for _ in range(NUM_LAUNCHES)
    ]
    # The kernel encloses the launch by 900 + 700 ns: no offset can be known better than half of
    # that.
    assert bound_of(summary.notices) == 800
    assert (
        loaded.value("SELECT count(*) FROM slice WHERE name = 'cudaLaunchKernel'")
        == 2 * NUM_LAUNCHES
    )


def test_a_profiler_that_saw_only_some_launches_is_matched_by_their_rhythm(tmp_path: Path) -> None:
    files = profiles(tmp_path, launches=slice(2, 4))
    summary = write(device_trace(), tmp_path / "run.json", torch_traces=files)
    assert bound_of(summary.notices) == 800
    assert any("by 4 launches seen" in notice for notice in summary.notices)


def offsets_drawn(summary: ExportSummary) -> dict[int, list[float]]:
    """By rank, how long each kernel began before its first block, in ns, as drawn."""
    content = json.loads(summary.path.read_text())["traceEvents"]
    ranks = [e["pid"] for e in content if e["name"] == "process_name"]
    drawn = {}
    for pid in ranks:
        own = [e for e in content if e.get("pid") == pid and e["ph"] == "X"]
        kernels = sorted(e["ts"] for e in own if "all_reduce<" in e["name"])
        launches = sorted(e["ts"] for e in own if e.get("cat") == "launch")
        drawn[pid] = [
            (launch - kernel) * 1000 for launch, kernel in zip(launches, kernels, strict=True)
        ]
    return drawn


def test_unaligned_ranks_are_tied_one_by_one(tmp_path: Path) -> None:
    files = [
        save(tmp_path, profile(0), "r0.json"),
        save(tmp_path, profile(1, offset_ns=OFFSET_NS + 10**9, lead_ns=100), "r1.json"),
    ]
    summary = write(device_trace(is_aligned=False), tmp_path / "run.json", torch_traces=files)
    assert any("within 800 ns at worst (rank 0), by 10 launches" in n for n in summary.notices)
    drawn = offsets_drawn(summary)
    assert drawn[0] == pytest.approx([800] * NUM_LAUNCHES, abs=1)
    assert drawn[1] == pytest.approx([400] * NUM_LAUNCHES, abs=1)


def test_ranks_on_one_clock_narrow_each_other_within_the_clock_error(tmp_path: Path) -> None:
    files = [
        save(tmp_path, profile(0, lead_ns=5000, tail_ns=5000), "r0.json"),
        save(tmp_path, profile(1, lead_ns=300, tail_ns=100), "r1.json"),
    ]
    trace = device_trace()
    summary = write(trace, tmp_path / "run.json", torch_traces=files)
    assert trace.alignment is not None
    error_ns = trace.alignment.bound_between_ns(0, 1)
    assert bound_of(summary.notices) == 200 + error_ns
    assert offsets_drawn(summary)[0] == pytest.approx([4900] * NUM_LAUNCHES, abs=1)


def test_ranks_whose_profilers_disagree_keep_their_own_offsets(tmp_path: Path) -> None:
    files = [
        save(tmp_path, profile(0), "r0.json"),
        save(tmp_path, profile(1, offset_ns=OFFSET_NS + 50_000), "r1.json"),
    ]
    summary = write(device_trace(), tmp_path / "run.json", torch_traces=files)
    assert bound_of(summary.notices) == 800
    for drawn in offsets_drawn(summary).values():
        assert drawn == pytest.approx([800] * NUM_LAUNCHES, abs=1)


def shifted(content: dict[str, Any], shift_ns: Callable[[float], float]) -> dict[str, Any]:
    """A profile whose kernels come later by `shift_ns` of their time."""
    for event in content["traceEvents"]:
        if event.get("cat") == "kernel" and "all_reduce" in event["name"]:
            event["ts"] += shift_ns(event["ts"] * 1000) / 1000
    return content


def test_a_drift_between_the_clocks_is_taken_out(tmp_path: Path) -> None:
    drift = 4e-3
    content = shifted(profile(0), lambda ns: drift * (ns - 100_000))
    summary = write(
        device_trace(1), tmp_path / "run.json", torch_traces=[save(tmp_path, content, "r.json")]
    )
    (notice,) = (n for n in summary.notices if "PyTorch" in n)
    assert re.search(r"drifting by (39|40)\d\d\.\d\d us per second", notice)
    assert bound_of(summary.notices) <= 800
    for early_ns in offsets_drawn(summary)[0]:
        assert 0 <= early_ns <= 1600


def test_launches_that_contradict_each_other_are_said(tmp_path: Path) -> None:
    jumps = iter([0, 9000, 0, 9000, 0])
    content = shifted(profile(0), lambda _: next(jumps))
    summary = write(
        device_trace(1), tmp_path / "run.json", torch_traces=[save(tmp_path, content, "r.json")]
    )
    assert any("on rank 0 they contradict each other" in notice for notice in summary.notices)
    assert bound_of(summary.notices) >= (9000 - 1600) / 2


def test_stretches_of_one_run_are_matched_one_by_one(tmp_path: Path) -> None:
    """A profiler with a schedule: it saw launches 0 and 1, then 3 and 4."""
    files = [
        save(tmp_path, profile(0, launches=seen), f"torch-rank-00000{number}.json.gz")
        for seen, number in ((slice(0, 2), ""), (slice(3, 5), "-1"))
    ]
    summary = write(device_trace(1), tmp_path / "run.json", torch_traces=files)
    assert bound_of(summary.notices) == 800
    assert any("by 4 launches seen" in notice for notice in summary.notices)
    events = json.loads(summary.path.read_text())["traceEvents"]
    threads = [e["args"]["name"] for e in events if e["name"] == "thread_name"]
    assert threads.count("PyTorch stream 7") == 1


def test_a_path_before_the_name_is_not_part_of_the_symbol(tmp_path: Path) -> None:
    build = TraceBuilder(REGIONS, num_ranks=1)
    build.launch(1, "ours/all_reduce")
    build.span(0, "copy", 107_000, 100, launch=1)
    files = [save(tmp_path, profile(0, launches=slice(0, 1)), "r0.json")]
    summary = write(build.trace(), tmp_path / "run.json", torch_traces=files)
    assert any("by 1 launches" in notice for notice in summary.notices)


def test_a_kernel_launched_once_takes_the_place_that_others_show(tmp_path: Path) -> None:
    """The profiler also saw a warm-up call, in which `once` ran too."""
    times = {"often": [500_000, 620_000, 780_000], "once": [700_000]}
    build = TraceBuilder(REGIONS, num_ranks=1)
    events, launch = [], 0
    for name, starts in times.items():
        for start in starts:
            launch += 1
            build.launch(launch, name)
            build.span(0, "copy", start, 1000, launch=launch)
        for start in [*starts, starts[0] - 400_000]:
            ts = (start - 500) / 1000
            events.append({"ph": "X", "cat": "kernel", "name": name, "tid": 7, "ts": ts, "dur": 2})
    content = {"baseTimeNanoseconds": BASE_NS, "traceEvents": events}
    files = [save(tmp_path, content, "r0.json")]
    summary = write(build.trace(), tmp_path / "run.json", torch_traces=files)
    assert bound_of(summary.notices) == 500


def test_without_gpu_kernels_a_slice_with_the_name_of_a_kernel_encloses_it(tmp_path: Path) -> None:
    content = profile(0)
    for event in content["traceEvents"]:
        if event.get("cat") == "kernel":
            event["cat"] = "user_annotation"
    files = [save(tmp_path, content, "r0.json")]
    assert bound_of(write(device_trace(1), tmp_path / "r.json", torch_traces=files).notices) == 800


def test_a_selection_is_tied_by_the_whole_capture_and_shows_its_part(tmp_path: Path) -> None:
    part = device_trace().select(launches=(3,), blocks=(1,))
    summary = write(part, tmp_path / "run.json", torch_traces=profiles(tmp_path))
    events = json.loads(summary.path.read_text())["traceEvents"]
    assert len([e for e in events if "all_reduce<" in e["name"]]) == 2
    assert bound_of(summary.notices) == 800
    assert any("by 10 launches" in notice for notice in summary.notices)


def test_a_name_within_a_name_is_another_kernel(tmp_path: Path) -> None:
    content = profile(0)
    for event in content["traceEvents"]:
        event["name"] = event["name"].replace("all_reduce<", "all_reduce_v2<")
    with pytest.raises(ExportError, match="no kernel of rank 0 is in both"):
        write(
            device_trace(1),
            tmp_path / "run.pftrace",
            torch_traces=[save(tmp_path, content, "t.json")],
        )
    assert not (tmp_path / "run.pftrace").exists()


def slice_of(ts: str, dur: str = "1") -> bytes:
    return f'{{"traceEvents": [{{"ph": "X", "ts": {ts}, "dur": {dur}}}]}}'.encode()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b"[]",
        b"\x1f\x8b",
        b'{"traceEvents": ' + b"[" * 100_000,
        b'{"baseTimeNanoseconds": 9223372036854775807, "traceEvents": [{"ph": "X", "ts": 1}]}',
        slice_of('"now"'),
        slice_of("1e999999999"),
        slice_of('"-Infinity"'),
        slice_of('"nan"'),
        slice_of("9" * 100_000),
        slice_of("1", "-1"),
        slice_of("1", "1e17"),
        gzip.compress(bytes(1 << 25)),
        gzip.compress(slice_of("1"))[:-9],
        gzip.compress(slice_of("1")) + b"\x1f\x8bgarbage",
    ],
    ids=range(16),
)
def test_what_is_no_profiler_trace_is_refused(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    file.write_bytes(content)
    with pytest.raises(ExportError, match="as a trace of the PyTorch profiler"):
        write(device_trace(1), tmp_path / "run.pftrace", torch_traces=[file])


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "trace.json")
    with pytest.raises(ExportError, match="it is a pipe"):
        write(device_trace(1), tmp_path / "o.pftrace", torch_traces=[tmp_path / "trace.json"])
