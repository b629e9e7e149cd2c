"""A real trace of the PyTorch profiler, kept in the capture by the recorder, above the blocks of the CPU target."""

from __future__ import annotations

import gzip
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import kprof
from in_process import run_kprof
from kprof.capture.directory import Capture
from kprof.errors import RecorderError
from kprof.recording.launcher.record import session
from kprof.recording.rank.recorder import Recorder

pytest.importorskip("torch", reason="the profiler is PyTorch's")

ROOT = Path(__file__).parents[2]
NUM_RANKS, NUM_CALLS = 2, 4


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of the all-to-all, which launches several kernels in each call."""
    output = tmp_path_factory.mktemp("profiled") / "run.kprof"
    record = ["record", "--nproc", NUM_RANKS]
    workload = ["python", str(ROOT / "tests/gpu/run_under_profiler.py"), "--target", "cpu"]
    options = ["--calls", str(NUM_CALLS), "--kernel", "all_to_all"]
    done = run_kprof([*record, "-o", output, "--", *workload, *options], folder=ROOT)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return output


def export(run: Path, output: Path, *options: str) -> str:
    done = run_kprof(["export", run, "-o", output, *options])
    assert done.returncode == 0, done.stderr
    return done.stderr


def test_the_capture_keeps_a_trace_of_every_rank(run: Path) -> None:
    names = [path.name for path in Capture.open(run).torch_traces()]
    assert names == [f"torch-rank-{rank:05d}.json.gz" for rank in range(NUM_RANKS)]


def test_export_draws_every_launch_under_the_slice_that_made_it(
    run: Path, tmp_path: Path, processor: Callable[[Path], Any]
) -> None:
    file = tmp_path / "run.pftrace"
    notices = export(run, file)
    found = re.search(r"within ([\d,]+) ns .* by (\d+) launches", notices)
    assert found is not None, notices
    bound_ns = int(found[1].replace(",", ""))
    launches = kprof.open(run).frame("SELECT count(*) AS n FROM launches")["n"][0]
    assert int(found[2]) == launches > 0
    # A bound of whole calls would show anything under anything.
    assert bound_ns < 1_000_000
    loaded = processor(file)
    assert loaded.import_errors() == []
    rows = loaded.rows(
        f"""WITH tree AS (
                SELECT s.*, s.ts + s.dur AS end_ts, t.name AS line, t.parent_id AS rank
                FROM slice s JOIN track t ON t.id = s.track_id),
            seen AS (
                SELECT *, row_number() OVER (PARTITION BY rank, name ORDER BY ts DESC) AS place
                FROM tree WHERE line GLOB 'PyTorch *'),
            launched AS (
                SELECT *, row_number() OVER (PARTITION BY rank, name ORDER BY ts DESC) AS place
                FROM tree WHERE category = 'launch')
            SELECT count(*), sum(seen.ts - {bound_ns} <= launched.ts AND launched.end_ts <= seen.end_ts + {bound_ns})
            FROM launched JOIN seen USING (rank, name, place)"""
    )
    assert rows == [(launches, launches)]


def test_export_leaves_the_profiler_out_when_told_to(
    run: Path, tmp_path: Path, processor: Callable[[Path], Any]
) -> None:
    assert "PyTorch" not in export(run, tmp_path / "run.pftrace", "--no-torch")
    lines = "SELECT count(*) FROM track WHERE name GLOB 'PyTorch *'"
    assert processor(tmp_path / "run.pftrace").value(lines) == 0


def test_a_part_of_a_run_is_tied_too(
    run: Path, tmp_path: Path, processor: Callable[[Path], Any]
) -> None:
    notices = export(run, tmp_path / "run.pftrace", "--ranks", "1", "--launches", "0")
    assert "PyTorch" in notices
    loaded = processor(tmp_path / "run.pftrace")
    assert loaded.column("SELECT DISTINCT name FROM slice WHERE category = 'user_annotation'") == [
        kprof.open(run).frame("SELECT kernel FROM launches WHERE launch = 0")["kernel"][0]
    ]


def recorder_in(directory: Path) -> Recorder:
    return Recorder(directory, rank=0, world_size=1, regions=["copy"])


def test_files_of_several_stretches_are_kept(tmp_path: Path) -> None:
    plain = tmp_path / "trace.json"
    plain.write_text(json.dumps({"traceEvents": []}))
    packed = tmp_path / "trace.json.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    with session(tmp_path / "run.kprof") as directory:
        recorder = recorder_in(directory)
        recorder.torch_trace(plain)
        recorder.torch_trace(packed)
        recorder.close()
    kept = Capture.open(tmp_path / "run.kprof").torch_traces()
    assert [path.name for path in kept] == [
        "torch-rank-00000-1.json.gz",
        "torch-rank-00000.json.gz",
    ]
    assert {gzip.decompress(path.read_bytes()) for path in kept} == {plain.read_bytes()}


HANDLER = """
import sys
from pathlib import Path
import torch
from torch.profiler import ProfilerActivity, profile, schedule
from kprof.recording.launcher.record import session
from kprof.recording.rank.recorder import Recorder

with session(Path(sys.argv[1])) as directory:
    recorder = Recorder(directory, rank=0, world_size=1, regions=["copy"])
    steps = schedule(wait=0, warmup=1, active=1, repeat=2)
    with profile(
        activities=[ProfilerActivity.CPU], schedule=steps, on_trace_ready=recorder.torch_trace
    ) as profiler:
        for _ in range(4):
            torch.zeros(4).add_(1)
            profiler.step()
    recorder.close()
"""


def test_a_handler_of_the_profiler_keeps_each_of_its_traces(tmp_path: Path) -> None:
    # In a process of its own: where warnings are errors, a warning of PyTorch's profiler crashes
    # it.
    output = tmp_path / "run.kprof"
    done = subprocess.run(
        [sys.executable, "-c", HANDLER, str(output)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    kept = Capture.open(output).torch_traces()
    assert len(kept) == 2
    for path in kept:
        assert json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]


@pytest.mark.parametrize("what", [3, "missing.json"])
def test_what_is_no_profile_is_refused_and_leaves_nothing(what: Any, tmp_path: Path) -> None:
    with session(tmp_path / "run.kprof") as directory:
        recorder = recorder_in(directory)
        with pytest.raises(RecorderError, match="rank 0: cannot keep the PyTorch profiler's trace"):
            recorder.torch_trace(what)
        recorder.close()
        with pytest.raises(RecorderError, match="after the recorder was closed"):
            recorder.torch_trace(what)
    assert [path.name for path in (tmp_path / "run.kprof").iterdir() if "torch" in path.name] == []
