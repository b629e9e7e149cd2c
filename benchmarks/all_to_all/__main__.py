"""Every variant of the all-to-all beside its torch baseline and the limit of the links, five
shapes, one run.

    torchrun --nproc-per-node 4 -m benchmarks.all_to_all [--repeats 20] [--arena-mib 1024] [--output FILE]

All contenders are interleaved within every repeat, in rotating order. A measurement is a batch of
calls back to back on the same inputs, after one call that brings the ranks together, the slowest
rank's time divided by the number of calls: `gpu` by events around a batch whose launches were
queued behind a sleeping kernel, `wall` by the clock of the host until the device is done, `alone`
one call and a wait. Calls look at no values on the host (is_async). Every contender's result is
checked against float64 first.

`recording` is a variant under a recorder, one record per row (or token) and phase. Without a
recorder calls run the build without kprof, so that off is what a kernel without kprof costs; `off
again` is the same calls measured twice, to tell how far apart equal things are. All three share one
plan, hence memory; their differences are taken repeat by repeat. The limit is what the busiest rank
must move, each token once per rank in dispatch and each row once in combine, at the rate at which a
copy kernel writes to all peers at once.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import torch

from benchmarks import harness
from benchmarks.all_to_all.links import bytes_between_ranks, measure_bytes_per_second
from benchmarks.harness import spread
from instrumented_kernels.all_to_all import Plan, Problem
from instrumented_kernels.all_to_all.routing import Inputs, count_wrong, make_inputs, reference
from instrumented_kernels.all_to_all.torch_baseline import TorchPlan
from instrumented_kernels.queued_time import queued_us
from instrumented_kernels.workload import choose_device, joined_group
from kprof.devices.groups import Group
from kprof.recording.rank.null_recorder import AnyRecorder, NullRecorder
from kprof.recording.rank.recorder import Recorder

SHAPES: Final = [
    Problem(8, 2, 6144, 16),
    Problem(64, 6, 2048, 32),
    Problem(128, 4, 2880, 128),
    Problem(128, 8, 4096, 256),
    Problem(256, 8, 7168, 256),
]
VARIANTS: Final = ("rank_flags", "token_flags", "fused", "balanced", "pipelined")
PROFILED_VARIANTS: Final = ("balanced", "pipelined")
CALLS_PER_BATCH: Final = 20
NUM_WARMUPS: Final = 3
# Holds a batch of every variant; the larger, the fewer of its pages the GPU can translate at once.
DEFAULT_ARENA_MIB: Final = 1024
CLOCKS: Final = ("gpu", "wall", "alone")
HOW: Final = ("off again", "recording")


@dataclass(frozen=True)
class Contender:
    """A plan and how it is called."""

    plan: Plan | TorchPlan
    recorder: AnyRecorder

    def call(self, inputs: Inputs, out: torch.Tensor) -> None:
        self.plan(
            inputs.x, inputs.indices, inputs.weights, out=out, recorder=self.recorder, is_async=True
        )


class DiscardingRecorder(Recorder):
    """Records like any other and keeps nothing: what is measured is the cost of recording."""

    def flush(self) -> None:
        """Empty the arena."""
        self._arena.reset(self._arena.state())


def contenders(
    group: Group, problem: Problem, device: str, recorder: Recorder
) -> dict[str, Contender]:
    """By name, in the order of the table."""
    off = NullRecorder()
    found = {"torch": Contender(TorchPlan(group, problem, device=device), off)}
    for variant in VARIANTS:
        found[variant] = Contender(Plan(group, problem, variant=variant, device=device), off)
    for variant in PROFILED_VARIANTS:
        found[f"{variant}, off again"] = found[variant]
        found[f"{variant}, recording"] = replace(found[variant], recorder=recorder)
    return found


def gpu_us(work: Callable[[], None]) -> float:
    def batch() -> None:
        for _ in range(CALLS_PER_BATCH):
            work()

    # The call before the batch brings the ranks together.
    return queued_us(batch, work) / CALLS_PER_BATCH


def wall_us(work: Callable[[], None], num_calls: int) -> float:
    work()
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(num_calls):
        work()
    torch.cuda.synchronize()
    return (time.perf_counter() - begin) * 1e6 / num_calls


def measure(group: Group, contender: Contender, inputs: Inputs, out: torch.Tensor) -> list[float]:
    """One measurement by each of CLOCKS, after all ranks have met."""
    work = lambda: contender.call(inputs, out)  # noqa: E731
    times = []
    for clock in (gpu_us, lambda w: wall_us(w, CALLS_PER_BATCH), lambda w: wall_us(w, 1)):
        torch.cuda.synchronize()
        group.barrier()
        times.append(clock(work))
        contender.recorder.flush()
    return times


def rotations(names: list[str], repeats: int) -> Iterator[tuple[bool, str]]:
    """(whether it counts, name): the order rotates, so that no contender always follows the same other one."""
    for repeat in range(repeats + NUM_WARMUPS):
        first = repeat % len(names)
        for name in names[first:] + names[:first]:
            yield repeat >= NUM_WARMUPS, name


def slowest(group: Group, times: dict[str, list[list[float]]]) -> dict[str, list[list[float]]]:
    """Per contender and clock the slowest rank's time of every repeat."""
    everyone = group.all_gather(times)
    return {
        name: [
            [max(repeat) for repeat in zip(*by_rank, strict=True)]
            for by_rank in zip(*(zip(*each[name], strict=True) for each in everyone), strict=True)
        ]
        for name in times
    }


def percent_above(off: list[float], measured: list[float]) -> dict[str, float]:
    """How much longer, repeat by repeat: what drifts is in both."""
    return spread([100 * (one / base - 1) for base, one in zip(off, measured, strict=True)])


