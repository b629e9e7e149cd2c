"""All ranks on one clock: calibrations of pairs become one correction per rank, with a bound for
every pair.

docs/clocks.md says what the rigorous and the stated bound assume. A calibration whose round trip is
longer than the smallest by D may be off by D / 2, if all of D is on one way: an asymmetric link
widens the stated bound by what it could have done; it cannot break it.

    stated bound = one-sided + sqrt(spread of the shortest ways ^ 2 + clock step ^ 2)
    one-sided    = the largest of (round trip - smallest) / 2, the residue of the triangles, and how
                   far the farthest other path is from the ping-pong

At least three ranks that all played with each other can check the assumption. A slow direction
shows as a longer round trip than other pairs have, and as a triangle that does not close: a to b,
b to c and c to a must add up to 0, once the measured drift has moved them to one moment. The median
over a pair's triangles is its residue. Only a rank that sends as much faster as it receives slower
would stay hidden. Two GPUs alone on a host have other paths in place of triangles, through the host
(kprof.clocks.corner). The truth is taken to lie between the estimates of all paths, so one-sided is
no less than the distance of the farthest, and the bound no less than that of any two. Their noise
adds to the spread: what they state, or their scatter over the calibrations, if that is more.

In a star nothing can be checked and the stated bound is the rigorous one. The same holds between
hosts, and on the CPU target, where one lane has to find the shortest ways of both directions.

kprof.clocks.path says how the offset moves between calibrations and what that adds to the bounds.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from kprof.capture.manifest import Alignment, ClockSegment, PairClock, RankAlignment
from kprof.clocks.offset import OffsetSample, Pair
from kprof.clocks.path import ALL_INSIDE, ClockPath, Outside, Point, without_outliers

Calibration = Mapping[Pair, OffsetSample]


@dataclass(frozen=True)
class _Fit:
    """The paths of all ranks through the calibrations of a recording."""

    reference_rank: int
    calibrations: Sequence[Calibration]
    outside: Outside

    @cached_property
    def floor_ns(self) -> float | None:
        return round_trip_floor_ns(self.calibrations)

    @property
    def has_triangles(self) -> bool:
        """Whether any pair is checked by others."""
        return bool(_triangle_pairs(self.calibrations[0]))

    @property
    def _indices(self) -> range:
        """The numbers of the calibrations."""
        return range(len(self.calibrations))

    @cached_property
    def _parents(self) -> dict[int, int]:
        return _parents(self.reference_rank, self.calibrations[0])

    @cached_property
    def _first_paths(self) -> dict[int, ClockPath]:
        """Every rank's path through its parent only; parents come before their children."""
        paths = {self.reference_rank: ClockPath()}
        for rank, parent in self._parents.items():
            points = [self._point(idx, rank, parent, paths[parent]) for idx in self._indices]
            paths[rank] = ClockPath(tuple(points))
        return paths

    @cached_property
    def paths(self) -> dict[int, ClockPath]:
        """Every rank's path, by rank: what fits all pairs best, without outliers."""
        shifts = [self._shifts_ns(idx) for idx in self._indices]
        paths = {
            rank: [
                replace(point, offset_ns=point.offset_ns + shifts[point.idx].get(rank, 0.0))
                for point in path.points
            ]
            for rank, path in self._first_paths.items()
        }
        return {rank: ClockPath(tuple(without_outliers(paths[rank]))) for rank in sorted(paths)}

    def _shifts_ns(self, idx: int) -> dict[int, float]:
        """How to shift ranks in one calibration so that all pairs fit best (least squares).

        A pair weighs by its bound: one with a slow direction counts little.
        """
        # Ranks with only an indirect way to the reference stay where that put them.
        free = [
            rank
            for rank, parent in self._parents.items()
            if self.calibrations[idx][_sorted(parent, rank)].is_direct
        ]
        samples = {pair: s for pair, s in self.calibrations[idx].items() if s.is_direct}
        bounds_ns = [stated_bound_ns(sample, self.floor_ns) for sample in samples.values()]
        weight = 1 / np.maximum(bounds_ns, 1.0)
        found = [
            sample.offset_ns - _between_ns(self._first_paths, pair, sample.local_ns)
            for pair, sample in samples.items()
        ]
        signs = np.array([[(pair[1] == r) - (pair[0] == r) for r in free] for pair in samples])
        if not free:
            return {}
        solution = np.linalg.lstsq(signs * weight[:, None], found * weight, rcond=None)[0]
        return dict(zip(free, solution.tolist(), strict=True))

    def _point(self, idx: int, rank: int, parent: int, parent_path: ClockPath) -> Point:
        sample = self.calibrations[idx][_sorted(parent, rank)]
        offset_ns, local_ns = _seen_from(parent, rank, sample)
        return Point(
            idx,
            local_ns,
            offset_ns + parent_path.at(local_ns - round(offset_ns)),
            stated_bound_ns(sample, self.floor_ns)
            + max((point.bound_ns for point in parent_path.points), default=0.0),
            sample.rigorous_bound_ns
            + max((point.rigorous_ns for point in parent_path.points), default=0.0),
        )

    @cached_property
    def contradictions_ns(self) -> list[dict[Pair, float]]:
        """Per calibration and pair, in both orders: the measured offset minus that of the paths."""
        found: list[dict[Pair, float]] = []
        for each in self.calibrations:
            found.append({})
            for (a, b), sample in each.items():
                off_ns = sample.offset_ns - _between_ns(self.paths, (a, b), sample.local_ns)
                found[-1] |= {(a, b): off_ns, (b, a): -off_ns}
        return found

    def residue_ns(self, pair: Pair, idx: int) -> float:
        """The median error of closure over the pair's triangles; the paths cancel."""
        (a, b), found = pair, self.contradictions_ns[idx]
        triangles = [(pair, (b, c), (c, a)) for c in self.paths]
        closed = [sides for sides in triangles if found.keys() >= {*sides}]
        sums = [abs(sum(found[side] for side in sides)) for sides in closed]
        return float(np.median(sums)) if sums else 0.0

    @cached_property
    def _others_off_ns(self) -> dict[Pair, dict[str, list[float]]]:
        """By pair and other path: its offset minus that of the ping-pong, of every calibration."""
        found: dict[Pair, dict[str, list[float]]] = {}
        samples = [entry for each in self.calibrations for entry in each.items()]
        for pair, sample in samples:
            for other in sample.others:
                off_ns = other.offset_ns - _between_ns(self.paths, pair, other.local_ns)
                found.setdefault(pair, {}).setdefault(other.name, []).append(off_ns)
        return found

    @cached_property
    def others_ns(self) -> dict[Pair, dict[str, float]]:
        """By pair and other path: the median over the calibrations."""
        return {
            pair: {name: float(np.median(off_ns)) for name, off_ns in by_path.items()}
            for pair, by_path in self._others_off_ns.items()
        }

    @cached_property
    def _scatter_ns(self) -> dict[Pair, float]:
        """How far the other paths of a pair move from calibration to calibration."""
        return {
            pair: math.hypot(*(float(np.std(off_ns)) for off_ns in by_path.values()))
            for pair, by_path in self._others_off_ns.items()
        }

    def pair_bounds_ns(self, pair: Pair, idx: int) -> tuple[float, float]:
        """Stated and rigorous bound at one calibration, from the pair's sample.

        Infinite without.
        """
        sample = self.calibrations[idx].get(pair)
        if sample is None:
            return math.inf, math.inf
        off_ns = abs(self.contradictions_ns[idx][pair])
        estimates_ns = [0.0, *self.others_ns.get(pair, {}).values()]
        checked_ns = max(self.residue_ns(pair, idx), *map(abs, estimates_ns))
        scatter_ns = self._scatter_ns.get(pair, 0.0)
        stated = stated_bound_ns(sample, self.floor_ns, checked_ns, scatter_ns)
        stated = max(stated, min(float(np.ptp(estimates_ns)), sample.rigorous_bound_ns))
        return stated + off_ns, sample.rigorous_bound_ns + off_ns

    def path_bounds_ns(self, rank: int) -> tuple[float, float]:
        """Stated and rigorous bound of a rank against the reference, over its calibrations."""
        pair = _sorted(self.reference_rank, rank)
        bounds = [
            self.pair_bounds_ns(pair, point.idx)
            if pair in self.calibrations[point.idx]
            else (point.bound_ns, point.rigorous_ns)
            for point in self.paths[rank].points
        ]
        stated, rigorous = np.max(bounds, axis=0, initial=0.0) if bounds else (0.0, 0.0)
        return float(stated), float(rigorous)

    def pair_clock(self, pair: Pair, method: str) -> PairClock:
        """Everything about one pair, over the whole recording."""
        a, b = (self.paths[rank] for rank in pair)
        over_paths = np.add(self.path_bounds_ns(pair[0]), self.path_bounds_ns(pair[1]))
        own = [self.pair_bounds_ns(pair, idx) for idx in self._indices]
        stated, rigorous = np.minimum(own, over_paths).max(axis=0)
        time_ns = sum(path.curvature_ns + path.extrapolation_ns(self.outside) for path in (a, b))
        samples = [each[pair] for each in self.calibrations if pair in each]
        residues = [self.residue_ns(pair, idx) for idx in self._indices]
        return PairClock(
            a=pair[0],
            b=pair[1],
            offset_ns=_between_ns(self.paths, pair, (b.points or a.points)[0].local_ns),
            drift_ppm=b.drift_ppm - a.drift_ppm,
            bound_ns=float(stated + time_ns),
            rigorous_bound_ns=float(rigorous + time_ns),
            num_rounds=sum(sample.num_rounds for sample in samples),
            num_calibrations=len(self.calibrations),
            method=method,
            round_trip_ns=min((sample.round_trip_ns for sample in samples), default=0.0),
            residue_ns=max(residues) if self.has_triangles and samples else None,
            others_ns=self.others_ns.get(pair, {}),
        )


