"""How fast ranks get on: what `kprof watch` shows of a run that is under way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from kprof.recording.launches.progress import RankProgress

# Events are written in bursts: with --drain when a part of the memory is full.
BURSTS_S: Final = 5.0


@dataclass(frozen=True)
class Look:
    """The progress of all ranks at one moment."""

    at_s: float
    ranks: Sequence[RankProgress]


@dataclass(frozen=True)
class RankPace:
    """What a rank does in a second. `num_behind` is how many calls of the recorder (launches and
    steps) it has made less than the rank with most, `waited_ns` is by peer."""

    rank: int
    is_running: bool
    events_per_s: float
    num_dropped: int
    launches_per_s: float
    steps_per_s: float
    num_behind: int
    waited_ns: np.ndarray


def paces(looks: Sequence[Look]) -> list[RankPace]:
    """Launches and steps between the last two of at least two looks, events and waits since the
    first. A rank that was not there before had done nothing."""
    first, last, now = looks[0], looks[-2], looks[-1]
    most = max((each.num_calls for each in now.ranks), default=0)
    firsts, lasts = ({each.rank: each for each in look.ranks} for look in (first, last))
    nothing = RankProgress(-1)
    found = []
    for each in now.ranks:
        older, old = firsts.get(each.rank, nothing), lasts.get(each.rank, nothing)
        found.append(
            RankPace(
                each.rank,
                each.is_running,
                (each.num_events - older.num_events) / (now.at_s - first.at_s),
                each.num_dropped,
                (each.num_launches - old.num_launches) / (now.at_s - last.at_s),
                (each.num_steps - old.num_steps) / (now.at_s - last.at_s),
                most - each.num_calls,
                np.subtract(each.waited_ns, older.waited_ns, dtype=float),
            )
        )
    return found


def describe_pace(ranks: Sequence[RankPace]) -> str:
    """One line for all ranks together.

    It names the rank that made the fewest calls, where not all made as many, and the peer that this
    rank (else all ranks) waited for most, with its share of the waits.
    """
    slowest = max(ranks, key=lambda each: each.num_behind)
    behind, waited_ns = slowest.num_behind, slowest.waited_ns
    who = f"slowest rank {slowest.rank}, {behind} call{'s' * (behind > 1)} behind"
    if not behind:
        who = "all ranks made as many calls"
        waited_ns = np.sum([each.waited_ns for each in ranks], axis=0)
    if peer := describe_peer(waited_ns):
        who += f", waits most for rank {peer}"
    events, launches, steps = (
        sum(getattr(each, f"{what}_per_s") for each in ranks)
        for what in ("events", "launches", "steps")
    )
    steps_too = f"{steps:,.0f} steps/s  " if steps else ""
    return (
        f"{events:,.0f} events/s  {sum(each.num_dropped for each in ranks):,} dropped  "
        f"{launches:,.0f} launches/s  {steps_too}{who}"
    )


def describe_peer(waited_ns: np.ndarray) -> str:
    """The peer that was waited for most, and its share of the waits; empty without waits."""
    if not waited_ns.any():
        return ""
    return f"{waited_ns.argmax()} ({waited_ns.max() / waited_ns.sum():.0%})"
