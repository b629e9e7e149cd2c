"""Six plants in an exchange of two ranks: the calls that have one, and what the first finding has to say of each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from kprof.analysis.findings import Finding, When

NUM_BLOCKS: Final = 32
NUM_ITEMS: Final = 3
MAX_ITEMS: Final = 12
CALLS: Final = 12
SLOW_CALLS: Final = (2, 6, 7)
BALANCED: Final = "balanced"
LATE_RANK: Final = "late rank"
_LATE_NS: Final = 60_000
_UNEVEN_NS: Final = 15_000


@dataclass(frozen=True)
class CallPlan:
    """One call of both ranks: `rounds[rank, block]`, as a factor, `items[rank, block]`, `late_ns[rank]`."""

    rounds: np.ndarray = field(default_factory=lambda: np.ones((2, NUM_BLOCKS)))
    items: np.ndarray = field(
        default_factory=lambda: np.full((2, NUM_BLOCKS), NUM_ITEMS, dtype=np.int32)
    )
    late_ns: tuple[int, int] = (0, 0)


def _slow(rank: int, block: int | None, factor: float) -> CallPlan:
    plan = CallPlan()
    plan.rounds[rank, slice(None) if block is None else block] *= factor
    return plan


def _path(call: int) -> tuple[int, int]:
    return call % 2, (11 * call + 3) % NUM_BLOCKS


def _uneven_items(_call: int) -> CallPlan:
    plan = CallPlan()
    plan.items[0, 9] = 4 * NUM_ITEMS
    return plan


PLANTS: Final[dict[str, Callable[[int], CallPlan]]] = {
    "slow block": lambda _call: _slow(1, 5, 3.0),
    "slow rank": lambda _call: _slow(0, None, 1.6),
    LATE_RANK: lambda _call: replace(CallPlan(), late_ns=(0, _LATE_NS)),
    "moving straggler": lambda call: _slow(*_path(call), 3.0),
    "3 of 12 launches": lambda call: _slow(1, None, 2.0) if call in SLOW_CALLS else CallPlan(),
    "uneven items": _uneven_items,
}


def is_right(plant: str, finding: Finding) -> bool:
    """Whether a finding is about a plant."""
    where = (finding.kind.name, finding.ranks, finding.blocks)
    if plant == "slow block":
        return where == ("slow", (1,), (5,))
    if plant == "slow rank":
        return where == ("slow", (0,), ())
    if plant == LATE_RANK:
        return where == ("late_start", (1,), ())
    if plant == "moving straggler":
        is_it = finding.kind.name == "slow" and finding.when is When.MOVING
        return is_it and set(finding.places) == {_path(call) for call in range(CALLS)}
    if plant == "3 of 12 launches":
        return where == ("slow", (1,), ()) and finding.calls == SLOW_CALLS
    return where == ("uneven_work", (0,), (9,))


def has_uneven_starts_without(plant: str, is_uneven: bool) -> bool:
    """Whether ranks start apart in the run that a finding about the plant is compared with.

    Calls begin with the first rank's start. A rank that starts late is late by the plant and by
    chance, and a finding takes away both: without them ranks start together.
    """
    return is_uneven and plant != LATE_RANK


def plan_of(plant: str, is_uneven: bool, call: int) -> CallPlan:
    """The plan of a call; uneven starts are the same ones with a plant and without."""
    plan = PLANTS[plant](call) if plant in PLANTS else CallPlan()
    if not is_uneven:
        return plan
    more = np.random.default_rng([5, call]).integers(0, _UNEVEN_NS, 2)
    late = (plan.late_ns[0] + int(more[0]), plan.late_ns[1] + int(more[1]))
    return replace(plan, late_ns=late)
