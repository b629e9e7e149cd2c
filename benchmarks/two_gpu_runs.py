"""All that is asked of two GPUs, in one command of at most half an hour, or one part of it.

    python -m benchmarks.two_gpu_runs FOLDER [--only tests] [--target cpu]

tests         tests/gpu as a whole, with a limit of ten minutes for the tests of graphs
hangs         the thirteen planted hangs
collectives   all-reduce and all-to-all beside NCCL and torch's symmetric memory, and what recording costs
recordings    every step of both ladders, with the promise of each report beside the measured step
clocks        the bound between two GPUs, ten thousand held-out rounds, waits that ended early (2 to 4 minutes)

Leaves in FOLDER what each part leaves, summary.txt and runs.tgz with all logs. On the CPU target the
parts that need no GPU run with small inputs: that shows whether the script works.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.runs import Runs

LIMIT_S = 600
TOTAL_S = 1740
TESTS = ["-m", "pytest", "-m", "gpu", "-q", "-rs", "-p", "no:cacheprovider"]
GRAPHS = "tests/gpu/test_graphs_gpu.py"
TEAM = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
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


def recordings(out: Path) -> Iterator[Command]:
    """Captures of both ladders."""
    folder = str(out / "recordings")
    yield "recordings", ["-m", "benchmarks.recordings", folder, "--ranks", "2"]


def clocks(out: Path) -> Iterator[Command]:
    """The bound between two GPUs."""
    output = ["--seconds", "40", "--output", str(out / "clock_alignment_2_gpus.json")]
    output += ["--samples", str(out / "clock_alignment_2_gpus_samples.json")]
    yield "clocks", ["-m", "benchmarks.clock_alignment", "--nproc", "2", *output]


PARTS = {part.__name__: part for part in (tests, hangs, collectives, recordings, clocks)}


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


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", choices=PARTS, action="append", help="run this part alone")
    parser.add_argument("--target", choices=("cuda", "cpu"), default="cuda")
    arguments = parser.parse_args()
    out: Path = arguments.folder.absolute()
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        run = Runs(Path(scratch), LIMIT_S, TOTAL_S)
        for part in arguments.only or PARTS:
            for name, command in commands(part, out, arguments.target):
                run(name, command)
        run.pack(out)


if __name__ == "__main__":
    main()
