"""The base of plans for kernels of one GPU: workspaces, prepared calls, and failures.

A plan serves any number of shapes. A call of a new shape is prepared once; later calls only fill in
addresses. Workspaces come from torch's allocator, so that calls on different streams do not
conflict, and calls can be captured in CUDA graphs.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from instrumented_kernels.device_plan import NOT_RECORDING, DevicePlan
from instrumented_kernels.kernel_library import Launch, LaunchSequence
from instrumented_kernels.layouts import Layout
from kprof.devices.on_use import torch
from kprof.recording.rank.null_recorder import AnyRecorder


class BlockTimeoutError(RuntimeError):
    """A block waited for another one longer than the limit. The results are invalid."""


@dataclass(frozen=True)
class PreparedCall:
    """The launches of one kind of call.

    All share `arguments`, which each call fills in.
    """

    sequence: LaunchSequence
    arguments: Layout
    workspace_bytes: int


class LocalPlan(DevicePlan):
    """Calls of one kernel on one device, from any thread and stream.

    Calls on a GPU are only launched. A later failure is raised by the next call or by `wait`,
    whichever comes first, also for calls in a CUDA graph.
    """

    _prepared: dict[Hashable, PreparedCall]

    def _prepare_kind(self, kind: Any) -> PreparedCall:
        """Make the launches of a kind of call. Each kernel has its own kinds."""
        raise NotImplementedError

    def _prepare(self, arguments: Layout, launches: Sequence[Launch]) -> PreparedCall:
        num_bytes = int(
            self._library.functions.kernel_workspace_bytes(ctypes.byref(arguments.shape))
        )
        return PreparedCall(self._sequence(launches), arguments, num_bytes)

    def _prepare_launch(
        self,
        arguments: Layout,
        variant_idx: int,
        num_blocks: int,
        num_warps: int,
        tracks_per_block: int | None = None,
    ) -> PreparedCall:
        """The same for calls of one launch, or of none where there are no blocks."""
        grid = self._library.independent_grid(num_blocks, num_warps, tracks_per_block)
        launches = [Launch(variant_idx, 0, arguments, grid)] if num_blocks else []
        return self._prepare(arguments, launches)

    def _run(self, kind: Hashable, recorder: AnyRecorder | None, **values: Any) -> None:
        """Run a call of this kind with these fields of its arguments. Prepares the first one.

        On the CPU target, returns when it has ended.
        """
        prepared = self._prepared.get(kind)
        if prepared is None:
            with self.on_device():
                prepared = self._prepared[kind] = self._prepare_kind(kind)
        if self._failure.refused or self._failure.region_and_peer:
            self._raise_failure()
        workspace = None
        if prepared.workspace_bytes:
            workspace = torch.empty(prepared.workspace_bytes, dtype=torch.uint8, device=self.device)
        with self._lock:
            self._num_calls += 1
            for name, value in values.items():
                setattr(prepared.arguments, name, value)
            if workspace is not None:
                prepared.arguments.workspace = workspace.data_ptr()
            self._launch(prepared.sequence, recorder or NOT_RECORDING, self._current_stream())
        if self.device == "cpu":
            self._raise_failure()

    def _raise_failure(self) -> None:
        failure = self._failure
        if refused := failure.refused:
            failure.refused = 0
            raise self._refusal(refused)
        if waited_for := failure.region_and_peer:
            failure.region_and_peer = 0
            limit_s = self._timeout_ticks / self._library.ticks_per_second
            region = self.regions[(waited_for >> 32) - 1].name
            raise BlockTimeoutError(
                f"a block waited more than {limit_s:g} s for the other blocks of its launch, in "
                f"{region}; the results of this call are void (is another process holding the GPU?)"
            )


_PlanType = TypeVar("_PlanType", bound=LocalPlan)
_plans: Final[dict[tuple[type[LocalPlan], str], Any]] = {}
_plans_lock: Final = threading.Lock()


def plan_for(kind: type[_PlanType], tensor: torch.Tensor) -> _PlanType:
    """This kernel's plan for the tensor's device: made on first use, kept until the process
    ends."""
    key = (kind, str(tensor.device))
    plan = _plans.get(key)
    if plan is None:
        with _plans_lock:
            plan = _plans.get(key) or _plans.setdefault(key, kind(key[1]))
    return plan
