"""Which chunks of an arena can be believed. Every chunk counts as whole, as damaged, or as never
used.

Chunk headers say a few things twice, and that is what can be checked. A header names its own place,
its version and a launch that the host knows. A chunk of a track names the one before it, which must
be full and of the same track. A full chunk has one behind it or says that there was none to be had.
Damage that leaves a plausible chunk (another block, another time, another payload) cannot be seen.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass

import numpy as np

from kprof import abi
from kprof.errors import ArenaError
from kprof.recording.arena_state import ArenaState

_LAST_RECORD_WORD = (abi.CHUNK_BYTES - abi.RECORD_BYTES) // 8


@dataclass(frozen=True)
class Inspection:
    """What `inspect` found.

    `rows` are the whole chunks; `must_be_full` says of each whether all its places hold a record,
    `may_have_gaps` whether it may be a short track's, whose places are filled in any order.
    `num_torn` counts chunks that are damaged or missing, `num_stray` those of launches that never
    were.
    """

    rows: np.ndarray
    must_be_full: np.ndarray
    may_have_gaps: np.ndarray
    num_torn: int
    num_stray: int


def inspect(
    state: ArenaState, words: np.ndarray, headers: np.ndarray, launches: Container[int]
) -> Inspection:
    """Judge the chunks of `state.ranges()`: (n, 128) words and n headers.

    Raises ArenaError when a whole launch was recorded by a kernel with headers of another version.
    """
    chunk_idxs = state.chunk_idxs()
    is_in_place = _is_in_place(state, headers, chunk_idxs)
    _check_abi(headers, is_in_place)
    is_in_place &= _abi_version(headers) == abi.ABI_VERSION
    is_whole = is_in_place & _is_known(headers["launch"], launches)
    is_missing = _must_have_header(state, words, chunk_idxs, is_whole)
    tracks = _link(headers, chunk_idxs, is_whole)
    rows = np.flatnonzero(is_whole)
    num_stray = int(np.count_nonzero(is_in_place & ~is_whole))
    num_torn = int(np.count_nonzero(is_missing)) - num_stray
    # A track whose next chunk is damaged has lost it, and that chunk was counted already.
    num_lost = int(np.count_nonzero(_has_lost_next(words, headers, tracks)[rows]))
    num_torn += tracks.num_contradictions + max(0, num_lost - num_torn - num_stray)
    return Inspection(
        rows,
        (tracks.has_next | _has_no_next(headers))[rows],
        ~(tracks.is_long | _has_no_next(headers) | _is_of_warp(headers))[rows],
        num_torn,
        num_stray,
    )


def _is_in_place(state: ArenaState, headers: np.ndarray, chunk_idxs: np.ndarray) -> np.ndarray:
    """Whether headers are there, name their own place and say what headers can say."""
    geometry = state.handed.geometry
    previous = headers["previous_chunk_idx"]
    is_in_place: np.ndarray = (
        (headers["flags"] & abi.CHUNK_CLAIMED != 0)
        & (headers["chunk_idx"] == chunk_idxs)
        & (headers["flags"] >> abi.CHUNK_CURSORS_SHIFT == geometry.num_cursors)
        & ((previous == abi.NO_CHUNK) | (previous < geometry.num_chunks))
        & (previous != chunk_idxs)
        & ((headers["num_dropped"] == 0) | _has_no_next(headers))
        & (headers["anchor_realtime_ticks"] >> abi.MAX_CLOCK_BITS == 0)
    )
    return is_in_place


def _is_known(launch: np.ndarray, launches: Container[int]) -> np.ndarray:
    numbers, inverse = np.unique(launch, return_inverse=True)
    return np.array([number in launches for number in numbers.tolist()], dtype=bool)[inverse]


def _must_have_header(
    state: ArenaState, words: np.ndarray, chunk_idxs: np.ndarray, is_whole: np.ndarray
) -> np.ndarray:
    """The chunks that are not whole and not unused: those with contents, and those that some track
    was given.

    A reserved chunk belongs to a track that may never have been opened. Where limits were raised,
    tracks that had reached a lower one have stepped over chunks.
    """
    handed = state.handed
    is_missing = ~is_whole
    rows = np.flatnonzero(is_missing)
    idxs = chunk_idxs[rows]
    is_given = idxs < handed.least_limit * handed.geometry.num_cursors
    if state.is_damaged:
        is_given[:] = False
    is_missing[rows] = (is_given & state.is_used(idxs)) | words[rows].any(axis=1)
    return is_missing


@dataclass(frozen=True)
class _Tracks:
    """How chunks follow each other; `is_long` are chunks of tracks that had more than one."""

    has_next: np.ndarray
    is_long: np.ndarray
    num_contradictions: int


def _link(headers: np.ndarray, chunk_idxs: np.ndarray, is_whole: np.ndarray) -> _Tracks:
    """Find each chunk's predecessor where it names one, and count impossible pairs."""
    has_previous = is_whole & (headers["previous_chunk_idx"] != abi.NO_CHUNK)
    later = np.flatnonzero(has_previous)
    previous = headers["previous_chunk_idx"][later]
    place_of_chunk = np.full(int(chunk_idxs[-1]) + 1, -1, dtype=np.int64)
    place_of_chunk[chunk_idxs[is_whole]] = np.flatnonzero(is_whole)
    place = place_of_chunk[np.minimum(previous, chunk_idxs[-1])]
    # A chunk that was not read or is damaged: there is nothing to compare with.
    is_there = (previous <= chunk_idxs[-1]) & (place >= 0)
    if not is_there.all():
        later, place = later[is_there], place[is_there]
    agrees = ~_has_no_next(headers)[place]
    anchors = headers["anchor_realtime_ticks"]
    agrees &= anchors[place] <= anchors[later]
    for name in ("launch", "block", "warp"):
        column = headers[name]
        agrees &= column[place] == column[later]
    num_next = np.bincount(place, minlength=len(headers))
    is_long = (num_next > 0) | has_previous
    num_doubled = int(np.maximum(num_next - 1, 0).sum())
    return _Tracks(num_next > 0, is_long, int(np.count_nonzero(~agrees)) + num_doubled)


