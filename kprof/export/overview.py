"""For captures that record by warp, a row that shows what the block does while its warps are folded
away.

The block's time in a launch is divided into equal bins. A bin shows the region in which the block's
warps spend most of it, and equal neighbours become one slice. Nested spans count once: a span loses
the time of the spans inside it. Slices have the names and colours of their regions, and the
category CATEGORY, so that queries can tell them from recorded events.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kprof.export.model import OverlaySlice
from kprof.export.source import RawEvents, Source
from kprof.export.tracks import Nesting
from kprof.regions import Kind, Region

Ints = NDArray[np.int64]

CATEGORY: Final = "overview"
ARG_BUSY_WARPS: Final = "warps in it, mean"
# Writing a slice takes 10 us, so this many take a second.
_MAX_SLICES: Final = 100_000
_MIN_BINS: Final = 4
_MAX_BINS: Final = 128
_BINS_PER_EVENT: Final = 2
# All blocks of an axis, one after the other. Only damaged events last for years.
_LONGEST_AXIS_NS: Final = 1 << 62


def bins_per_block(source: Source) -> tuple[int, int]:
    """The number of bins for each block and launch, and for those that are pinned.

    0 if there are too many blocks.
    """
    by_warp = {(key.rank, key.block) for key in source.keys if key.warp >= 0}
    most_launches = max((len(info.launches) for info in source.trace.ranks), default=0)
    of_all, of_pinned = (
        _MAX_SLICES // max(1, num_blocks * most_launches)
        for num_blocks in (len(by_warp), len(source.grouping.pinned))
    )
    return min(_MAX_BINS, of_all), min(_MAX_BINS, of_pinned)


@dataclass(frozen=True)
class _Axis:
    """Blocks of launches, one after the other on one time axis, each from `first_ns` to `last_ns`.
    Shapes (blocks,).

    `of_row` is the index of each row's block on the axis.
    """

    of_row: NDArray[np.intp]
    block: Ints
    first_ns: Ints
    last_ns: Ints
    shift_ns: Ints
    num_bins: Ints

    @staticmethod
    def of(rows: RawEvents, max_bins: int) -> _Axis | None:
        """None if the blocks' times do not fit one axis."""
        keys, idx = np.unique(np.stack([rows.block, rows.launch]), axis=1, return_inverse=True)
        idx = idx.reshape(-1)
        first = np.full(keys.shape[1], np.iinfo(np.int64).max)
        last = np.zeros(keys.shape[1], np.int64)
        np.minimum.at(first, idx, rows.start_ns)
        np.maximum.at(last, idx, rows.end_ns)
        num_warps = np.bincount(np.unique(idx << 16 | rows.warp) >> 16, minlength=len(first))
        num_bins = _BINS_PER_EVENT * np.bincount(idx, minlength=len(first)) // num_warps
        length = last - first
        if length.sum(dtype=np.float64) + len(length) >= _LONGEST_AXIS_NS:
            return None
        bins = np.minimum(np.clip(num_bins, _MIN_BINS, max_bins), np.maximum(length, 1))
        shift = np.cumsum(np.r_[0, length[:-1] + 1]) - first
        return _Axis(idx, keys[0], first, last, shift, bins)

    def edges(self) -> tuple[NDArray[np.intp], Ints, Ints]:
        """For every bin: its block, and its begin and end on the axis."""
        idx = np.repeat(np.arange(len(self.num_bins)), self.num_bins)
        number = np.arange(len(idx)) - np.repeat(
            np.cumsum(self.num_bins) - self.num_bins, self.num_bins
        )
        first = (self.first_ns + self.shift_ns)[idx]
        # Not length * number // num_bins: the product of a long time may not fit 64 bits.
        whole, rest = np.divmod((self.last_ns - self.first_ns)[idx], self.num_bins[idx])
        begin, end = (
            first + whole * edge + rest * edge // self.num_bins[idx]
            for edge in (number, number + 1)
        )
        return idx, begin, end


