"""Aligns the profiler's clock with the device clock by the kernel launches that both saw.

A kernel's slice in the profiler's trace encloses everything that its blocks recorded. So for a
launch that both saw, profiler [k0, k1] and device [e0, e1],

    k0 <= e0 + offset  and  e1 + offset <= k1,   so   k0 - e0 <= offset <= k1 - e1

The offset is the middle of the interval that all launches allow, and its error is at most half of
that interval. If no single offset fits, a constant drift between the clocks is assumed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kprof.errors import ExportError
from kprof.export.model import OverlaySlice
from kprof.trace import Trace

# With fewer launches, drift cannot be told from varying gaps before and after the blocks.
_MIN_LAUNCHES_FOR_DRIFT: Final = 4


@dataclass(frozen=True)
class Pairs:
    """Launches that both saw, in ns: [k0, k1] by the profiler, [e0, e1] by the device.

    Shapes (n,).
    """

    k0: NDArray[np.int64]
    k1: NDArray[np.int64]
    e0: NDArray[np.int64]
    e1: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.k0)

    @property
    def middle_ns(self) -> int:
        """The median of the middles of what each launch allows."""
        return int(np.median((self.k0 - self.e0 + self.k1 - self.e1) // 2))


@dataclass(frozen=True)
class Tie:
    """The offset between the clocks: `profiler ns - aligned ns` is within the bounds, plus `drift`
    per ns of aligned time after `from_ns`.

    If launches contradict each other, low_ns > high_ns. The middle is then the offset that violates
    the bounds least.
    """

    low_ns: int
    high_ns: int
    num_launches: int
    drift: float = 0.0
    from_ns: int = 0

    @property
    def offset_ns(self) -> int:
        """The offset that is used."""
        return (self.low_ns + self.high_ns) // 2

    @property
    def bound_ns(self) -> int:
        """The error of the offset: how far a block may be drawn outside its kernel."""
        return (abs(self.high_ns - self.low_ns) + 1) // 2

    @property
    def is_consistent(self) -> bool:
        """Whether some offset fits all launches."""
        return self.low_ns <= self.high_ns

    def aligned_ns(self, profiler_ns: int) -> int:
        """Convert a time of the profiler to aligned time."""
        about_ns = profiler_ns - self.offset_ns
        return about_ns - round(self.drift * (about_ns - self.from_ns))


def tie(trace: Trace, rank: int, stretches: Sequence[Sequence[OverlaySlice]]) -> Tie:
    """Align one rank by the profiler's kernels, for each part of the run that the profiler saw.

    Raises ExportError if no kernel is on both sides.
    """
    launches = _launches(trace, rank)
    pairs = _joined([pairs for kernels in stretches for pairs in _matched(launches, kernels)])
    if pairs is None:
        raise ExportError(
            f"no kernel of rank {rank} is in both the capture and the profiler's trace; "
            f"the capture has {', '.join(map(repr, launches)) or 'none'}; record both in one run"
        )
    constant = _allowed(pairs, 0.0)
    if constant.is_consistent or len(pairs) < _MIN_LAUNCHES_FOR_DRIFT:
        return constant
    drifting = _allowed(pairs, _drift(pairs))
    return drifting if drifting.bound_ns < constant.bound_ns or drifting.is_consistent else constant


def share(trace: Trace, ties: Mapping[int, Tie]) -> dict[int, Tie]:
    """Narrow the offsets by those of other ranks on the host, which have the same profiler clock.

    A rank that the others contradict keeps its own offset, because the profiler converts each GPU's
    times separately.
    """
    return {rank: _narrowed(trace, rank, ties) for rank in ties}


def _narrowed(trace: Trace, rank: int, ties: Mapping[int, Tie]) -> Tie:
    own = ties[rank]
    if trace.alignment is None or own.drift:
        return own
    hosts = {info.rank: info.host for info in trace.ranks}
    low_ns, high_ns = own.low_ns, own.high_ns
    for other, seen in ties.items():
        if hosts.get(other) == hosts.get(rank) and not seen.drift:
            error_ns = round(trace.alignment.bound_between_ns(rank, other))
            low_ns = max(low_ns, seen.low_ns - error_ns)
            high_ns = min(high_ns, seen.high_ns + error_ns)
    return Tie(low_ns, high_ns, own.num_launches) if low_ns <= high_ns else own


def _launches(trace: Trace, rank: int) -> dict[str, list[tuple[int, int]]]:
    """The first start and last end of each launch of a rank, by kernel, in order."""
    query = """SELECT kernel, min(start_ns) AS start_ns, max(end_ns) AS end_ns FROM events
               WHERE rank = ? GROUP BY kernel, ordinal ORDER BY kernel, ordinal"""
    launches: dict[str, list[tuple[int, int]]] = {}
    for row in trace.records(query, [rank]):
        launches.setdefault(row["kernel"], []).append((row["start_ns"], row["end_ns"]))
    return launches


def _matched(
    launches: Mapping[str, list[tuple[int, int]]], kernels: Sequence[OverlaySlice]
) -> list[Pairs]:
    """Pairs of every kernel. Kernels with most launches come first, because their offset helps with
    the others."""
    sides = [(_named(kernels, name), spans) for name, spans in launches.items()]
    sides.sort(key=lambda side: -min(len(side[0]), len(side[1])))
    found: list[Pairs] = []
    for seen, spans in sides:
        pairs = _match(seen, spans, found[0].middle_ns if found else None)
        if len(pairs):
            found.append(pairs)
    return found


def _joined(found: Sequence[Pairs]) -> Pairs | None:
    if not found:
        return None
    columns = [(p.k0, p.k1, p.e0, p.e1) for p in found]
    return Pairs(*(np.concatenate(column) for column in zip(*columns, strict=True)))


def _named(kernels: Sequence[OverlaySlice], name: str) -> list[OverlaySlice]:
    """Kernels of this name, by start. The profiler's names may add return types, scopes and
    arguments.

    A name with a path, such as `all_to_all/dispatch_send`, also matches the kernel `dispatch_send`.
    """
    for wanted in dict.fromkeys((name, name.rpartition("/")[2])):
        pattern = re.compile(rf"(?<!\w){re.escape(wanted)}(?!\w)")
        seen = [kernel for kernel in kernels if wanted and pattern.search(kernel.name)]
        if seen:
            return sorted(seen, key=lambda kernel: kernel.start_ns)
    return []


def _match(
    seen: Sequence[OverlaySlice], spans: Sequence[tuple[int, int]], near_ns: int | None
) -> Pairs:
    """Pair launches by order. If one side saw more, use the shift that fits `near_ns` best, or,
    without one, the shift at which the differences of the starts agree best."""
    kernels = np.array([(s.start_ns, s.end_ns) for s in seen], dtype=np.int64).reshape(-1, 2)
    blocks = np.array(spans, dtype=np.int64).reshape(-1, 2)
    num_pairs = min(len(kernels), len(blocks))
    shifts = range(num_pairs - len(kernels), len(blocks) - num_pairs + 1)
    candidates = (
        Pairs(
            *kernels[max(0, -shift) :][:num_pairs].T,
            *blocks[max(0, shift) :][:num_pairs].T,
        )
        for shift in shifts
    )
    return min(candidates, key=lambda pairs: _misfit(pairs, near_ns))


def _misfit(pairs: Pairs, near_ns: int | None) -> tuple[int, int]:
    if not len(pairs):
        return 0, 0
    starts = pairs.k0 - pairs.e0
    disagreement = int(starts.max() - starts.min())
    if near_ns is not None:
        return abs(pairs.middle_ns - near_ns), disagreement
    longer = (pairs.k1 - pairs.k0) - (pairs.e1 - pairs.e0)
    return disagreement, int(np.abs(longer).sum())


def _allowed(pairs: Pairs, drift: float) -> Tie:
    """The offsets that all launches allow, for a given drift."""
    from_ns = int(pairs.e0.min())
    low = pairs.k0 - pairs.e0 - np.rint(drift * (pairs.e0 - from_ns)).astype(np.int64)
    high = pairs.k1 - pairs.e1 - np.rint(drift * (pairs.e1 - from_ns)).astype(np.int64)
    return Tie(int(low.max()), int(high.min()), len(pairs), drift, from_ns if drift else 0)


def _drift(pairs: Pairs) -> float:
    """The slope through the middles of what each launch allows, in ns per ns."""
    middles = (pairs.k0 - pairs.e0 + pairs.k1 - pairs.e1) / 2
    times = (pairs.e0 - pairs.e0.min()).astype(np.float64)
    return float(np.polyfit(times, middles - middles[0], 1)[0])
