"""All that is asked of GPUs, in one command of at most half an hour, or parts of it.

    python -m benchmarks.gpu_runs FOLDER [--only tests] [--target cpu]

tests         tests/gpu as a whole, with a limit of ten minutes for the tests of graphs
hangs         the thirteen planted hangs
collectives   all-reduce and all-to-all beside NCCL and torch's symmetric memory, and what recording costs
all_reduces   all-reduces in Triton beside those in C++, by size, not recorded and recorded (100 seconds)
recordings    every step of the collectives' ladders, with the promise of each report beside the measured step
clocks        the bound between two GPUs, ten thousand held-out rounds, waits that ended early (2 to 4 minutes)
single_gpu    the kernels for one GPU: their peers, what recording costs, other grids and roles; captures of their ladders
triton        what recording costs in Triton, and captures of the matmul whose warps have roles

The last two parts need one GPU, the others two. Leaves in FOLDER what each part leaves, summary.txt and runs.tgz with
all logs. On the CPU target the parts that need no GPU run with small inputs: that shows whether the script works.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

from benchmarks import harness
from benchmarks.runs import Runs

LIMIT_S = 600
TOTAL_S = 1740
TESTS = ["-m", "pytest", "-m", "gpu", "-q", "-rs", "-p", "no:cacheprovider"]
GRAPHS = "tests/gpu/test_graphs_gpu.py"
TEAM = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
RECORD = ["-m", "kprof_cli", "record", "--arena-size", "256MiB"]
TRITON_KINDS = "oneshot,twoshot,cpp-oneshot,cpp-twoshot,cpp"
# Of each kind and size: the first, and twenty batches of ten; where they are recorded ten.
CALLS, RECORDED_CALLS = 201, 101
# Name of a log, and what Python runs.
Command = tuple[str, list[str]]


def tests(_out: Path) -> Iterator[Command]:
    """The tests on GPUs; those that need two are what one GPU could not show."""
    yield "tests_graphs", [*TESTS, GRAPHS]
    yield "tests_others", [*TESTS, "tests/gpu", "--ignore", GRAPHS]


def hangs(out: Path) -> Iterator[Command]:
    """What `kprof record` says of planted hangs."""
    yield "hangs", ["-m", "benchmarks.hangs_on_gpus", str(out / "hangs")]


def collectives(out: Path) -> Iterator[Command]:
    """Both collectives, and what recording short calls costs, with its floor."""
    all_reduce = [*TEAM, "-m", "benchmarks.all_reduce"]
    yield "all_reduce", [*all_reduce, "compare", "--output", str(out / "all_reduce_2_ranks.json")]
    yield "all_reduce_cost", [*all_reduce, "cost", "--output", str(out / "all_reduce_cost.json")]
    yield (
        "all_to_all",
        [*TEAM, "-m", "benchmarks.all_to_all", "--output", str(out / "all_to_all_2_ranks.json")],
    )


def all_reduces(out: Path) -> Iterator[Command]:
    """The table in the README of triton_collectives. What the commands print is in triton_all_reduce.json."""
    module = ["-m", "instrumented_kernels.triton_collectives", "--kinds"]
    sizes = ["--calls", str(CALLS), "--numbers", "8192,32768,131072,1048576"]
    yield "not_recorded", [*TEAM, *module, TRITON_KINDS, *sizes]
    sizes = ["--calls", str(RECORDED_CALLS), "--numbers", "32768"]
    for name, kinds in (("mixed", TRITON_KINDS), ("triton_oneshot", "oneshot"), ("cpp_oneshot", "cpp-oneshot")):  # fmt: skip
        ranks = ["--nproc", "2", "-o", str(out / f"{name}.kprof")]
        yield f"recorded_{name}", [*RECORD, *ranks, "--", "python", *module, kinds, *sizes]


def recordings(out: Path) -> Iterator[Command]:
    """Captures of both ladders."""
    folder = str(out / "recordings")
    yield "recordings", ["-m", "benchmarks.recordings", folder, "--ranks", "2"]


def clocks(out: Path) -> Iterator[Command]:
    """The bound between two GPUs."""
    output = ["--seconds", "40", "--output", str(out / "clock_alignment_2_gpus.json")]
    output += ["--samples", str(out / "clock_alignment_2_gpus_samples.json")]
    yield "clocks", ["-m", "benchmarks.clock_alignment", "--nproc", "2", *output]


def single_gpu(out: Path) -> Iterator[Command]:
    """The tables in the READMEs of these kernels."""
    benchmark = ["-m", "benchmarks.single_gpu", "--output"]
    yield "single_gpu", [*benchmark, str(out / "single_gpu.json")]
    yield "ladders", ["-m", "benchmarks.recordings", str(out / "ladders")]
    yield "sweeps", [*benchmark, str(out / "sweeps.json"), "--only-sweeps"]


def triton(out: Path) -> Iterator[Command]:
    """The table in docs/triton.md, and the matmul with rings of two sizes."""
    yield "overhead", ["-m", "benchmarks.triton_overhead", "--json", str(out / "triton_overhead.json")]  # fmt: skip
    for name, options in (("2_waits", "--stages 2 --waits"), ("4_waits", "--stages 4 --waits"), ("4", "--stages 4")):  # fmt: skip
        matmul = ["python", "-m", "instrumented_kernels.triton_matmul", "--calls", "5"]
        capture = ["-o", str(out / f"matmul_{name}.kprof"), "--", *matmul, *options.split()]
        yield f"matmul_{name}", [*RECORD, *capture]


_PARTS = (tests, hangs, collectives, all_reduces, recordings, clocks, single_gpu, triton)
PARTS = {part.__name__: part for part in _PARTS}


def commands(part: str, out: Path, target: str) -> Iterator[Command]:
    """The commands of a part. On the CPU target without those that only a GPU can run."""
    for name, arguments in PARTS[part](out):
        if target != "cpu":
            yield name, arguments
        elif name == "hangs":
            yield name, [*arguments, "--device", "cpu", "--only", "cycle"]
        elif name == "recordings":
            yield name, [*arguments, "--target", "cpu"]
        elif name == "clocks":
            yield name, [*arguments, "--target", "cpu", "--seconds", "12"]


def times_in(text: str) -> dict[str, dict[str, dict[str, float]]]:
    """What triton_collectives printed: us per call by kind and size."""
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
    parser = harness.options(__doc__, has_folder=True)
    parser.add_argument("--only", choices=PARTS, action="append", help="run this part alone")
    parser.add_argument("--target", choices=("cuda", "cpu"), default="cuda")
    arguments = parser.parse_args()
    out: Path = arguments.folder
    with tempfile.TemporaryDirectory() as scratch:
        run = Runs(Path(scratch), LIMIT_S, TOTAL_S)
        for part in arguments.only or PARTS:
            said = {name: run(name, what) for name, what in commands(part, out, arguments.target)}
            if said and PARTS[part] is all_reduces:
                result = harness.context(
                    f"python -m benchmarks.gpu_runs FOLDER --only {part}", "cuda"
                )
                result |= {"ranks": 2, "triton": version("triton")}
                result["us per call"] = {name: times_in(text) for name, text in said.items()}
                harness.show_and_write(result, out / "triton_all_reduce.json")
        run.pack(out)


if __name__ == "__main__":
    main()
