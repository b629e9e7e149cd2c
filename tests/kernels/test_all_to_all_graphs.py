"""Calls of the all-to-all that are repeated with the arguments of the first, as a graph repeats them: their values, and what
is recorded: sends and waits of the same replay are joined, on all ranks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from ranks import Run, run_rank
from thread_ranks import ThreadGroup, run_threads

from delivery import dispatched
from instrumented_kernels.all_to_all import Plan, Problem
from instrumented_kernels.all_to_all.routing import count_wrong, make_inputs, reference
from instrumented_kernels.plan import NOT_RECORDING
from kprof.recording.launcher.record import session
from kprof.recording.launches.launch_buffer import LaunchBuffer
from kprof.recording.rank.null_recorder import NullRecorder
from kprof.recording.rank.recorder import Recorder
from kprof.regions import RegionsLike
from kprof.trace import Trace

PROBLEM = Problem(num_experts=9, top_k=3, hidden=40, max_tokens=6)
VARIANTS = ["rank_flags", "token_flags", "balanced", "pipelined"]


class Replayed:
    """One captured call: its tensors stay, and every replay has the same arguments."""

    def __init__(self, plan: Plan, rank: int) -> None:
        self._plan, self._rank = plan, rank
        self.inputs = make_inputs(PROBLEM, PROBLEM.max_tokens, rank)
        self.out = torch.full_like(self.inputs.x, float("nan"))
        plan._is_counted = True
        plan._fill_call(*self._tensors(), self.out)
        self._arguments = bytes(plan._call)

    def _tensors(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return self.inputs.x, self.inputs.indices, self.inputs.weights

    def replay(self, seed: int) -> int:
        """The number of wrong values."""
        fresh = make_inputs(PROBLEM, PROBLEM.max_tokens, 7919 * seed + self._rank)
        for kept, new in zip(self._tensors(), (fresh.x, fresh.indices, fresh.weights), strict=True):
            kept.copy_(new)
        plan = self._plan
        np.frombuffer(plan._call, np.uint8)[:] = np.frombuffer(self._arguments, np.uint8)
        plan._num_calls += 1
        plan._launch_call(NOT_RECORDING)
        plan.wait()
        return count_wrong(self.out, reference(PROBLEM, self.inputs, plan.group.world_size))


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("num_eager", [0, 1, 2])
def test_replays_and_calls_take_turns(variant: str, num_eager: int) -> None:
    """Buffers alternate from call to call: a number that came twice would give the data of the call before."""
    run = Run(PROBLEM, 3, variant=variant, seed=5)

    def work(group: ThreadGroup) -> None:
        plan = Plan(
            group, PROBLEM, variant=variant, schedule_seed=5, timeout_s=60, options=run.options()
        )
        num_wrong = 0

        def call(seed: int) -> int:
            inputs = make_inputs(PROBLEM, PROBLEM.max_tokens, 31 * seed + group.rank)
            out = plan(inputs.x, inputs.indices, inputs.weights)
            return count_wrong(out, reference(PROBLEM, inputs, group.world_size))

        for seed in range(num_eager):
            num_wrong += call(seed)
        graph = Replayed(plan, group.rank)
        for seed in range(5):
            num_wrong += graph.replay(seed)
        num_wrong += call(99)
        num_wrong += graph.replay(100)
        delivered = dispatched(plan)
        plan.close()
        assert num_wrong == 0
        assert plan._epoch == num_eager
        assert sum(delivered.num_rows) > 0

    run_threads(3, work)


NUM_CALLS = 5
OF_FOUR_RANKS = Problem(num_experts=8, top_k=3, hidden=40, max_tokens=6)


class KeptBuffers(NullRecorder):
    """Gives every launch of a kernel the buffer of the first, as a graph of one call does."""

    is_recording = True

    def __init__(self, recorder: Recorder, flush_after: int) -> None:
        self._recorder, self._flush_after = recorder, flush_after
        self._buffers: dict[str, LaunchBuffer] = {}
        self._num_launches = 0

    def launch(
        self,
        kernel: str,
        regions: RegionsLike = None,
        *,
        num_blocks: int = 0,
        threads_per_block: int = 0,
        tracks_per_block: int = 0,
        is_replayed: bool = False,
    ) -> LaunchBuffer:
        del threads_per_block, is_replayed
        if self._num_launches == self._flush_after:
            self._recorder.flush()
        self._num_launches += 1
        if kernel not in self._buffers:
            self._buffers[kernel] = self._recorder.launch(
                kernel,
                regions,
                num_blocks=num_blocks,
                tracks_per_block=tracks_per_block,
                is_replayed=True,
            )
        return self._buffers[kernel]


@pytest.mark.parametrize("flush_step", [0, 3])
def test_every_flow_joins_the_ends_of_one_replay(tmp_path: Path, flush_step: int) -> None:
    """With a step, ranks flush at different moments: one has its replays in other parts than the next."""
    num_rows = []

    with session(tmp_path / "run.kprof") as directory:

        def work(group: ThreadGroup) -> None:
            recorder = Recorder(directory, rank=group.rank, world_size=4, arena_bytes=1 << 20)
            recorder.align(group)
            flush_after = flush_step * (group.rank + 1) if flush_step else -1
            run = Run(OF_FOUR_RANKS, 4, num_calls=NUM_CALLS, seed=3)
            result = run_rank(run, group, KeptBuffers(recorder, flush_after))
            recorder.align(group)
            recorder.close()
            num_rows.append(result.num_rows_sent)
            assert result.num_wrong == 0

        run_threads(4, work)
    trace = Trace.open(tmp_path / "run.kprof")
    assert {len(info.launches) for info in trace.ranks} == {5 * NUM_CALLS}
    assert [info.counts.unsplit_launches for info in trace.ranks] == [0] * 4
    joined = trace.frame("SELECT send_region, count(*) AS n FROM flows GROUP BY 1").set_index(
        "send_region"
    )["n"]
    assert joined["dispatch/send"] == joined["combine/send"] == sum(num_rows)
    assert joined["dispatch/send-counts"] == NUM_CALLS * 4 * 4
    crossing = trace.frame(
        """SELECT count(*) AS n FROM flows f JOIN events s ON s.event_id = f.send_event_id
           JOIN events w ON w.event_id = f.wait_event_id WHERE s.ordinal <> w.ordinal"""
    )
    assert crossing["n"][0] == 0
