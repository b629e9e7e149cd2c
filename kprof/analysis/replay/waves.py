"""Launches with more blocks than fit at once, and whose place a later block takes.

The next block of a launch starts when any block before it ends. If the recorded blocks start that
way, a replay gives the next block any free place. If not, a block stays behind the block whose
place it took on its processor.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final

import numpy as np

from kprof.analysis.replay.columns import extents, firsts_of, running, runs_of
from kprof.analysis.replay.spans import Ints, Spans

# Finding a free place takes as many steps as there are blocks, for each block.
_MOST_BLOCKS: Final = 512
# Blocks that start this much later than their place is free wait for something else.
_MUCH_LATER: Final = 2.0


@dataclass(frozen=True)
class Wave:
    """A launch of which `room` blocks fit at once: the first and last spans of the tracks of every
    block, in the order in which blocks start, and when there was a place for each later block."""

    room: int
    firsts: tuple[Ints, ...]
    lasts: tuple[Ints, ...]
    opened: Ints


def waves_of(spans: Spans) -> tuple[Ints, tuple[Wave, ...]]:
    """For the first spans of later blocks, the last span of the block whose place they took (-1 for
    all other spans); and the launches whose later blocks take any free place."""
    before = np.full(len(spans), -1, dtype=np.int64)
    first = firsts_of(spans.track)
    if len(first) == 0:
        return before, ()
    last = np.r_[first[1:], len(spans)] - 1
    waves = []
    for begin, end in runs_of(spans.launch[first]):
        wave = _wave_of(spans, first[begin:end], last[begin:end], before)
        waves += [wave] if wave is not None else []
    return before, tuple(waves)


def _wave_of(spans: Spans, first: Ints, last: Ints, before: Ints) -> Wave | None:
    """One launch; fills in `before`."""
    starts, ends = spans.start[first], spans.end[last]
    if ends.min() > starts.max():
        return None
    blocks = np.unique(spans.block[first], return_inverse=True)[1]
    block_start, block_end = extents(blocks, starts, ends)
    count = len(block_start)
    room = max(1, int(running(block_start, block_end)[1].max()))
    if room == count:
        return None
    late = _took_place_of(block_start, block_end, spans.processor[first[firsts_of(blocks)]], room)
    last_span = np.zeros(count, dtype=np.int64)
    last_span[blocks[np.argsort(ends, kind="stable")]] = last[np.argsort(ends, kind="stable")]
    is_late = late[blocks] >= 0
    before[first[is_late]] = last_span[late[blocks[is_late]]]
    if count > _MOST_BLOCKS:
        return None
    # A device starts blocks in the order of their numbers, but those that start at about the same
    # time may record their first span in another order.
    for order in (np.arange(count), np.argsort(block_start, kind="stable")):
        opened = _opened(block_end[order], room)
        if _is_any_place(block_start[order], block_end, late[order], opened):
            of_block = [np.flatnonzero(blocks == block) for block in order.tolist()]
            firsts, lasts = ([column[at] for at in of_block] for column in (first, last))
            return Wave(room, tuple(firsts), tuple(lasts), opened)
    return None


def _opened(ends: Ints, room: int) -> Ints:
    """When there was a place for each later block: for the k-th when k blocks before it had
    ended."""
    turns = range(len(ends) - room)
    return np.array([np.partition(ends[: room + k], k)[k] for k in turns], dtype=np.int64)


def _is_any_place(starts: Ints, ends: Ints, late: Ints, opened: Ints) -> bool:
    """Whether later blocks start when any place is free, and not only one on their processor.

    `starts` and `late` are in the order in which blocks get a place; `late` points into `ends`.
    """
    room = len(starts) - len(opened)
    waiting, known = starts[room:], late[room:] >= 0
    gaps = waiting - opened
    behind = waiting[known] - ends[late[room:][known]]
    limit = _MUCH_LATER * float(behind.sum()) + len(waiting)
    is_in_order = starts[:room].max() <= waiting.min() and (gaps >= 0).all()
    return bool(is_in_order) and float(gaps[known].sum()) <= limit


def _took_place_of(starts: Ints, ends: Ints, processor: Ints, room: int) -> Ints:
    """For every block that started after all places were taken, the block whose place it took on
    its processor; else -1."""
    late = np.full(len(starts), -1, dtype=np.int64)
    order = np.lexsort((ends, starts))
    turn = np.argsort(order).tolist()
    # Python reads lists much faster than arrays.
    by_end, in_order = np.argsort(ends, kind="stable").tolist(), order.tolist()
    start, end, at = starts.tolist(), ends.tolist(), processor.tolist()
    # By processor, those that have ended: groups of one end each, the latest last.
    free: dict[int, list[tuple[int, deque[int]]]] = {}
    ended = 0
    for position, block in enumerate(in_order):
        while ended < len(by_end) and end[by_end[ended]] <= start[block]:
            other = by_end[ended]
            groups = free.setdefault(at[other], [])
            if not groups or groups[-1][0] != end[other]:
                groups.append((end[other], deque()))
            groups[-1][1].append(other)
            ended += 1
        if position >= room:
            late[block] = _take_latest(free.get(at[block], []), turn, position)
    return late


def _take_latest(groups: list[tuple[int, deque[int]]], turn: list[int], position: int) -> int:
    """Take the first of the blocks that ended last; -1 where there is none.

    A block of no length ends when it starts, and nobody before it takes its place.
    """
    for idx in range(len(groups) - 1, -1, -1):
        group = groups[idx][1]
        place = next((i for i, other in enumerate(group) if turn[other] < position), -1)
        if place >= 0:
            other = group[place]
            del group[place]
            if not group:
                del groups[idx]
            return other
    return -1
