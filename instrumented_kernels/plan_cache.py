"""Cached plans, one per process group and kind of call: made on first use, freed with the group.

Nothing here keeps a process group alive, so destroy_process_group() closes its store, and a new
group can use its port.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cache
from types import SimpleNamespace
from typing import Any, Final, Generic, Protocol, TypeVar, cast

from instrumented_kernels.call_ledger import CallLedger
from instrumented_kernels.tensors import check_are_tensors
from kprof.devices import gpu
from kprof.devices.groups import Group, SoloGroup, TorchGroup
from kprof.devices.on_use import torch

# How long the first call of a kind waits for the other ranks, which may still be loading data.
MEETING_TIMEOUT_S: Final = 300.0


class KeptPlan(Protocol):
    """What the cache needs from a plan."""

    def wait(self) -> None:
        """Wait for its calls. Raises their failures."""

    def close(self) -> None:
        """Free it. Collective."""

    def abandon(self) -> None:
        """Free it without the other ranks."""


PlanType = TypeVar("PlanType", bound=KeptPlan)
# The kernel, the kind of its calls, and the device index.
_Key = tuple[str, Hashable, int]


@dataclass
class _GroupPlans:
    """The plans of one process group.

    All kernels share one ledger, which compares the order of their calls.
    """

    process_group: Callable[[], Any]
    group: Group
    ledger: CallLedger
    plans: dict[_Key, Any] = field(default_factory=dict)

    def abandon(self) -> None:
        """Free the plans of a group that is gone: its ranks can no longer synchronise or call."""
        while self.plans:
            self.plans.popitem()[1].abandon()
        self.ledger.close()


# By the identity of the process group (0: this process alone). An entry is removed with its group.
_groups: Final[dict[int, _GroupPlans]] = {}


class PlanCache(Generic[PlanType]):
    """The plans of one kernel."""

    def __init__(self, kernel: str, timeout_s: float = MEETING_TIMEOUT_S) -> None:
        self._kernel, self._timeout_s = kernel, timeout_s

    def __len__(self) -> int:
        return len(list(self._kept()))

    def get(
        self,
        process_group: Any,
        kind: Hashable,
        tensor: torch.Tensor,
        make: Callable[[Group, CallLedger], PlanType],
    ) -> PlanType:
        """The plan for calls of this kind on the tensor's device. `make` makes it the first time.

        That is collective, on the group given, torch's default group, or this process alone. Raises
        PeerTimeoutError or DifferentCallsError if the other ranks do not ask for a plan of the same
        kind.
        """
        if process_group is None:
            process_group = _default_group()
        kept = _kept_for(process_group)
        try:
            key = (self._kernel, kind, tensor.get_device())
        except AttributeError:
            # Asked only here, because every call passes.
            check_are_tensors(tensor=tensor)
            raise
        plan = None if kept is None else kept.plans.get(key)
        if plan is None:
            with gpu.made_current(str(tensor.device)):
                kept = kept or _open(process_group)
                text = f"{self._kernel} for the first time on {tensor.device.type}, {kind}"
                kept.ledger.meet(text, self._timeout_s)
                plan = kept.plans[key] = make(kept.group, kept.ledger)
        return cast("PlanType", plan)

    def preparing(self, process_group: Any) -> AbstractContextManager[None]:
        """For what a call does before it has its plan: an error takes the call's number."""
        kept = _kept_for(process_group or _default_group())
        return nullcontext() if kept is None else kept.ledger.preparing

    def wait(self) -> None:
        """Wait for all calls on this rank. Raises their failures."""
        for plan in [plan for *_, plan in self._kept()]:
            plan.wait()

    def close(self) -> None:
        """Free all plans. Collective over every group that has any.

        Raises failures after all are freed.
        """
        errors: list[Exception] = []
        for number, kept, key, plan in reversed(list(self._kept())):
            del kept.plans[key]
            try:
                plan.close()
            except (RuntimeError, ValueError) as error:
                errors.append(error)
            if not kept.plans:
                # Ranks whose calls are out of step begin anew with their next plan.
                _forget(number)
        if errors:
            raise errors[0]

    def _kept(self) -> Iterator[tuple[int, _GroupPlans, _Key, PlanType]]:
        for number, kept in _groups.items():
            for key, plan in kept.plans.items():
                if key[0] == self._kernel:
                    yield number, kept, key, plan


def _kept_for(process_group: Any) -> _GroupPlans | None:
    return _groups.get(0 if process_group is None else id(process_group))


def _default_group() -> Any:
    """Torch's default group, or None."""
    return _groups_of_torch().WORLD


@cache
def _groups_of_torch() -> Any:
    dist = torch.distributed
    return dist.group if dist.is_available() else SimpleNamespace(WORLD=None)


def _open(process_group: Any) -> _GroupPlans:
    """The entry for a new group. Collective."""
    for number in [number for number, kept in _groups.items() if not _is_alive(kept)]:
        _groups.pop(number).abandon()
    if process_group is None:
        solo = SoloGroup()
        _groups[0] = _GroupPlans(lambda: None, solo, CallLedger(solo))
        return _groups[0]
    group = TorchGroup(process_group)
    kept = _GroupPlans(weakref.ref(process_group), group, CallLedger(group))
    number = id(process_group)
    _groups[number] = kept
    weakref.finalize(process_group, _forget, number).atexit = False
    return kept


def _forget(number: int) -> None:
    if number in _groups:
        _groups.pop(number).abandon()


def _is_alive(kept: _GroupPlans) -> bool:
    """Whether the group can still be used. Callers may hold a destroyed process group."""
    if isinstance(kept.group, SoloGroup):
        return True
    try:
        dist = torch.distributed
        return dist.is_initialized() and dist.get_rank(kept.process_group()) >= 0
    except (ValueError, RuntimeError):
        return False
