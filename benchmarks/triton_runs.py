"""All that is said of Triton on GPUs, in one command for a host with two of them; takes about five minutes.

    python -m benchmarks.triton_runs FOLDER
    python -m benchmarks.triton_runs FOLDER --only all-reduces

Leaves in FOLDER: triton_overhead.json (what the table in docs/triton.md is made of), triton_all_reduce.json (times of
the all-reduces with and without recording), summary.txt (what passed, how long it took, what reports say) and
runs.tgz (all logs, captures and reports). What needs one GPU runs on both at a time. The all-reduces alone (`--only
all-reduces`) take about 100 seconds.
"""

from __future__ import annotations

import json
import re
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from pathlib import Path

import torch
import triton

from benchmarks.runs import Runs, output_folder_and_parts

LIMIT_S = 150
NUMBERS = (8192, 32768, 131072, 1 << 20)
KINDS = "oneshot,twoshot,cpp-oneshot,cpp-twoshot,cpp"
# Of each kind and size: the first, and twenty batches of ten.
CALLS = 201
STORY_NUMBERS = 32768
STORY_CALLS = 101
ONE_GPU, ALL_REDUCES = PARTS = "one-gpu", "all-reduces"
RECORD = ["-m", "kprof_cli", "record", "--arena-size", "256MiB"]
COLLECTIVES = ["-m", "instrumented_kernels.triton_collectives"]
TESTS = ["-m", "pytest", "-m", "gpu", "-q", "-rs", "-p", "no:cacheprovider"]
TEST_FILES = ["tests/gpu/test_triton_workloads_gpu.py", "tests/gpu/test_triton_gpu.py"]
LAUNCHER = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


def on_one_gpu(run: Runs, out: Path) -> None:
    """The table of the docs, and the matmul whose warps have roles, with rings of two sizes."""
    results = str(out / "triton_overhead.json")
    run("overhead", ["-m", "benchmarks.triton_overhead", "--json", results], gpu=0)
    workload = ["python", "-m", "instrumented_kernels.triton_matmul"]
    for stages, waits in ((2, ["--waits"]), (4, ["--waits"]), (4, [])):
        name = f"matmul_{stages}_stages{'_waits' if waits else ''}"
        capture = str(run.folder / f"{name}.kprof")
        sizes = ["--stages", str(stages), "--calls", "5", *waits]
        run(name, [*RECORD, "-o", capture, "--", *workload, *sizes], gpu=0)
        run.report(name)


def on_the_other_gpu(run: Runs, _out: Path) -> None:
    """The tests for one GPU, but those of costs: the table has the same numbers."""
    run("tests_one_gpu", [*TESTS, "-k", "not costs", *TEST_FILES], gpu=1)


def all_reduces(run: Runs, out: Path, command: str) -> None:
    """On two GPUs: times by size, without recording and with it, and captures of one size to look into."""
    results: dict[str, object] = {
        "device": torch.cuda.get_device_name(0),
        "ranks": 2,
        "triton": triton.__version__,
        "date_utc": datetime.now(timezone.utc).strftime("%Y-%m-%d"),
        "command": command,
        "method": "time of the slowest rank, behind a call in which ranks meet; median of batches of ten "
        "calls, which are queued while the GPU sleeps",
        "batches": (CALLS - 1) // 10,
        "batches, recorded": (STORY_CALLS - 1) // 10,
    }
    sizes = ["--calls", str(CALLS), "--numbers", ",".join(map(str, NUMBERS))]
    text = run("times", [*LAUNCHER, *COLLECTIVES, "--kinds", KINDS, *sizes])
    results["us per call"] = times_in(text)
    for name, kinds in (("mixed", KINDS), ("triton_oneshot", "oneshot"), ("cpp_oneshot", "cpp-oneshot")):  # fmt: skip
        capture = str(run.folder / f"{name}.kprof")
        what = ["--kinds", kinds, "--calls", str(STORY_CALLS), "--numbers", str(STORY_NUMBERS)]
        text = run(
            name,
            [*RECORD, "--nproc", "2", "-o", capture, "--", "python", *COLLECTIVES, *what],
        )
        results[f"us per call, recorded, {name}"] = times_in(text)
        run.report(name)
    captures = [str(run.folder / f"{name}.kprof") for name in ("cpp_oneshot", "triton_oneshot")]
    run.reports.submit(run, "diff", ["-m", "kprof_cli", "diff", *captures])
    (out / "triton_all_reduce.json").write_text(json.dumps(results, indent=1) + "\n")


def times_in(text: str) -> dict[str, dict[str, dict[str, float]]]:
    """What the workload printed: us per call by kind and size."""
    times: dict[str, dict[str, dict[str, float]]] = {}
    pattern = (
        r"^([\w-]+): (\d+) numbers, ([\d.]+) us a call \(of \d+ batches; "
        r"fastest ([\d.]+), slowest ([\d.]+)\)"
    )
    for kind, numbers, *each_us in re.findall(pattern, text, re.M):
        names = ("median", "fastest", "slowest")
        by_name = dict(zip(names, map(float, each_us), strict=True))
        times.setdefault(kind, {})[f"{int(numbers) * 4} bytes"] = by_name
    return times


def main() -> None:
    out, parts = output_folder_and_parts(__doc__, PARTS)
    command = " ".join(["python -m benchmarks.triton_runs FOLDER", *_only(parts)])
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        run = Runs(Path(scratch), LIMIT_S)
        if ONE_GPU in parts:
            with ThreadPoolExecutor() as pool:
                done = [pool.submit(work, run, out) for work in (on_one_gpu, on_the_other_gpu)]
            for part in done:
                part.result()
        if ALL_REDUCES in parts:
            all_reduces(run, out, command)
        if len(parts) == len(PARTS):
            run("tests_two_gpus", [*TESTS, "-k", "two_gpus or share_a_trace", *TEST_FILES])
        run.reports.shutdown()
        reports = "".join(
            f"\n== {path.stem}\n{path.read_text(errors='replace')[-6000:]}"
            for path in sorted(run.folder.glob("*.txt"))
            if "json" not in path.stem
        )
        run.lines.append(f"all: {time.monotonic() - begin:.0f} s")
        run.pack(out, reports)


def _only(parts: Sequence[str]) -> list[str]:
    return [] if len(parts) == len(PARTS) else ["--only", *parts]


if __name__ == "__main__":
    main()
