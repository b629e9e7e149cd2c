"""All that is asked of the kernels for one GPU on one, in one command of at most seven and a half minutes.

    python -m benchmarks.single_gpu_runs FOLDER

Leaves in FOLDER: single_gpu.json (the kernels beside their peers, and what recording costs), sweeps.json (other grids and
roles), summary.txt (what passed, and how long it took) and runs.tgz (all logs, and captures of every step of the ladders
with their reports). What is timed has the GPU to itself, and comes first; what time is left for comes last.
"""

from __future__ import annotations

import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.runs import Runs, output_folder

LIMIT_S = 240
TOTAL_S = 440
BENCHMARK = ["-m", "benchmarks.single_gpu"]
TESTS = ["-m", "pytest", "-m", "gpu", "-q", "-rs", "-p", "no:cacheprovider"]
TEST_FILE = "tests/gpu/test_single_gpu_kernels_gpu.py"
# Parts of that file that run side by side: each starts many processes, one after the other.
KERNELS = ("skinny_gemm", "moe_align_sort", "rms_norm_fp8", "swiglu_fp8")
STEPS = ("tiled", "split_k", "specialised", "tuned", "direct", "ring", "groups")
PARTS = (
    *(f"skinny_gemm and {step}" for step in STEPS),
    *KERNELS[1:],
    f"not ({' or '.join(KERNELS)})",
)
RECORD = ["-m", "kprof_cli", "record", "--arena-size", "256MiB"]
GEMM = "skinny_gemm --tokens 8 --rows 2304 --depth 16384"
# The steps of the ladders, and the roles that the report of `specialised` has a promise for.
CAPTURES = {
    "moe_align_sort-single_block": "moe_align_sort --variant single_block --tokens 8192",
    "moe_align_sort-dcp": "moe_align_sort --variant dcp --tokens 262144",
    "moe_align_sort-dcp-hot": "moe_align_sort --variant dcp --tokens 262144 --hot 0.5",
    "moe_align_sort-chained": "moe_align_sort --variant chained --tokens 262144",
    "moe_align_sort-chained-hot": "moe_align_sort --variant chained --tokens 262144 --hot 0.5",
    **{
        f"rms_norm_fp8-{name}": f"rms_norm_fp8 --variant {name} --rows 512"
        for name in ("pointwise", "vectors", "shared", "tuned")
    },
    **{
        f"swiglu_fp8-{name}": f"swiglu_fp8 --variant {name} --rows 512"
        for name in ("pointwise", "vectors", "packed", "tuned")
    },
    **{
        f"skinny_gemm-{name}": f"{GEMM} --variant {name}" for name in STEPS if name != "specialised"
    },
    **{
        f"skinny_gemm-specialised-{producers}-{slots}": f"{GEMM} --variant specialised "
        f"--producers {producers} --slots {slots}"
        for producers, slots in ((2, 2), (4, 2), (2, 4))
    },
    "skinny_gemm-specialised-2-2-tokens": f"{GEMM} --variant specialised --producers 2 --slots 2 "
    "--token-producers 2",
}


def workload(name: str) -> list[str]:
    """The workload of a capture, as arguments of Python."""
    return ["-m", *f"instrumented_kernels.{CAPTURES[name]}".split()]


def record(run: Runs, name: str) -> None:
    """A capture of a few calls from one graph, and its reports."""
    capture = ["-o", str(run.folder / f"{name}.kprof"), "--", "python", *workload(name)]
    run(name, [*RECORD, *capture, "--target", "cuda", "--graph"])
    run.report(name)


def tests(run: Runs) -> None:
    """The tests on GPUs in parts, side by side."""
    with ThreadPoolExecutor(len(PARTS)) as pool:
        for number, part in enumerate(PARTS):
            pool.submit(run, f"tests_{number}", [*TESTS, TEST_FILE, "-k", part])


def main() -> None:
    out = output_folder(__doc__)
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        run = Runs(Path(scratch), LIMIT_S, TOTAL_S)
        run("times", [*BENCHMARK, "--output", str(out / "single_gpu.json")])
        # One after the other, so that a trace shows one kernel.
        for name in CAPTURES:
            record(run, name)
        tests(run)
        run.reports.shutdown()
        order = [word for name in KERNELS for word in ("--kernel", name)]
        sweeps = ["--only-sweeps", *order, "--output", str(out / "sweeps.json")]
        run("sweeps", [*BENCHMARK, *sweeps])
        run.lines.append(f"{time.monotonic() - begin:.0f} s in all")
        run.pack(out)


if __name__ == "__main__":
    main()
