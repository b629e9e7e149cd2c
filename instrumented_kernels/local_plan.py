"""The base of plans for kernels of one GPU: workspaces, prepared calls, and failures.

A plan serves any number of shapes. A call of a new shape is prepared once; later calls only fill in
addresses. Workspaces come from torch's allocator, so that calls on different streams do not
conflict, and calls can be captured in CUDA graphs.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

from instrumented_kernels.device_plan import DEFAULT_TIMEOUT_S, NOT_RECORDING, DevicePlan
from instrumented_kernels.layouts import Failure, Layout
from kprof.devices import gpu
from kprof.devices.targets import Target

if TYPE_CHECKING:
    import torch

    from instrumented_kernels.kernel_library import Launch, LaunchSequence
    from kprof.devices.build import BuildOptions
    from kprof.recording.null_recorder import AnyRecorder

ELEMENT_TYPES: Final = {"torch.float16": "fp16", "torch.bfloat16": "bf16"}


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

    def __init__(
        self,
        device: str = "cpu",
        *,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        schedule_seed: int = 0,
        options: BuildOptions | None = None,
    ) -> None:
        super().__init__(
            device=device, timeout_s=timeout_s, schedule_seed=schedule_seed, options=options
        )
        self._prepared: dict[Hashable, PreparedCall] = {}
        self._lock = threading.Lock()
        self._pinned = None if self.device == "cpu" else _pinned(ctypes.sizeof(Failure))
        self._failure = (
            Failure() if self._pinned is None else Failure.from_address(self._pinned.data_ptr())
        )

    @property
    def is_on_cpu(self) -> bool:
        """Whether the CPU target runs calls. There grids are chosen for their traces, not for
        speed."""
        return self.options.target is Target.CPU

    def prepare_recording(self) -> None:
        """Load the instrumented build, if the recorder was created after the plan.

        Otherwise the first recorded call does it.
        """
        with self.on_device():
            _ = self._builds.instrumented

    def wait(self) -> None:
        """Wait for all calls. Raises their failures."""
        gpu.synchronize(self.device)
        self._raise_failure()

    def launches(self, kind: Hashable) -> list[tuple[str, int]]:
        """The launches of a kind that was called before: (kernel, blocks) each."""
        sequence = self._prepared[kind].sequence
        return [
            (name, launch.grid.num_blocks)
            for name, launch in zip(sequence.names, sequence.launches, strict=True)
        ]

    def _kept(self, kind: Hashable, prepare: Callable[[], PreparedCall]) -> PreparedCall:
        """The prepared call of this kind. `prepare` makes it the first time."""
        prepared = self._prepared.get(kind)
        if prepared is None:
            with self.on_device():
                prepared = self._prepared[kind] = prepare()
        return prepared

    def _arguments(self, shape: Layout, **own: Any) -> Layout:
        """The CallArguments. `own` are the kernel's fields; the others are the same for all
        calls."""
        return self.source.call(
            shape=shape,
            timeout_ticks=self._timeout_ticks,
            failure=ctypes.addressof(self._failure),
            **own,
        )

    def _prepare(self, arguments: Layout, launches: Sequence[Launch]) -> PreparedCall:
        num_bytes = int(
            self._library.functions.kernel_workspace_bytes(ctypes.byref(arguments.shape))
        )
        return PreparedCall(self._sequence(launches), arguments, num_bytes)

    def _run(
        self,
        prepared: PreparedCall,
        recorder: AnyRecorder | None,
        **values: Any,
    ) -> None:
        """Launch a call with these fields of its arguments.

        On the CPU target, returns when it has ended.
        """
        if self._failure.refused or self._failure.region_and_peer:
            self._raise_failure()
        workspace = self._workspace(prepared.workspace_bytes)
        with self._lock:
            self._num_calls += 1
            for name, value in values.items():
                setattr(prepared.arguments, name, value)
            if workspace is not None:
                prepared.arguments.workspace = workspace.data_ptr()
            self._launch(prepared.sequence, recorder or NOT_RECORDING, self._current_stream())
        if self.device == "cpu":
            self._raise_failure()

    def _workspace(self, num_bytes: int) -> torch.Tensor | None:
        if num_bytes == 0:
            return None
        import torch

        return torch.empty(num_bytes, dtype=torch.uint8, device=self.device)

    def _raise_failure(self) -> None:
        """Raise each failure that kernels reported to the host, once."""
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
                f"{region}; the results "
                "of this call are void (is another process holding the GPU?)"
            )

    def _refusal(self, refused: int) -> Exception:
        """The error for input that a kernel refused, for kernels that check it."""
        raise NotImplementedError


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
    found: _PlanType = plan
    return found


def _pinned(num_bytes: int) -> Any:
    """Zeroed host memory that kernels can write."""
    import torch

    return torch.zeros(num_bytes, dtype=torch.uint8, pin_memory=True)
