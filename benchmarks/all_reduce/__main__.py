"""All-reduce against NCCL and torch's symmetric memory on the GPUs of one host, 1 KiB to 16 MiB.

    torchrun --nproc-per-node 4 -m benchmarks.all_reduce tune --output tuned.json
    torchrun --nproc-per-node 4 -m benchmarks.all_reduce compare --output benchmarks/results/all_reduce.json
    torchrun --nproc-per-node 2 -m benchmarks.all_reduce cost --output cost.json

`tune` measures grids for this number of ranks and writes the table that variant="auto" reads, with
what is known of other numbers of ranks: put it in place of
instrumented_kernels/all_reduce/tuned.json. `compare` measures every variant and library in one run,
and what profiling costs. `cost` takes that apart: kernels that only read clocks, a null buffer, a
filter, and recording. Bandwidth is algorithm bandwidth: bytes of the tensor per time.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
import torch
import torch.distributed as dist
import typer

from benchmarks import harness
from benchmarks.all_reduce.contenders import LADDER_ONLY, LIBRARIES, library_calls, own_call
from benchmarks.all_reduce.overhead import measure_overhead, plan_of_clocks
from benchmarks.all_reduce.timing import Effort, time_graph_us, time_loop_us
from instrumented_kernels.all_reduce import Plan
from instrumented_kernels.all_reduce.tuning import TABLE_FILE
from instrumented_kernels.workload import choose_device
from kprof.devices.groups import Group, TorchGroup

KIB = 1024
MIB = 1024 * KIB
SIZES = [KIB << i for i in range(15)]
COST_SIZES = [64 * KIB << i for i in range(5)]
LADDER_LIMIT = MIB
BLOCKS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128)
WARPS = (4, 8, 16)
TUNED = {"oneshot": 4 * MIB, "twoshot_packets": 16 * MIB, "twoshot": 16 * MIB}
BAR_BYTES, FAST_BAR_BYTES, FAST_BAR = 4 * MIB, 256 * KIB, 1.3

Output = Annotated[Path, typer.Option(help="where the results go, as JSON")]
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def tune(output: Output, dtype: str = "bfloat16", calls: int = 100, repeats: int = 5) -> None:
    """Measure grids of each variant at each size and write the table of the fastest."""
    element_type, effort = getattr(torch, dtype), Effort(calls, repeats)
    with _Team() as team:
        plans = {warps: team.plan_of(warps) for warps in WARPS}
        measured = {
            variant: {
                num_bytes: _time_grids(team, plans, variant, num_bytes, element_type, effort)
                for num_bytes in SIZES
                if num_bytes <= limit
            }
            for variant, limit in TUNED.items()
        }
        if team.group.rank == 0:
            _write_table(output, team.group.world_size, measured)


@app.command()
def compare(output: Output, dtype: str = "bfloat16", calls: int = 100, repeats: int = 5) -> None:
    """Measure every variant and library at each size, and what profiling costs."""
    element_type = getattr(torch, dtype)
    effort = Effort(calls, repeats)
    with _Team() as team:
        plan = team.plan_of()
        rows = [_compare_at(team, plan, num_bytes, element_type, effort) for num_bytes in SIZES]
        overhead = measure_overhead(team.group, plan, SIZES, element_type, effort)
        if team.group.rank == 0:
            result = _context(team, dtype, "compare") | {"sizes": rows, "overhead": overhead}
            harness.write(result, output)
            text = "\n".join(
                [*_table(rows, "graph_us"), "", *_table(rows, "loop_us"), "", *_bar(rows), ""]
            )
            text += "\n".join(["", *_cost_table(overhead), ""])
            output.with_suffix(".txt").write_text(text)
            print(text)


@app.command()
def cost(output: Output, calls: int = 200, repeats: int = 13) -> None:
    """What each part of recording costs calls of 64 KiB to 1 MiB, side by side; no libraries."""
    with _Team() as team:
        plan, clocks = team.plan_of(), plan_of_clocks(team.group, team.device)
        team.keep(clocks)
        effort = Effort(calls, repeats)
        rows = measure_overhead(team.group, plan, COST_SIZES, torch.bfloat16, effort, clocks)
        if team.group.rank == 0:
            result = _context(team, "bfloat16", "cost") | {"sizes": rows}
            harness.write(result, output)
            print("\n".join(_cost_table(rows)))


class _Team:
    """The ranks, their devices and their plans."""

    def __enter__(self) -> _Team:
        self.device = choose_device("cuda")
        dist.init_process_group("cpu:gloo,cuda:nccl", device_id=torch.device(self.device))
        self.group: Group = TorchGroup()
        self._plans: list[Plan] = []
        return self

    def plan_of(self, warps_per_block: int | None = None) -> Plan:
        self._plans.append(Plan(self.group, device=self.device, warps_per_block=warps_per_block))
        return self._plans[-1]

    def keep(self, plan: Plan) -> None:
        """Close this plan, too."""
        self._plans.append(plan)

    def __exit__(self, *error: object) -> None:
        if error[0] is None:
            for plan in self._plans:
                plan.wait()
                plan.close()
            dist.destroy_process_group()


GridTimes = dict[tuple[int, int], float]


def _time_grids(
    team: _Team,
    plans: dict[int, Plan],
    variant: str,
    num_bytes: int,
    dtype: torch.dtype,
    effort: Effort,
) -> GridTimes:
    """Microseconds by blocks and warps per block."""
    times: GridTimes = {}
    for warps, plan in plans.items():
        for blocks in BLOCKS:
            if _is_worth_trying(blocks, warps, num_bytes):
                call = own_call(plan, num_bytes // dtype.itemsize, dtype, variant, blocks)
                times[blocks, warps] = time_graph_us(team.group, call, effort)
    return times


def _is_worth_trying(blocks: int, warps: int, num_bytes: int) -> bool:
    """Neither blocks in which half of the threads have nothing to do, nor threads with many rounds while SMs idle."""
    bytes_at_once = blocks * warps * 32 * 16
    return (blocks == 1 or bytes_at_once <= 2 * num_bytes) and (
        blocks == max(BLOCKS) or bytes_at_once * 8 >= num_bytes
    )


def write_table(output: Path, world_size: int, variants: list[Any], grids: dict[str, Any]) -> None:
    """All known measurements, with those for this number of ranks replaced."""
    tables = json.loads(TABLE_FILE.read_text())["by_world_size"]
    tables[str(world_size)] = {"variants": variants, "grids": grids}
    in_order = dict(sorted(tables.items(), key=lambda item: int(item[0])))
    output.write_text(json.dumps({"by_world_size": in_order}) + "\n")


def _write_table(output: Path, world_size: int, measured: dict[str, dict[int, GridTimes]]) -> None:
    """Replace the part of the table for this number of ranks; keep the others."""
    best = {
        variant: [[size, *min(times, key=times.__getitem__)] for size, times in sizes.items()]
        for variant, sizes in measured.items()
    }
    fastest = [
        [
            size,
            min(
                TUNED,
                key=lambda name, size=size: min(measured[name].get(size, {(0, 0): 1e9}).values()),
            ),
        ]
        for size in SIZES
    ]
    write_table(output, world_size, fastest, best)


def _compare_at(
    team: _Team, plan: Plan, num_bytes: int, dtype: torch.dtype, effort: Effort
) -> dict[str, Any]:
    num_elements = num_bytes // dtype.itemsize
    calls = library_calls(num_elements, dtype, team.device)
    for variant in (*plan.variants, "auto"):
        if variant not in LADDER_ONLY or num_bytes <= LADDER_LIMIT:
            calls[variant] = own_call(plan, num_elements, dtype, variant)
    row = {
        "bytes": num_bytes,
        "auto": plan.launches(num_elements, dtype)[0],
        "loop_us": {name: time_loop_us(team.group, call, effort) for name, call in calls.items()},
        "graph_us": {name: time_graph_us(team.group, call, effort) for name, call in calls.items()},
    }
    if team.group.rank == 0:
        typer.echo(json.dumps(row), err=True)
    return row


def _context(team: _Team, dtype: str, command: str) -> dict[str, Any]:
    ranks = team.group.world_size
    line = f"torchrun --nproc-per-node {ranks} -m benchmarks.all_reduce {command}"
    return harness.context(line, team.device) | {
        "GPUs of one host": ranks,
        "nccl": ".".join(map(str, torch.cuda.nccl.version())),
        "dtype": dtype,
        "method": "median of repeats, slowest rank; loop: calls between two events; "
        "graph: 20 calls a graph, replayed",
    }


def _size(num_bytes: int) -> str:
    return f"{num_bytes // MIB} MiB" if num_bytes >= MIB else f"{num_bytes // KIB} KiB"


def _table(rows: list[dict[str, Any]], key: str) -> list[str]:
    how = "replayed from a graph" if key == "graph_us" else "called in a loop"
    table = {
        _size(row["bytes"]): {
            name: f"{us:.2f} ({row['bytes'] / us / 1e3:.1f})" for name, us in row[key].items()
        }
        for row in rows
    }
    text = pd.DataFrame.from_dict(table, orient="index").fillna("").to_string()
    return [f"us per call, {how} (GB/s of algorithm bandwidth)", text]


def _bar(rows: list[dict[str, Any]]) -> list[str]:
    """Where `auto` stands against the faster of the libraries."""
    lines = ["auto against the fastest library: graph, loop"]
    for row in rows:
        ratios = []
        for key in ("graph_us", "loop_us"):
            libraries = [row[key][name] for name in LIBRARIES if name in row[key]]
            ratios.append(min(libraries) / row[key]["auto"])
        bar = (
            FAST_BAR
            if row["bytes"] <= FAST_BAR_BYTES
            else 1.0
            if row["bytes"] <= BAR_BYTES
            else 0.0
        )
        verdict = "" if min(ratios) >= bar else f"  below {bar}"
        kernel, blocks = row["auto"]
        lines.append(
            f"{_size(row['bytes']):>8}  {ratios[0]:.2f}x {ratios[1]:.2f}x  {kernel}, {blocks} "
            f"blocks{verdict}"
        )
    return lines


def _cost_table(rows: list[dict[str, Any]]) -> list[str]:
    """What each column adds to calls that are not recorded (kprof compiled out)."""
    table = {
        _size(row["bytes"]): {
            name.removesuffix("_us"): f"{us:.2f} {us / row['off_us'] - 1:+.1%}"
            for name, us in row.items()
            if name != "bytes"
        }
        for row in rows
    }
    return ["us per call of auto", pd.DataFrame.from_dict(table, orient="index").to_string()]


if __name__ == "__main__":
    app()
