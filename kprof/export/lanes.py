"""Nesting: which spans of a track lie inside others, and which overlap and need another lane.

Trace viewers draw a track as a stack: a span must end within the span in which it began. Spans that
only overlap (two copies in flight, an open span) go to lane 1, 2, ... of their track.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Nesting:
    """For each span: its lane (0 is the track itself), and how many spans of that lane enclose
    it."""

    lane: NDArray[np.int32]
    depth: NDArray[np.int32]


def nest(
    track: NDArray[np.generic], start_ns: NDArray[np.int64], end_ns: NDArray[np.int64]
) -> Nesting:
    """Lanes and depths of spans that are sorted by (track, start, longer first); shapes (n,)."""
    result = Nesting(np.zeros(len(track), np.int32), np.zeros(len(track), np.int32))
    for first, last in _stacked_tracks(track, start_ns, end_ns):
        _nest_track(start_ns[first:last].tolist(), end_ns[first:last].tolist(), first, result)
    return result


def track_runs(track: NDArray[np.generic]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """The rows (first, last + 1) of each run of equal tracks."""
    if len(track) == 0:
        return np.zeros(0, np.intp), np.zeros(0, np.intp)
    firsts = np.flatnonzero(np.r_[True, track[1:] != track[:-1]])
    return firsts, np.r_[firsts[1:], len(track)]


def _stacked_tracks(
    track: NDArray[np.generic], start_ns: NDArray[np.int64], end_ns: NDArray[np.int64]
) -> list[tuple[int, int]]:
    """Rows of the tracks in which a span begins before its predecessor ended.

    The others are flat.
    """
    is_stacked = (start_ns[1:] < end_ns[:-1]) & (track[1:] == track[:-1])
    if not is_stacked.any():
        return []
    firsts, lasts = track_runs(track)
    stacked = np.unique(np.searchsorted(firsts, np.flatnonzero(is_stacked), side="right") - 1)
    return list(zip(firsts[stacked].tolist(), lasts[stacked].tolist(), strict=True))


def _nest_track(starts: list[int], ends: list[int], first: int, result: Nesting) -> None:
    """Put each span on the first lane where it fits.

    `open_ends[k]` is the stack of open ends of lane k.
    """
    open_ends: list[list[int]] = [[]]
    for i, (start, end) in enumerate(zip(starts, ends, strict=True)):
        lane = 0
        while True:
            stack = open_ends[lane]
            while stack and stack[-1] <= start:
                stack.pop()
            if not stack or end <= stack[-1]:
                break
            lane += 1
            if lane == len(open_ends):
                open_ends.append([])
        if lane or stack:
            result.lane[first + i] = lane
            result.depth[first + i] = len(stack)
        stack.append(end)
