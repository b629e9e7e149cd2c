"""What a typical call's critical path has more of, or less of, than in another recording.

A replay puts one place back to what it was, so it sees what became slower and not what is new: a
lock, a barrier, work that nothing hides any more. The critical path has it, and its parts add up to
the length of the call: their differences are never more than what was measured.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from typing import Final

from kprof.analysis.calls import call_lengths
from kprof.analysis.equivalence import MARGIN_SHARE
from kprof.analysis.findings.facts import has_changed
from kprof.analysis.replay.critical_path import critical_path
from kprof.analysis.summary import Summary
from kprof.analysis.warmup import steady_part
from kprof.analysis.wording import duration, listed, percent
from kprof.errors import ClockError, SelectionError
from kprof.regions import Category

GAP: Final = "gap"
_WAIT: Final = Category.WAIT.value
_SYNC: Final = Category.SYNC.value
_MOST_NAMED: Final = 5
# A smaller part of a call is what chance makes of two calls.
_LEAST_SHARE: Final = 0.02


@dataclass(frozen=True)
class PathPart:
    """Regions that do the same in a call, and their time on its critical path, on both sides.

    A region that both sides have stands for itself. Others are compared by `role`, their category,
    or "gap" for what lies between regions: one by one in the order of the call if there are as many
    on both sides, else together. `others_ns` is what the path has more of others because of these.
    `share` is of the longer call, 0 to 1.
    """

    role: str
    before: tuple[str, ...]
    now: tuple[str, ...]
    before_ns: float
    now_ns: float
    others_ns: float = 0.0
    share: float = 0.0

    @property
    def change_ns(self) -> float:
        """How much longer the path is with it now."""
        return self.now_ns - self.before_ns + self.others_ns

    @property
    def sentence(self) -> str:
        """lock takes 3.28 us of a typical call's critical path, 0 ns before: 12 % of the call"""
        named = self.now or self.before
        names = listed(named)
        if self.role == GAP:
            names = f"the time {names}"
        if self.before and self.now and self.before != self.now:
            names += f" (before: {listed(self.before)})"
        verb = "take" if len(named) > 1 and self.role != GAP else "takes"
        waits = f", {duration(self.others_ns)} more" if self.others_ns > 0 else ""
        waits = f", {duration(-self.others_ns)} less" if self.others_ns < 0 else waits
        return (
            f"{names} {verb} {duration(self.now_ns)} of a typical call's critical path, "
            f"{duration(self.before_ns)} before{waits and waits + ' with what follows from it'}: "
            f"{percent(self.share)} of the longer call"
        )


def measured_ns(base: Summary, candidate: Summary) -> float:
    """By how much calls are longer than in the base, in the mean and without slow first ones."""
    before, now = (_mean_ns(one) for one in (base, candidate))
    return now - before


def longer_ns(base: Summary, candidate: Summary) -> float:
    """The mean length of the calls of the side where they are longer."""
    return max(_mean_ns(base), _mean_ns(candidate))


def _mean_ns(summary: Summary) -> float:
    return float(call_lengths(steady_part(summary)[0]).mean())


def path_parts(
    base: Summary, candidate: Summary, left_ns: float, without: frozenset[str] = frozenset()
) -> tuple[PathPart, ...]:
    """What makes the call longer, or shorter where `left_ns` is negative, the largest part first.

    Their shares add up to `left_ns` at most, which is what nothing else explains; regions in
    `without` are explained already. Nothing where a call is too large to be walked.
    """
    whole_ns = longer_ns(base, candidate)
    # Not so either where there is no length.
    if not abs(left_ns) > MARGIN_SHARE * whole_ns:
        return ()
    try:
        sides = [_on_path(one) for one in (base, candidate)]
    except (SelectionError, ClockError):
        return ()
    sign = 1 if left_ns > 0 else -1
    parts = _with_what_follows(_paired(*sides), _as_before(base, candidate), sign)
    parts = [part for part in parts if sign * part.change_ns > 0]
    parts = [part for part in parts if not without & {*part.before, *part.now}]
    at_most = abs(left_ns) / max(abs(left_ns), sum(abs(part.change_ns) for part in parts))
    shares = (at_most * abs(part.change_ns) / whole_ns for part in parts)
    named = [replace(part, share=share) for part, share in zip(parts, shares, strict=True)]
    largest = sorted(named, key=lambda part: -part.share)[:_MOST_NAMED]
    return tuple(part for part in largest if part.share >= _LEAST_SHARE)


def _as_before(base: Summary, candidate: Summary) -> set[str]:
    """Regions that take a block as long as before."""
    sides = [
        one.frame(
            """SELECT region, sum(total_ns) / count(DISTINCT (rank, block, launch)) AS ns
            FROM named_cells GROUP BY region HAVING sum(total_ns) > 0"""
        ).set_index("region")["ns"]
        for one in (base, candidate)
    ]
    shared = sides[0].index.intersection(sides[1].index)
    return {str(name) for name in shared if not has_changed(sides[0][name], sides[1][name])}


def _with_what_follows(parts: list[PathPart], as_before: set[str], sign: int) -> list[PathPart]:
    """Locks and barriers that one side only has, with what the path has more of others for them:
    of waits, and of regions that take no longer than before."""
    syncs = [part for part in parts if part.role == _SYNC and not (part.before and part.now)]
    if len(syncs) != 1 or sign * syncs[0].change_ns <= 0:
        return parts
    follow = [
        part
        for part in parts
        if part.before == part.now
        and sign * part.change_ns > 0
        and (part.role == _WAIT or as_before.issuperset(part.now))
    ]
    others_ns = sum(part.change_ns for part in follow)
    return [
        *(part for part in parts if part not in follow and part is not syncs[0]),
        replace(syncs[0], others_ns=others_ns),
    ]


_Named = tuple[float, str]
_Side = dict[str, tuple[str, float]]


def _on_path(summary: Summary) -> _Side:
    """By region: its role, and its time on the critical path of the call of median length,
    in the order of time."""
    roles = {region.name: region.category.value for region in summary.trace.regions.regions}
    lengths = critical_path(summary).groupby("region", sort=False)["duration_ns"].sum()
    return {str(name): (roles.get(str(name), GAP), float(ns)) for name, ns in lengths.items()}


def _paired(base: _Side, candidate: _Side) -> list[PathPart]:
    parts = [
        PathPart(base[name][0], (name,), (name,), base[name][1], candidate[name][1])
        for name in base
        if name in candidate
    ]
    pools: dict[str, tuple[list[_Named], list[_Named]]] = defaultdict(lambda: ([], []))
    for position, (side, other) in enumerate(((base, candidate), (candidate, base))):
        for name, (role, ns) in side.items():
            if name not in other:
                pools[role][position].append((ns, name))
    for role, both in pools.items():
        # As many of a role on both sides are taken to have the same place in the call.
        if len(both[0]) == len(both[1]):
            parts += [_pooled(role, [one], [other]) for one, other in zip(*both, strict=True)]
        else:
            parts.append(_pooled(role, *both))
    return parts


def _pooled(role: str, before: list[_Named], now: list[_Named]) -> PathPart:
    names = [tuple(name for _, name in sorted(side, reverse=True)) for side in (before, now)]
    before_ns, now_ns = (sum(ns for ns, _ in side) for side in (before, now))
    return PathPart(role, names[0], names[1], before_ns, now_ns)
