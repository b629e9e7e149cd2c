"""Small operations on columns that are sorted or numbered by group."""

from __future__ import annotations

import itertools

import numpy as np

from kprof.analysis.replay.spans import Floats, Ints


def firsts_of(groups: Ints) -> Ints:
    """The index of the first element of every group of a sorted column."""
    return np.flatnonzero(np.r_[True, groups[1:] != groups[:-1]]) if len(groups) else groups[:0]


def runs_of(values: Ints) -> list[tuple[int, int]]:
    """[begin, end) of every run of equal values."""
    edges = np.flatnonzero(np.r_[True, values[1:] != values[:-1], True]).tolist()
    return list(itertools.pairwise(edges))


def extents(groups: Ints, starts: Ints, ends: Ints) -> tuple[Ints, Ints]:
    """The first start and the last end of every group; groups are numbers from 0 on."""
    count = int(groups.max(initial=-1)) + 1
    first = np.full(count, np.iinfo(np.int64).max)
    last = np.full(count, np.iinfo(np.int64).min)
    np.minimum.at(first, groups, starts)
    np.maximum.at(last, groups, ends)
    return first, last


def running(begins: Ints, ends: Ints) -> tuple[Ints, Ints]:
    """The moments at which something begins or ends, and how many run from each on. One that begins
    where another ends does not run beside it."""
    moments = np.r_[begins, ends]
    steps = np.repeat([1, -1], [len(begins), len(ends)])
    order = np.lexsort((steps, moments))
    return moments[order], np.cumsum(steps[order])


def turns_of(groups: Ints, by: Ints | None = None) -> Ints:
    """The position of every element in its group (from 0), sorted by `by` or in the given order."""
    order = np.lexsort((np.arange(len(groups)) if by is None else by, groups))
    sizes = np.bincount(groups)
    turns = np.empty(len(groups), dtype=np.int64)
    turns[order] = np.arange(len(groups)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return turns


def shortest_of(groups: Ints, values: Floats) -> Floats:
    """For every element the smallest value of its group."""
    smallest = np.full(int(groups.max(initial=0)) + 1, np.inf)
    np.minimum.at(smallest, groups, values)
    return smallest[groups]


def grouped_median(groups: Ints, values: Floats, count: int) -> Floats:
    """The lower median of the values of every group; NaN for empty ones."""
    return grouped_quantile(groups, values, count, 0.5, is_lower=True)


def grouped_quantile(
    groups: Ints, values: Floats, count: int, share: float, *, is_lower: bool = False
) -> Floats:
    """The quantile of the values of every group, between two of them or the lower one of these; NaN
    for empty groups."""
    order = np.lexsort((values, groups))
    sizes = np.bincount(groups, minlength=count)
    filled = sizes > 0
    firsts, last = (np.cumsum(sizes) - sizes)[filled], sizes[filled] - 1
    below = np.floor(share * last).astype(np.int64)
    ranked = values[order]
    result = np.full(count, np.nan)
    result[filled] = low = ranked[firsts + below]
    if not is_lower:
        high = ranked[firsts + np.minimum(below + 1, last)]
        result[filled] += (share * last - below) * (high - low)
    return result


def grouped(*columns: Ints) -> tuple[Ints, Ints]:
    """One example of every distinct row of columns (values from -1 on), and every element's row."""
    key = np.zeros(len(columns[0]), dtype=np.int64)
    for column in columns:
        key = key * (int(column.max(initial=0)) + 2) + column + 1
    _, examples, inverse = np.unique(key, return_index=True, return_inverse=True)
    return examples.astype(np.int64), inverse.astype(np.int64)
