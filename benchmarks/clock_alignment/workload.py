"""The recorded workload: the all-to-all for a while, clocks calibrated in between; writes what the
calibrations saw.

Calls are recorded every RECORD_EVERY_S; those in between run with recording off, so that the GPUs
are as busy (and as warm) as in a real run.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

import msgspec
import numpy as np
import torch

import kprof
from instrumented_kernels.all_to_all import Plan, Problem
from instrumented_kernels.all_to_all.routing import Skew, make_inputs, num_tokens_of
from instrumented_kernels.workload import choose_device, joined_group
from kprof.clocks.calibration import Calibrator, measure_clock
from kprof.clocks.corner import intervals_of_view
from kprof.clocks.offset import OffsetSample
from kprof.devices.groups import Group
from kprof.recording.rank.recorder import Recorder

RECORD_EVERY_S = 0.2
ALIGN_EVERY_S = 2.0
HOLD_OUT_EVERY_S = 3.0
CALLS_BETWEEN = 50
CALLS_PER_FLUSH = 8


# Of rounds of two ranks: the least and the most that second - first can be, and when on the second's clock.
Held = dict[str, list[list[int]]]


class HeldOut:
    """Games of the first two ranks that no alignment sees."""

    def __init__(self, group: Group, device: str) -> None:
        self._group = group
        self._calibrator = Calibrator(group, device, measure_clock(device), has_corner=True)
        self.rounds: Held = {"ping-pong": [], "common view": []}

    def play(self) -> None:
        """One game of each kind. Collective."""
        everyone = self._group.all_gather(self._calibrator.play())
        first, second = (everyone[rank][0, 1] for rank in (0, 1))
        hops = (
            second[:, :-1, 1] - first[:, 1:, 0],
            second[:, :-1, 0] - first[:, :-1, 1],
            second[:, :-1, 0],
        )
        is_complete = (first[:, 1:, 0] > 0) & (second[:, :-1, 1] > 0)
        self._keep("ping-pong", np.stack([each[is_complete] for each in hops]))
        seen = self._calibrator.corner.play() if self._calibrator.corner else {}
        if seen:
            self._keep("common view", np.stack(intervals_of_view(seen[0], seen[1])))

    def _keep(self, name: str, columns: np.ndarray) -> None:
        self.rounds[name] += columns.T.tolist()


def run(
    group: Group, plan: Plan, recorder: Recorder, seconds: float, held_out: HeldOut
) -> dict[str, list[float]]:
    """The calls; what aligning cost this rank, in seconds, when it was due and when it was not."""
    problem = plan.problem
    tensors = make_inputs(problem, num_tokens_of(problem, group.rank, Skew()), group.rank)
    inputs = tensors.to(plan.device)
    out = torch.empty_like(inputs.x)
    costs_s: dict[str, list[float]] = {"due": [], "not_due": []}
    begin_s = recorded_s = held_s = time.monotonic()
    num_recorded = 0
    while True:
        now_s = time.monotonic()
        wishes = (
            now_s - begin_s < seconds,
            now_s - recorded_s >= RECORD_EVERY_S,
            now_s - held_s >= HOLD_OUT_EVERY_S,
        )
        goes_on, records, holds = group.all_gather(wishes)[0]
        if not goes_on:
            return costs_s
        for _ in range(CALLS_BETWEEN):
            plan(inputs.x, inputs.indices, inputs.weights, out=out, is_async=True)
        plan.wait()
        if records:
            recorded_s = now_s
            num_recorded += 1
            plan(inputs.x, inputs.indices, inputs.weights, out=out, recorder=recorder)
        if records and num_recorded % CALLS_PER_FLUSH == 0:
            recorder.flush()
        if holds:
            held_s = now_s
            held_out.play()
        asked_s = time.perf_counter()
        is_due = recorder.align_if_due(group, ALIGN_EVERY_S)
        costs_s["due" if is_due else "not_due"].append(time.perf_counter() - asked_s)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--target", default="auto")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--shape", default="64,6,2048,32")
    parser.add_argument("--samples", type=Path, required=True)
    arguments = parser.parse_args()
    device = choose_device(arguments.target)
    with joined_group() as group:
        plan = Plan(group, Problem(*map(int, arguments.shape.split(","))), device=device)
        recorder = kprof.recorder(device=device)
        assert isinstance(recorder, Recorder), "run this under kprof record"
        recorder.align(group)
        held_out = HeldOut(group, device)
        costs_s = run(group, plan, recorder, arguments.seconds, held_out)
        recorder.align(group)
        if group.rank == 0:
            arguments.samples.write_text(json.dumps(_samples(recorder, costs_s, held_out)))
        plan.close()


def _samples(
    recorder: Recorder, costs_s: dict[str, list[float]], held_out: HeldOut
) -> dict[str, object]:
    names = OffsetSample.__struct_fields__
    calibrations = [
        [[*pair, *msgspec.to_builtins(sample).values()] for pair, sample in calibration.items()]
        for calibration in recorder.calibrations
    ]
    cost_us = {
        f"{kind}_median": 1e6 * statistics.median(costs) for kind, costs in costs_s.items() if costs
    }
    cost_us |= {f"{kind}_max": 1e6 * max(costs) for kind, costs in costs_s.items() if costs}
    return {
        "fields": ["a", "b", *names],
        "calibrations": calibrations,
        "align_if_due_us": cost_us,
        "held_out": held_out.rounds,
    }


if __name__ == "__main__":
    main()
