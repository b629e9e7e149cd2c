"""Level of detail: merges short neighbours in traces with more spans than a viewer can hold, and
marks them as merged.

Neighbours are consecutive leaf spans of a track, in the same parent span and the same launch. At
threshold T they merge if both of them and the gap between them last at most T. They merge within
cells of 16 T only, so that a long row of short spans stays a row. T doubles until the file is small
enough. If that is never enough, the trace is cut in time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kprof.capture.directory import EVENT_OPEN
from kprof.export.model import Batch
from kprof.regions import Kind, Region

_NUM_LEVELS: Final = 48
_CELL_LEVELS: Final = 4
_TIME_BINS: Final = 4096


@dataclass(frozen=True)
class Detail:
    """How much to show: merge spans up to `threshold_ns` (0: none), stop at `until_ns`."""

    threshold_ns: int
    until_ns: int


@dataclass(frozen=True)
class MergedNames:
    """Names, each with two variants for merged spans.

    A merged span gets name `k + only` if all its spans have name k, else `k + mostly`.
    """

    names: tuple[Region, ...]
    only: int
    mostly: int

    @staticmethod
    def of(names: tuple[Region, ...]) -> MergedNames:
        """Append the variants."""
        only = [_twin(region, f"{region.name} (merged)") for region in names]
        mostly = [_twin(region, f"mostly {region.name} (merged)") for region in names]
        return MergedNames((*names, *only, *mostly), len(names), 2 * len(names))


def _twin(region: Region, name: str) -> Region:
    return Region(0, name, region.category, region.kind)


@dataclass(frozen=True)
class Neighbours:
    """The smallest level (T = 2**level ns) at which each row may merge with its predecessor, or
    _NUM_LEVELS."""

    level: NDArray[np.int64]
    start_ns: NDArray[np.int64]

    def are_merged(self, level: int) -> NDArray[np.bool_]:
        """Whether each row merges into its predecessor at this level."""
        cell = self.start_ns >> (level + _CELL_LEVELS)
        merged: NDArray[np.bool_] = self.level <= level
        merged[1:] &= cell[1:] == cell[:-1]
        return merged


def find_neighbours(
    batch: Batch, launch: NDArray[np.int64], depth: NDArray[np.int32], names: tuple[Region, ...]
) -> Neighbours:
    """Which rows could merge into the row before them; shapes (n,)."""
    if len(batch) == 0:
        return Neighbours(np.zeros(0, np.int64), batch.start_ns)
    is_span = np.array([region.kind is Kind.SPAN for region in names])[batch.name]
    is_same_track = np.r_[False, batch.track[1:] == batch.track[:-1]]
    begins_after = np.r_[False, batch.start_ns[1:] >= batch.end_ns[:-1]]
    is_leaf = np.r_[(begins_after | ~is_same_track)[1:], True]
    may_merge = is_span & is_leaf & (batch.flags & EVENT_OPEN == 0)
    pair = may_merge & np.r_[False, may_merge[:-1]] & is_same_track & begins_after
    pair &= np.r_[False, (depth[1:] == depth[:-1]) & (launch[1:] == launch[:-1])]
    duration = batch.end_ns - batch.start_ns
    gap = batch.start_ns - np.r_[0, batch.end_ns[:-1]]
    needed_ns = np.maximum(np.maximum(duration, np.r_[0, duration[:-1]]), gap)
    level = np.ceil(np.log2(np.maximum(needed_ns, 1))).astype(np.int64)
    return Neighbours(np.where(pair, level, _NUM_LEVELS), batch.start_ns)


class DetailChooser:
    """Counts over all pieces how many rows each level would leave."""

    def __init__(self, last_ns: int) -> None:
        self._bin_ns = last_ns // _TIME_BINS + 1
        self._num_left = np.zeros(_NUM_LEVELS, dtype=np.int64)
        self._num_left_by_time = np.zeros(_TIME_BINS, dtype=np.int64)

    def add(self, neighbours: Neighbours) -> None:
        """Count a piece."""
        num_rows = len(neighbours.level)
        for level in range(_NUM_LEVELS):
            merged = neighbours.are_merged(level)
            self._num_left[level] += num_rows - int(merged.sum())
        starts = neighbours.start_ns[~neighbours.are_merged(_NUM_LEVELS - 1)]
        self._num_left_by_time += np.bincount(starts // self._bin_ns, minlength=_TIME_BINS)

    def choose(self, max_slices: int) -> Detail:
        """The finest level that fits `max_slices`. If none fits, the last level, cut in time."""
        fitting = np.flatnonzero(self._num_left <= max_slices)
        if len(fitting):
            return Detail(1 << int(fitting[0]), 1 << 62)
        num_bins = int(np.searchsorted(np.cumsum(self._num_left_by_time), max_slices, side="right"))
        return Detail(1 << (_NUM_LEVELS - 1), num_bins * self._bin_ns)


def merge(batch: Batch, neighbours: Neighbours, detail: Detail, names: MergedNames) -> Batch:
    """The batch with neighbours merged. A merged row lasts from the first start to the last end and
    has no flows."""
    is_merged = neighbours.are_merged(detail.threshold_ns.bit_length() - 1)
    firsts = np.flatnonzero(~is_merged)
    if len(firsts) == 0:
        return batch
    lasts = np.r_[firsts[1:], len(batch)] - 1
    num_merged = (lasts - firsts + 1).astype(np.int32)
    is_group = num_merged > 1
    rows = batch.rows(firsts)
    busiest = _busiest_name(batch, np.cumsum(~is_merged) - 1)
    is_one_name = np.minimum.reduceat(batch.name, firsts) == np.maximum.reduceat(batch.name, firsts)
    group_name = busiest + np.where(is_one_name, names.only, names.mostly)
    gone = {
        name: np.where(is_group, 0, getattr(rows, name))
        for name in ("payload", "flow_out", "flow_in", "late_ns")
    }
    return replace(
        rows,
        name=np.where(is_group, group_name, rows.name).astype(np.int32),
        flags=np.bitwise_or.reduceat(batch.flags, firsts),
        end_ns=np.where(is_group, batch.end_ns[lasts], rows.end_ns),
        num_merged=num_merged,
        busy_ns=np.add.reduceat(batch.end_ns - batch.start_ns, firsts),
        **gone,
    )


def _busiest_name(batch: Batch, group: NDArray[np.intp]) -> NDArray[np.int64]:
    """For each group, the name that takes most of its time. `group` is ascending, shape (n,)."""
    num_names = int(batch.name.max()) + 1
    pairs, place = np.unique(group * num_names + batch.name, return_inverse=True)
    busy_ns = np.zeros(len(pairs), dtype=np.int64)
    np.add.at(busy_ns, place, batch.end_ns - batch.start_ns)
    # Sorted by group, then by time: the last pair of each group is its busiest.
    order = np.lexsort((busy_ns, pairs // num_names))
    groups = pairs[order] // num_names
    return (pairs[order] % num_names)[np.r_[groups[1:] != groups[:-1], True]]