def align_clocks(
    method: str,
    reference_rank: int,
    calibrations: Sequence[Calibration],
    outside: Outside = ALL_INSIDE,
) -> Alignment:
    """The alignment of all ranks to the reference rank, from calibrations in order of time.

    Every calibration holds the same pairs, which connect all ranks to the reference rank.
    """
    fit = _Fit(reference_rank, calibrations, outside)
    pairs = {
        pair: fit.pair_clock(pair, method) for pair in itertools.combinations(sorted(fit.paths), 2)
    }
    ranks = [RankAlignment(reference_rank, (ClockSegment(0, 0.0),), 0.0)]
    for rank, path in fit.paths.items():
        if rank != reference_rank:
            clock = pairs[_sorted(reference_rank, rank)]
            bounds = clock.bound_ns, clock.rigorous_bound_ns
            ranks.append(RankAlignment(rank, _segments(path), *bounds))
    return Alignment(
        method,
        reference_rank,
        tuple(sorted(ranks, key=lambda entry: entry.rank)),
        max(sample.num_rounds for sample in calibrations[0].values()),
        tuple(pairs.values()),
        tuple(_notes(calibrations, outside)),
    )


def round_trip_floor_ns(calibrations: Sequence[Calibration]) -> float | None:
    """The smallest round trip of any pair that a triangle or other paths check, None without."""
    pairs = _triangle_pairs(calibrations[0])
    pairs += [pair for pair, sample in calibrations[0].items() if sample.others]
    trips = [calibration[pair].round_trip_ns for calibration in calibrations for pair in pairs]
    return min(trips, default=None)