def _has_lost_next(words: np.ndarray, headers: np.ndarray, tracks: _Tracks) -> np.ndarray:
    """Full chunks that must have another behind them, and have not.

    A track asks for its next chunk with the last record of a chunk, but not with the anchor at its
    end. Short tracks have one chunk.
    """
    last = words[:, _LAST_RECORD_WORD] >> abi.START_BITS
    is_anchor = (headers["flags"] & abi.CHUNK_CYCLES != 0) & (last == abi.ANCHOR_REGION_ID)
    is_ordinary = tracks.is_long | _is_of_warp(headers)
    lost: np.ndarray = (
        is_ordinary & (last != 0) & ~is_anchor & ~tracks.has_next & ~_has_no_next(headers)
    )
    return lost


def _has_no_next(headers: np.ndarray) -> np.ndarray:
    has_none: np.ndarray = headers["flags"] & abi.CHUNK_NO_NEXT != 0
    return has_none


def _is_of_warp(headers: np.ndarray) -> np.ndarray:
    is_of_warp: np.ndarray = headers["warp"] != abi.BLOCK_TRACK_WARP
    return is_of_warp


def _abi_version(headers: np.ndarray) -> np.ndarray:
    version: np.ndarray = headers["flags"] >> abi.CHUNK_ABI_SHIFT & abi.CHUNK_ABI_MASK
    return version


def _check_abi(headers: np.ndarray, is_in_place: np.ndarray) -> None:
    """All chunks of a launch have one version: a kernel contains the headers it was built with."""
    launches, inverse = np.unique(headers["launch"][is_in_place], return_inverse=True)
    least = np.full(len(launches), abi.CHUNK_ABI_MASK, dtype=np.uint16)
    most = np.zeros(len(launches), dtype=np.uint16)
    versions = _abi_version(headers)[is_in_place]
    np.minimum.at(least, inverse, versions)
    np.maximum.at(most, inverse, versions)
    for place in np.flatnonzero((least == most) & (least != abi.ABI_VERSION))[:1]:
        raise ArenaError(
            f"the kernel of launch {launches[place]} was compiled with kprof headers of ABI "
            "version "
            f"{int(least[place]) or '2 or older'}, this kprof reads {abi.ABI_VERSION}; "
            "rebuild it against the installed headers"
        )