def overview(
    events: RawEvents,
    nesting: Nesting,
    names: tuple[Region, ...],
    track_of_block: dict[int, int],
    max_bins: int,
) -> list[OverlaySlice]:
    """The slices of those of the blocks that have only events of warps, by block and start."""
    is_span = np.array([region.kind is Kind.SPAN for region in names])[events.name]
    is_by_warp = ~np.isin(events.block, np.unique(events.block[events.warp < 0]))
    is_by_warp &= np.isin(events.block, list(track_of_block))
    rows = np.flatnonzero(is_span & is_by_warp & (nesting.lane == 0))
    if len(rows) == 0 or max_bins == 0:
        return []
    spans, parent = events.rows(rows), _parents(nesting.depth[rows])
    axis = _Axis.of(spans, max_bins)
    if axis is None:
        return []
    idx, begin_ns, end_ns = axis.edges()
    used = np.unique(spans.name)
    busy = [_busy_ns(spans, parent, axis, name, begin_ns, end_ns) for name in used.tolist()]
    busy_ns = np.max(busy, axis=0)
    # -1 where all warps are idle.
    name = np.where(busy_ns > 0, used[np.argmax(busy, axis=0)], -1)
    is_first = np.r_[True, (name[1:] != name[:-1]) | (idx[1:] != idx[:-1])]
    firsts = np.flatnonzero(is_first)
    lasts = np.r_[firsts[1:], len(name)] - 1
    columns = (name[firsts], idx[firsts], begin_ns[firsts], end_ns[lasts])
    of_slices = zip(*(c.tolist() for c in columns), np.add.reduceat(busy_ns, firsts), strict=True)
    return [
        OverlaySlice(
            names[number].name,
            CATEGORY,
            begin - int(axis.shift_ns[at]),
            end - int(axis.shift_ns[at]),
            {ARG_BUSY_WARPS: f"{busy / max(1, end - begin):.1f}"},
            track_of_block[int(axis.block[at])],
            names[number].category.value,
        )
        for number, at, begin, end, busy in of_slices
        if number >= 0
    ]


def _parents(depth: NDArray[np.int32]) -> NDArray[np.intp]:
    """The row of the enclosing span, or -1.

    Rows are of one lane per track, sorted by (track, start, longer first).
    """
    parent = np.full(len(depth), -1, dtype=np.intp)
    for level in range(1, int(depth.max(initial=0)) + 1):
        inner, outer = np.flatnonzero(depth == level), np.flatnonzero(depth == level - 1)
        # The enclosing span is the last row before this one that has the next smaller depth.
        # Without one where that is no span that is drawn: it never ended.
        place = np.searchsorted(outer, inner)
        parent[inner[place > 0]] = outer[place[place > 0] - 1]
    return parent


def _busy_ns(
    spans: RawEvents, parent: NDArray[np.intp], axis: _Axis, name: int, begin: Ints, end: Ints
) -> NDArray[np.float64]:
    """For each bin, the time that warps spend in a region itself, summed over the warps."""
    shift = axis.shift_ns[axis.of_row]
    own = np.flatnonzero(spans.name == name)
    inner = np.flatnonzero((parent >= 0) & (spans.name[parent] == name))
    starts, ends = spans.start_ns + shift, spans.end_ns + shift
    times = np.concatenate([starts[own], ends[own], starts[inner], ends[inner]])
    deltas = np.repeat([1, -1, -1, 1], [len(own), len(own), len(inner), len(inner)])
    order = np.argsort(times, kind="stable")
    times, num_inside = times[order], np.cumsum(deltas[order])
    # The integral of a step function is linear between its steps.
    integral = np.cumsum(np.r_[0, num_inside[:-1] * np.diff(times)])
    return np.interp(end, times, integral) - np.interp(begin, times, integral)