def stated_bound_ns(
    sample: OffsetSample, floor_ns: float | None, residue_ns: float = 0.0, scatter_ns: float = 0.0
) -> float:
    """The bound of one calibration of a pair whose checks leave this residue, and whose other paths
    scatter so far."""
    if floor_ns is None or not sample.has_shortest_ways:
        return sample.rigorous_bound_ns
    one_sided_ns = max(0.0, (sample.round_trip_ns - floor_ns) / 2, residue_ns)
    noise_ns = math.hypot(*(other.noise_ns for other in sample.others))
    spread_ns = math.hypot(sample.spread_ns, sample.step_ns, max(noise_ns, scatter_ns))
    return min(sample.rigorous_bound_ns, one_sided_ns + spread_ns)


def _between_ns(paths: Mapping[int, ClockPath], pair: Pair, local_ns: int) -> float:
    """The clock of b minus the clock of a when b's clock shows `local_ns`."""
    a, b = (paths[rank] for rank in pair)
    to_reference_ns = b.at(local_ns)
    reference_ns = local_ns - round(to_reference_ns)
    # a's own clock then. Its offset changes by parts per million: one step is enough.
    return to_reference_ns - a.at(reference_ns + round(a.at(reference_ns)))


def _triangle_pairs(calibration: Calibration) -> list[Pair]:
    """The pairs that are a side of a triangle of pairs whose shortest ways can be compared."""
    sides = {pair for pair, sample in calibration.items() if sample.has_shortest_ways}
    ranks = {rank for pair in sides for rank in pair}
    return [
        (a, b)
        for a, b in sorted(sides)
        if any(_sorted(a, c) in sides and _sorted(b, c) in sides for c in ranks - {a, b})
    ]


def _sorted(a: int, b: int) -> Pair:
    return (min(a, b), max(a, b))


def _parents(reference_rank: int, calibration: Calibration) -> dict[int, int]:
    """Every other rank's parent, which it is compared with. Breadth first: parents come first."""
    parents: dict[int, int] = {}
    reached = [reference_rank]
    for rank in reached:
        for pair in sorted(calibration):
            other = pair[1] if pair[0] == rank else pair[0]
            if rank in pair and other not in reached:
                parents[other] = rank
                reached.append(other)
    return parents


def _seen_from(parent: int, rank: int, sample: OffsetSample) -> tuple[float, int]:
    """The offset of `rank` to `parent`, and the moment of it on the clock of `rank`."""
    if parent < rank:
        return sample.offset_ns, sample.local_ns
    return -sample.offset_ns, sample.local_ns - round(sample.offset_ns)


def _segments(path: ClockPath) -> tuple[ClockSegment, ...]:
    """Piecewise-linear correction through the calibrations of one rank."""
    points = path.points
    if len(points) == 1:
        return (ClockSegment(points[0].local_ns, -points[0].offset_ns),)
    return tuple(
        ClockSegment(before.local_ns, -before.offset_ns, -ClockPath((before, after)).drift_ppm)
        for before, after in itertools.pairwise(points)
    )


def _notes(calibrations: Sequence[Calibration], outside: Outside) -> Iterator[str]:
    if len(calibrations) == 1:
        yield (
            "the clocks were calibrated once: their drift is not known; "
            "call align before and after the launches"
        )
    for distance_ns, where in (
        (outside.before_ns, "before the first"),
        (outside.after_ns, "after the last"),
    ):
        if distance_ns > 0:
            yield (
                f"launches ran up to {distance_ns / 1e9:.1f} s {where} clock calibration, which "
                "widens the bound; call align before and after them"
            )
