"""Are NCCL's collectives recorded rightly, and what does it cost? On one GPU, with ranks that share it.

    make -C NCCL -j16 src.build NVCC_GENCODE="-gencode=arch=compute_90,code=sm_90" ONLY_FUNCS="AllReduce Sum f32|SendRecv"
    python -m benchmarks.nccl FOLDER --nccl NCCL

NCCL is a source tree of 2.30 or later, which is built here if it was not built before. Ranks
are processes of torchrun on cuda:0, with that library preloaded. In turn, for two and for four ranks:

    right    10,000 all-reduces of 64 KiB, each tenth followed by a send and a receive: all in the capture or counted, the
             clocks of all ranks 0 apart within their bound
    late     40 plants: a rank is late by 200 us to 20 ms, by a sleep, a busy kernel before, or a slow host. Right where that
             rank is named for that call
    cost     us per all-reduce off, with the plugin loaded (event mask 0), and recorded, interleaved

A run is ended after 240 s. Leaves nccl.json, the captures and a log for each run in FOLDER. A line of the result says so where ranks
share the GPU by time slices: an all-reduce then takes milliseconds, and only `right` and `late` mean something.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks import harness
from benchmarks.runs import ROOT

BUILD = [
    "src.build",
    "NVCC_GENCODE=-gencode=arch=compute_90,code=sm_90",
    "ONLY_FUNCS=AllReduce Sum f32|SendRecv",
]
WORLD_SIZES = (2, 4)
NUM_CALLS, NUM_PLANTS, REPEATS = 10_000, 40, 3
LATE_US = (200, 1000, 5000, 20_000)
CAUSES = ("sleep", "kernel", "host")
TENSOR_FLOATS = 16384
LIMIT_S = 240


def plants(num_ranks: int) -> list[tuple[int, int, str, int]]:
    """Which call, which rank, why and by how many us: every length with every cause and rank in turn."""
    return [
        (
            20 * number + 10,
            number % num_ranks,
            CAUSES[number % len(CAUSES)],
            LATE_US[number // len(CAUSES) % len(LATE_US)],
        )
        for number in range(NUM_PLANTS)
    ]


def workload(what: str) -> None:
    """A rank; prints one line of JSON with us per all-reduce."""
    import torch
    import torch.distributed as dist

    torch.cuda.set_device(0)
    dist.init_process_group("nccl")
    rank, num_ranks = dist.get_rank(), dist.get_world_size()
    values = torch.ones(TENSOR_FLOATS, device="cuda")
    planted = {plant[0]: plant[1:] for plant in plants(num_ranks)} if what == "late" else {}
    num_calls = {"right": NUM_CALLS, "late": 20 * NUM_PLANTS + 20, "cost": 2000}[what]
    for _ in range(20):
        dist.all_reduce(values)
    torch.cuda.synchronize()
    begin_s = time.perf_counter()
    for call in range(num_calls):
        late_rank, cause, late_us = planted.get(call, (-1, "", 0))
        if planted:
            torch.cuda.synchronize()
        if late_rank == rank:
            _be_late(cause, late_us)
        values.fill_(1.0)
        dist.all_reduce(values)
        if what == "right" and call % 10 == 0 and rank < 2:
            dist.send(values, 1) if rank == 0 else dist.recv(values, 0)
    torch.cuda.synchronize()
    took_us = (time.perf_counter() - begin_s) / num_calls * 1e6
    assert what == "right" or float(values[0]) == num_ranks
    dist.destroy_process_group()
    if rank == 0:
        print(json.dumps({"us": took_us}), flush=True)


def _be_late(cause: str, late_us: int) -> None:
    import torch

    if cause == "sleep":
        time.sleep(late_us / 1e6)
    elif cause == "kernel":
        # About 1.7 GHz: the length is not the point, the order is.
        torch.cuda._sleep(late_us * 1700)  # type: ignore[no-untyped-call]
    else:
        end_s = time.perf_counter() + late_us / 1e6
        while time.perf_counter() < end_s:
            sum(range(100))


def build_nccl(tree: Path) -> Path:
    library = tree / "build" / "lib" / "libnccl.so.2"
    if not library.exists():
        subprocess.run(
            ["make", "-C", tree, f"-j{os.cpu_count()}", *BUILD],
            check=True,
            stdout=subprocess.DEVNULL,
        )
    return library


class Bench:
    def __init__(self, folder: Path, library: Path) -> None:
        self.folder, self.library = folder, library

    def run(
        self, name: str, what: str, num_ranks: int, before: Sequence[str] = (), **variables: str
    ) -> dict[str, Any]:
        """What rank 0 prints; what went wrong instead, where something did. The log is in the folder."""
        path = os.pathsep.join([str(ROOT), str(ROOT / "cli"), os.environ.get("PYTHONPATH", "")])
        needed = {"LD_PRELOAD": str(self.library), "NCCL_MULTI_RANK_GPU_ENABLE": "1"}
        environment = os.environ | needed | {"PYTHONPATH": path} | variables
        ranks = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(num_ranks)]
        command = [*before, sys.executable, *ranks, "-m", "benchmarks.nccl", "--workload", what]
        log = self.folder / f"{name}.log"
        with log.open("w") as file:
            try:
                code = subprocess.run(
                    command, env=environment, stdout=file, stderr=file, timeout=LIMIT_S, check=False
                ).returncode
            except subprocess.TimeoutExpired:
                return {"failed": f"no end within {LIMIT_S} s"}
        found = re.findall(r'^\{"us".*\}$', log.read_text(errors="replace"), re.MULTILINE)
        return (
            json.loads(found[-1])
            if found and not code
            else {"failed": f"exit code {code}, see {log.name}"}
        )

    def record(self, what: str, num_ranks: int) -> tuple[dict[str, Any], Path]:
        output = self.folder / f"{what}-{num_ranks}.kprof"
        record = [
            sys.executable,
            "-m",
            "kprof_cli",
            "record",
            "--nccl",
            "--force",
            "--arena-size",
            "256MiB",
            "-o",
            str(output),
            "--",
        ]
        return self.run(output.stem, what, num_ranks, record), output


def right(bench: Bench, num_ranks: int) -> dict[str, Any]:
    import kprof

    result, output = bench.record("right", num_ranks)
    if "failed" in result:
        return result
    run = kprof.open(output)
    calls = run.sql(
        "SELECT rank, count(*) AS n FROM launches WHERE kernel LIKE 'AllReduce%' GROUP BY rank ORDER BY rank"
    )
    pairs = run.sql("SELECT count(*) AS n FROM launches WHERE kernel LIKE 'SendRecv%'").to_pylist()[
        0
    ]["n"]
    alignment = run.manifest.alignment
    offsets = [entry.segments[0].offset_ns for entry in alignment.ranks] if alignment else None
    return result | {
        "all_reduces_by_rank": [row["n"] for row in calls.to_pylist()],
        "expected": NUM_CALLS + 20,
        "sends_and_receives": pairs,
        "expected_sends_and_receives": 2 * NUM_CALLS // 10,
        "lost": [info.counts.dropped for info in run.manifest.ranks],
        "clock": alignment.method if alignment else run.manifest.alignment_note,
        "offsets_ns": offsets,
        "bound_ns": alignment.widest_bound_ns if alignment else None,
        "same_gpu_apart_ns": _apart_by_collectives(output, num_ranks),
    }


def _apart_by_collectives(output: Path, num_ranks: int) -> dict[str, Any]:
    """What the collectives alone would say about clocks that are 0 apart: offset and bound of each rank."""
    import kprof

    run = kprof.open(output)
    # A begin and an end of each rank and call: what kprof.nccl.clocks uses, here from the capture.
    rows = run.sql(
        "SELECT rank, ordinal, min(start_ns) AS b, max(end_ns) AS e FROM events WHERE kernel LIKE 'AllReduce%' AND block = 0 "
        "GROUP BY rank, ordinal ORDER BY ordinal, rank"
    ).to_pandas()
    b, e = (
        rows.pivot(index="ordinal", columns="rank", values=name).dropna() for name in ("b", "e")
    )
    found = {}
    for rank in range(1, num_ranks):
        low, high = (b[rank] - e[0]).max(), (e[rank] - b[0]).min()
        found[str(rank)] = {
            "offset_ns": float(low + high) / 2,
            "bound_ns": float(high - low) / 2,
            "holds_0": bool(low <= 0 <= high),
        }
    return found


def late(bench: Bench, num_ranks: int) -> dict[str, Any]:
    import kprof

    result, output = bench.record("late", num_ranks)
    if "failed" in result:
        return result
    waits = kprof.open(output).sql(
        "SELECT ordinal, peer, max(duration_ns) AS ns FROM events WHERE region = 'nccl/wait' GROUP BY ordinal, peer"
    )
    longest: dict[int, tuple[int, int]] = {}
    for row in waits.to_pylist():
        longest[row["ordinal"]] = max(
            longest.get(row["ordinal"], (0, -1)), (row["ns"], row["peer"])
        )
    rows = []
    for call, rank, cause, late_us in plants(num_ranks):
        # The first 20 are a warm-up.
        ns, named = longest.get(call + 20, (0, -1))
        rows.append(
            {
                "call": call,
                "rank": rank,
                "cause": cause,
                "late_us": late_us,
                "named": named,
                "wait_us": ns / 1000,
            }
        )
    return result | {
        "right": sum(row["named"] == row["rank"] for row in rows),
        "of": len(rows),
        "plants": rows,
    }


def cost(bench: Bench, num_ranks: int) -> dict[str, Any]:
    from kprof.nccl.plugin import build_plugin

    loaded = {
        "NCCL_PROFILER_PLUGIN": str(build_plugin()),
        "KPROF_NCCL_DIR": str(bench.folder),
        "NCCL_PROFILE_EVENT_MASK": "0",
    }
    times: dict[str, list[float]] = {"off": [], "loaded": [], "recorded": []}
    for repeat in range(REPEATS):
        for name in _turned(["off", "loaded", "recorded"], repeat):
            variables = loaded if name == "loaded" else {}
            result = (
                bench.record("cost", num_ranks)[0]
                if name == "recorded"
                else bench.run(f"cost-{name}-{num_ranks}-{repeat}", "cost", num_ranks, **variables)
            )
            if "failed" in result:
                return result
            times[name].append(result["us"])
    found: dict[str, Any] = {name: harness.spread(each) for name, each in times.items()}
    for name in ("loaded", "recorded"):
        found[f"{name}_percent"] = harness.percent_above(times["off"], times[name])
    found["is_time_sliced"] = min(times["off"]) > 1000
    return found


def _turned(names: list[str], by: int) -> Iterator[str]:
    yield from names[by % len(names) :] + names[: by % len(names)]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--nccl", type=Path, help="the source tree of NCCL")
    parser.add_argument("--workload", choices=("right", "late", "cost"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.workload:
        workload(arguments.workload)
        return
    if arguments.folder is None or arguments.nccl is None:
        parser.error("give FOLDER and --nccl")
    folder = arguments.folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    bench = Bench(folder, build_nccl(arguments.nccl.absolute()))
    result = harness.context("python -m benchmarks.nccl", "cuda:0")
    for num_ranks in WORLD_SIZES:
        for measure in (right, late, cost):
            result[f"{measure.__name__}-{num_ranks}"] = measure(bench, num_ranks)
            harness.show_and_write(result, folder / "nccl.json")


if __name__ == "__main__":
    main()