def check(group: Group, contender: Contender, problem: Problem, inputs: Inputs) -> int:
    """Wrong values on all ranks, of two calls so that both buffers are used."""
    on_device = inputs.to(contender.plan.device)
    expected = reference(problem, inputs, group.world_size)
    wrong = 0
    for _ in range(2):
        out = torch.full_like(on_device.x, float("nan"))
        contender.call(on_device, out)
        contender.plan.wait()
        wrong += count_wrong(out.cpu(), expected)
    return sum(group.all_gather(wrong))


def run_shape(
    group: Group, problem: Problem, device: str, recorder: Recorder, repeats: int, link_rate: float
) -> dict[str, Any]:
    """One shape's part of the results."""
    inputs = make_inputs(problem, problem.max_tokens, 17 + group.rank)
    rivals = contenders(group, problem, device, recorder)
    wrong = {name: check(group, rival, problem, inputs) for name, rival in rivals.items()}
    assert not any(wrong.values()), wrong
    on_device, out = inputs.to(device), torch.empty_like(inputs.x, device=device)
    times: dict[str, list[list[float]]] = {name: [] for name in rivals}
    for counts, name in rotations(list(rivals), repeats):
        measured = measure(group, rivals[name], on_device, out)
        if counts:
            times[name].append(measured)
    for name in ("torch", *VARIANTS):
        rivals[name].plan.close()
    moved = bytes_between_ranks(group, problem, inputs)
    limit_us = 1e6 * (moved["dispatch_row_per_rank"] + moved["combine"]) / link_rate
    plain_limit_us = 1e6 * (moved["dispatch_row_per_expert"] + moved["combine"]) / link_rate
    by_repeat = slowest(group, times)
    return {
        "bytes of the busiest rank": moved,
        "link limit us": round(limit_us, 1),
        "link limit us, a row per expert": round(plain_limit_us, 1),
        "us": {
            name: dict(zip(CLOCKS, map(spread, by_clock), strict=True))
            for name, by_clock in by_repeat.items()
        },
        "percent above off": {
            f"{variant}, {how}": dict(
                zip(CLOCKS, map(percent_above, by_repeat[variant], measured), strict=True)
            )
            for variant in PROFILED_VARIANTS
            for how in HOW
            for measured in [by_repeat[f"{variant}, {how}"]]
        },
    }


def summarize(shapes: dict[str, Any]) -> dict[str, Any]:
    """Geometric means over the shapes, and the ratios that the project sets bars for."""
    names = next(iter(shapes.values()))["us"]

    def median(shape: str, name: str, clock: str) -> float:
        return float(shapes[shape]["us"][name][clock]["median"])

    means = {
        name: {
            clock: round(
                statistics.geometric_mean(median(shape, name, clock) for shape in shapes), 1
            )
            for clock in CLOCKS
        }
        for name in names
    }
    largest = list(shapes)[-1]
    return {
        "geometric mean us": means,
        "times faster than torch, geometric mean": {
            name: {clock: round(means["torch"][clock] / means[name][clock], 2) for clock in CLOCKS}
            for name in VARIANTS
        },
        "times faster than torch, largest shape": {
            name: {
                clock: round(median(largest, "torch", clock) / median(largest, name, clock), 2)
                for clock in CLOCKS
            }
            for name in VARIANTS
        },
        "ratio to the link limit": {
            shape: {
                name: round(median(shape, name, "gpu") / shapes[shape]["link limit us"], 2)
                for name in VARIANTS
            }
            for shape in shapes
        },
        "percent above off, gpu time": {
            shape: {name: each["gpu"] for name, each in measured["percent above off"].items()}
            for shape, measured in shapes.items()
        },
    }


def cell(clock: str, times: dict[str, float]) -> str:
    return f"{clock} {times['median']:8.1f} ({times['p25']:.1f}-{times['p75']:.1f})"


def print_table(result: dict[str, Any]) -> None:
    for shape, measured in result["shapes"].items():
        print(f"E,K,D,M = {shape}: link limit {measured['link limit us']} us")
        for name, clocks in measured["us"].items():
            print(f"  {name:24s}", "  ".join(cell(*entry) for entry in clocks.items()))
    print(json.dumps(result["summary"], indent=1))


def main() -> None:
    parser = harness.options(__doc__)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--arena-mib", type=int, default=DEFAULT_ARENA_MIB)
    arguments = parser.parse_args()
    device = choose_device("auto")
    assert device != "cpu", "this benchmark needs a GPU for every rank"
    with joined_group() as group, tempfile.TemporaryDirectory() as scratch:
        recorder = DiscardingRecorder(
            Path(scratch), rank=group.rank, world_size=group.world_size, device=device,
            arena_bytes=arguments.arena_mib << 20,
        )  # fmt: skip
        link_rate = (
            measure_bytes_per_second(group, device) if group.world_size > 1 else float("inf")
        )
        shapes = {
            f"{p.num_experts},{p.top_k},{p.hidden},{p.max_tokens}": run_shape(
                group, p, device, recorder, arguments.repeats, link_rate
            )
            for p in SHAPES
        }
        result = {
            **harness.context(
                f"torchrun --nproc-per-node {group.world_size} -m benchmarks.all_to_all "
                f"--repeats {arguments.repeats} --arena-mib {arguments.arena_mib}",
                device,
            ),
            "GPUs of one host": group.world_size,
            "link GB/s out of each GPU": round(link_rate / 1e9, 1),
            "shapes": shapes,
            "summary": summarize(shapes),
        }
        if group.rank == 0:
            print_table(result)
            if arguments.output:
                harness.write(result, arguments.output)
        recorder.close()


if __name__ == "__main__":
    main()
