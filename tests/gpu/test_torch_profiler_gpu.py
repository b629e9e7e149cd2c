"""The PyTorch profiler's trace of a real all-reduce: the blocks of every launch lie under its kernel's slice."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpu_processes import ROOT, record
from kprof.capture.directory import Capture
from kprof.export import write
from kprof.trace import Trace

pytestmark = pytest.mark.gpu

NUM_GPUS, NUM_CALLS = 2, 10
# Where the captures and the figures are kept, for a person to look at.
RESULTS_VARIABLE = "KPROF_RESULTS"


def spans(file: Path) -> dict[int, dict[str, list[tuple[float, float]]]]:
    """From an exported Chrome trace, per rank: kernel slices of the profiler and launches of ours, in ns, by start."""
    events = json.loads(file.read_text())["traceEvents"]
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    found: dict[int, dict[str, list[Any]]] = {}
    for event in sorted((e for e in events if e["ph"] == "X"), key=lambda e: e["ts"]):
        kind = event.get("cat")
        if kind in ("kernel", "launch"):
            rank = int(names[event["pid"]].split()[1])
            own = found.setdefault(rank, {"kernel": [], "launch": []})
            start_ns = event["ts"] * 1000
            own[kind].append((event["name"], start_ns, start_ns + event["dur"] * 1000))
    return found


@pytest.mark.parametrize("kernel", ["all_reduce", "all_to_all"])
def test_blocks_lie_under_the_kernels_that_ran_them(
    kernel: str, tmp_path: Path, require_gpus: Callable[[int], None]
) -> None:
    require_gpus(NUM_GPUS)
    run = tmp_path / "run.kprof"
    workload = ["python", str(ROOT / "tests/gpu/run_under_profiler.py"), "--target", "cuda"]
    options = ["--kernel", kernel, "--calls", str(NUM_CALLS)]
    record(run, "--nproc", str(NUM_GPUS), "--", *workload, *options)
    keep(kernel, run)
    check_blocks(run, tmp_path)


def check_blocks(run: Path, folder: Path) -> str:
    """Every launch with events lies under exactly one slice of its kernel, within the bound that the export says."""
    capture = Capture.open(run)
    assert len(capture.torch_traces()) == NUM_GPUS
    trace = Trace.open(capture)
    assert trace.alignment is not None
    summary = write(trace, folder / "run.json", torch_traces=capture.torch_traces())
    (notice,) = (n for n in summary.notices if "PyTorch" in n)
    found = re.search(r"within ([\d,]+) ns.* by (\d+) launches", notice)
    assert found is not None, notice
    bound_ns = int(found[1].replace(",", ""))
    assert "contradict" not in notice
    assert bound_ns < 20_000, notice
    launches = trace.frame("SELECT count(DISTINCT (rank, launch)) AS n FROM events")["n"][0]
    assert int(found[2]) == launches >= NUM_GPUS * NUM_CALLS
    for rank, own in spans(summary.path).items():
        for name, start_ns, end_ns in own["launch"]:
            symbol = re.compile(rf"(?<!\w){re.escape(name.rpartition('/')[2])}(?!\w)")
            under = [
                (k0, k1)
                for kernel_name, k0, k1 in own["kernel"]
                if symbol.search(kernel_name)
                and k0 - bound_ns <= start_ns
                and end_ns <= k1 + bound_ns
            ]
            assert len(under) == 1, (rank, name, start_ns, end_ns, notice)
    return notice


def keep(kernel: str, run: Path) -> None:
    folder = os.environ.get(RESULTS_VARIABLE)
    if folder:
        shutil.make_archive(str(Path(folder) / f"{kernel}-profiled"), "gztar", run.parent, run.name)
