"""The base of plans for kernels of several ranks: builds, memory, the launches of a call, and
failures.

A kernel derives from KernelPlan, names its source, and fills the arguments of its calls. Everything
that is the same from call to call is prepared once, so that a call costs the host little.
"""

from __future__ import annotations

import ctypes
import time
import warnings
from typing import Any

from instrumented_kernels.call_ledger import CallLedger, PeerError, PeerTimeoutError
from instrumented_kernels.device_plan import DEFAULT_TIMEOUT_S as DEFAULT_TIMEOUT_S
from instrumented_kernels.device_plan import NOT_RECORDING as NOT_RECORDING
from instrumented_kernels.device_plan import DevicePlan
from instrumented_kernels.kernel_library import LaunchSequence
from instrumented_kernels.layouts import MAX_RANKS, Layout
from kprof.devices import gpu
from kprof.devices.build import BuildOptions
from kprof.devices.groups import Group
from kprof.devices.memory import Memory, allocate
from kprof.devices.symmetric import SymmetricHeap
from kprof.errors import ArenaError, TargetError
from kprof.recording.rank.null_recorder import AnyRecorder


class KernelPlan(DevicePlan):
    """The resources for calls of one kernel on one group of ranks. Creation is collective.

    `device` is "cpu" or a torch device; it need not be the current one. Calls on a GPU are only
    launched. A later failure is raised by the next call, by `wait` or by `close`, whichever comes
    first, also for calls in a CUDA graph. After a timeout the plan is unusable, because the peer's
    data may still arrive. Plans whose calls all ranks must make in the same order
    share a `ledger`; by default a plan has its own.
    """

    def __init__(
        self,
        group: Group,
        device: str = "cpu",
        timeout_s: float = DEFAULT_TIMEOUT_S,
        schedule_seed: int = 0,
        options: BuildOptions | None = None,
        ledger: CallLedger | None = None,
    ) -> None:
        check_world_size(group.world_size)
        self.group = group
        super().__init__(device, timeout_s, schedule_seed, options)
        # The first two words of the report, all zero unless something failed: cheap to check on
        # every call.
        words = (ctypes.c_uint64 * 2).from_address(ctypes.addressof(self._failure))
        self._alarm = memoryview(words).cast("B").cast("Q")
        self._has_told_timeout = False
        self._recorder: AnyRecorder = NOT_RECORDING
        self._latest_stream: int | None = None
        self._shared_ledger = ledger

    def close(self) -> None:
        """Free the memory. Collective: no rank may still write to another's heap.

        Raises what `wait` would.
        """
        try:
            gpu.synchronize(self.device)
            self.group.barrier()
            self._free()
            self._raise_failure()
        finally:
            self._close_ledger()

    def abandon(self) -> None:
        """Free the memory of a group that was destroyed, so its ranks cannot synchronise.

        Warns about a failure that was not raised yet.
        """
        gpu.synchronize(self.device)
        self._free()
        try:
            self._raise_failure()
        except (PeerError, ValueError) as error:
            warnings.warn(f"{error} (the process group is gone)", RuntimeWarning, stacklevel=2)
        self._close_ledger()

    def _allocate(self, shape: Layout, agreed: object) -> None:
        """Allocate the memory that calls of `shape` need: a zeroed heap that all ranks of the group
        can write, and a workspace of this rank.

        Raises ValueError if ranks disagree on `agreed`, kprof's TargetError if memory is short or
        ranks cannot access each other.
        """
        check_same_on_all_ranks(self.group, agreed)
        functions, shape_address = self._library.functions, ctypes.byref(shape)
        self._shape = shape
        heap_bytes = functions.kernel_heap_bytes(shape_address)
        workspace_bytes = functions.kernel_workspace_bytes(shape_address)
        self._heap = SymmetricHeap(self.group, heap_bytes, self.device)
        try:
            # None once the plan is closed, or a call of it has failed.
            self._workspace: Memory | None = allocate(workspace_bytes, self.device)
        except ArenaError as error:
            raise TargetError(
                f"no room for a workspace of {workspace_bytes >> 20} MiB on {self.device}; "
                "use a smaller shape or more ranks"
            ) from error
        self._heaps = (ctypes.c_void_p * MAX_RANKS)(*self._heap.bases)
        self._ledger = self._shared_ledger or CallLedger(self.group)

    def _arguments(self, **own: Any) -> Layout:
        """The CallArguments. `own` are the kernel's fields; the others are the same for all
        calls."""
        return self._filled(
            self._shape,
            rank=self.group.rank,
            workspace=self._open_workspace().address,
            heaps=self._heaps,
            **own,
        )

    def _begin_call(self, fingerprint: int) -> None:
        """Call it before filling the arguments of a call.

        Raises failures of earlier calls, or DifferentCallsError.
        """
        if self._alarm[0] or self._alarm[1] or self._workspace is None:
            with self._ledger.preparing:
                self._raise_failure()
                self._open_workspace()
        self._ledger.note(fingerprint)
        self._num_calls += 1

    def _run(self, sequence: LaunchSequence, recorder: AnyRecorder) -> None:
        """Launch a call."""
        stream = self._current_stream()
        if stream != self._latest_stream:
            # Calls share the plan's memory, so that one on another stream waits for the one before.
            # A graph cannot wait for work outside it: whoever replays it must ensure the order.
            if self._latest_stream is not None and not gpu.is_capturing():
                gpu.follow(self.device, self._latest_stream)
            self._latest_stream = stream
        try:
            self._recorder = recorder
            self._launch(sequence, recorder, stream)
            # A launch that gave up is left open: what it waited for tells other ranks why.
            if self.device == "cpu" and not self._failure.region_and_peer:
                recorder.finished()
        except (RuntimeError, ValueError):
            self._ledger.withdraw()
            raise

    def _end_call(self) -> None:
        """Call it after a launch. On the CPU target the call has ended, so this raises its
        failure."""
        if self.device == "cpu":
            self._raise_failure()

    def _raise_failure(self) -> None:
        failure = self._failure
        if failure.region_and_peer and not self._has_told_timeout:
            self._has_told_timeout = True
            # Peers may still write to the heap, which only closing frees.
            self._workspace = None
            raise self._timeout_error()
        if refused := failure.refused:
            failure.refused = 0
            raise self._refusal(refused)

    def _timeout_error(self) -> PeerTimeoutError:
        failure = self._failure
        while not (failure.epoch_and_slot and failure.waited_ms):
            time.sleep(0)  # on their way from the device
        region, peer = divmod(failure.region_and_peer, 1 << 32)
        epoch, slot = divmod(failure.epoch_and_slot, 1 << 32)
        waited_s = (failure.waited_ms - 1) / 1e3
        clauses = [
            f"rank {self.group.rank} waited {waited_s:.1f} s for rank {peer}, slot {slot}, "
            f"epoch {epoch}, in {self.regions[region - 1].name}",
            self._ledger.explain(peer),
            self._recorder.explain_timeout(waited_s),
            "the results of this call and later ones are void",
        ]
        return PeerTimeoutError("; ".join(filter(None, clauses)))

    def _open_workspace(self) -> Memory:
        """Raises RuntimeError once the plan is unusable."""
        if self._workspace is None:
            raise RuntimeError(
                "the plan was closed, or an earlier call of it failed; create a new plan "
                "(close_plans() on all ranks drops those that the functions keep)"
            )
        return self._workspace

    def _free(self) -> None:
        """Free the memory; the caller must know that nobody writes to it."""
        self._heap.close()
        self._workspace = None

    def _close_ledger(self) -> None:
        if self._shared_ledger is None:
            self._ledger.close()


def check_world_size(world_size: int) -> None:
    """Raise ValueError for more ranks than a call can address."""
    if not 1 <= world_size <= MAX_RANKS:
        raise ValueError(f"{world_size} ranks: give 1 to {MAX_RANKS}")


def check_same_on_all_ranks(group: Group, own: object) -> None:
    """Raise ValueError if ranks disagree. Collective."""
    everyone = group.all_gather(own)
    for rank, each in enumerate(everyone):
        if each != everyone[0]:
            raise ValueError(
                f"rank {rank} has the plan {each}, rank 0 has {everyone[0]}; they must be equal"
            )
