"""What dispatch of the all-to-all delivered to a rank, from the memory of its plan."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import numpy as np

from instrumented_kernels.all_to_all import Plan
from instrumented_kernels.plan import NOT_RECORDING


@dataclass(frozen=True)
class Dispatched:
    """The rows that dispatch delivered to one rank, grouped by local expert. `num_rows[e]` rows for local expert
    e; `rows[e][i]` fp16 [D] after the expert; `origins[e][i]` is (flat token = token * K + k, source rank)."""

    num_rows: np.ndarray
    rows: list[np.ndarray]
    origins: list[np.ndarray]


def dispatched(plan: Plan) -> Dispatched:
    """The rows that the last call delivered to this rank."""
    problem, world_size = plan.problem, plan.group.world_size
    num_local, capacity = problem.num_experts // world_size, world_size * problem.max_tokens
    places = (ctypes.c_uint64 * 5)()
    plan._library.functions.all_to_all_delivery(ctypes.byref(plan._shape), places)
    counts_at, origins_at, rows_at, stride, counted_at = places
    num_calls = plan._epoch + int(_read(plan, counted_at, 1, np.uint32)[0])
    if plan.variant == "pipelined" and num_calls:
        # It leaves rows where they arrived.
        plan._call.first_epoch, plan._call.is_counted = num_calls, False
        gather = plan._sequence_of("/gather_expert_rows", plan._grid)
        plan._launch(gather, NOT_RECORDING, plan._current_stream())
    counts_at += num_calls % 2 * num_local * 4
    num_rows = _read(plan, counts_at, num_local, np.uint32)
    origins = _read(plan, origins_at, num_local * capacity * 2, np.uint32)
    origins = origins.reshape(num_local, capacity, 2)
    rows = _read(plan, rows_at, num_local * capacity * stride, np.float16)
    rows = rows.reshape(num_local, capacity, stride)[:, :, : problem.hidden]
    return Dispatched(
        num_rows.copy(),
        [rows[e, :n].copy() for e, n in enumerate(num_rows)],
        [origins[e, :n].copy() for e, n in enumerate(num_rows)],
    )


def _read(plan: Plan, offset: int, num: int, dtype: Any) -> np.ndarray:
    """A copy of a part of the plan's workspace, after waiting for all launches."""
    end = offset + num * np.dtype(dtype).itemsize
    return plan._open_workspace().read(offset, end).view(dtype)
