"""Decides which chunks of an arena are sound. Every chunk is whole, damaged, or unused.

Chunk headers hold redundant values that can be checked. A header has its own index, its version and
a launch that the host knows. It names the previous chunk of its track, which must be full and of
the same track. A full chunk has a successor, or a flag that there was none to claim. Its numbers
become columns of events, so they must be what a capture may hold (EVENT_BOUNDS): what is accepted
here can be read there. Damage that leaves a plausible chunk (another block, time or payload) cannot
be detected.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass

import numpy as np

from kprof import abi
from kprof.capture.checks import EVENT_BOUNDS
from kprof.errors import ArenaError
from kprof.recording.arenas.arena_state import ArenaState

_LAST_RECORD_WORD = (abi.CHUNK_BYTES - abi.RECORD_BYTES) // 8


@dataclass(frozen=True)
class Chunks:
    """Whole chunks: rows `which` of `words`, with one header each.

    `must_be_full` says whether all slots of a chunk hold a record, and `may_have_gaps` whether it
    can belong to a short track, which fills slots in any order.
    """

    words: np.ndarray
    which: np.ndarray
    headers: np.ndarray
    must_be_full: np.ndarray
    may_have_gaps: np.ndarray

    def __len__(self) -> int:
        return len(self.headers)

    def rows(self, begin: int, end: int) -> Chunks:
        """Chunks begin .. end - 1; copies their words unless they are adjacent."""
        which = self.which[begin:end]
        first, last = int(which[0]), int(which[-1])
        words = self.words[first : last + 1] if last - first < len(which) else self.words[which]
        columns = (self.headers, self.must_be_full, self.may_have_gaps)
        return Chunks(words, np.arange(len(which)), *(column[begin:end] for column in columns))

    def of_launches(self, launches: Sequence[range]) -> Chunks:
        """The chunks of these launches."""
        number = self.headers["launch"].astype(np.int64)
        is_left_out = np.ones(len(number), dtype=bool)
        for each in launches:
            is_left_out &= (number < each.start) | (number >= each.stop)
        return self.without(np.flatnonzero(is_left_out))

    def without(self, left_out: np.ndarray) -> Chunks:
        """All chunks but these."""
        columns = (self.which, self.headers, self.must_be_full, self.may_have_gaps)
        return Chunks(self.words, *(np.delete(column, left_out) for column in columns))


def inspect(
    state: ArenaState, words: np.ndarray, headers: np.ndarray, launches: Container[int]
) -> tuple[Chunks, int, int]:
    """The whole ones of the chunks of `state.ranges()`: (n, 128) words and n headers.

    Also how many chunks are damaged or missing, and how many are of launches that never happened.
    Raises ArenaError if a launch's kernel was built with headers of another version.
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
    # A damaged chunk is counted once: not again as the lost successor of the chunk before it.
    num_lost = int(np.count_nonzero(_has_lost_next(words, headers, tracks)[rows]))
    num_torn += tracks.num_contradictions + max(0, num_lost - num_torn - num_stray)
    chunks = Chunks(
        words,
        rows,
        headers if len(rows) == len(headers) else headers[rows],
        (tracks.has_next | _has_no_next(headers))[rows],
        ~(tracks.is_long | _has_no_next(headers) | _is_of_warp(headers))[rows],
    )
    return chunks, num_torn, num_stray


def _is_in_place(state: ArenaState, headers: np.ndarray, chunk_idxs: np.ndarray) -> np.ndarray:
    """Whether headers exist, name their own index and hold valid values."""
    geometry = state.handed.geometry
    previous = headers["previous_chunk_idx"]
    return (
        (headers["flags"] & abi.CHUNK_CLAIMED != 0)
        & (headers["chunk_idx"] == chunk_idxs)
        & (_num_cursors(headers) == geometry.num_cursors)
        & ((previous == abi.NO_CHUNK) | (previous < geometry.num_chunks))
        & (previous != chunk_idxs)
        & ((headers["num_dropped"] == 0) | _has_no_next(headers))
        & (headers["anchor_realtime_ticks"] >> abi.MAX_CLOCK_BITS == 0)
        & is_within(_last_blocks(headers), "block")
        & is_within(headers["launch"], "launch")
        & is_within(warps_of(headers), "warp")
    )


def _last_blocks(headers: np.ndarray) -> np.ndarray:
    """The highest block that each chunk can name: several may share one, see kprof.abi."""
    are_shared = headers["flags"] & abi.CHUNK_OF_PROGRAMS != 0
    return headers["block"] + are_shared.astype(np.int64) * (abi.RECORDS_PER_CHUNK - 1)


def warps_of(headers: np.ndarray) -> np.ndarray:
    """The column `warp` of chunks: -1 for tracks of whole blocks."""
    warps: np.ndarray = headers["warp"].astype(np.int32)
    warps[warps == abi.BLOCK_TRACK_WARP] = -1
    return warps


def is_within(values: np.ndarray, column: str) -> np.ndarray:
    """Whether a capture may hold these values in that column of its events."""
    least, most = EVENT_BOUNDS[column]
    return (values >= least) & (values <= most)


def _is_known(launch: np.ndarray, launches: Container[int]) -> np.ndarray:
    numbers, inverse = np.unique(launch, return_inverse=True)
    return np.array([number in launches for number in numbers.tolist()], dtype=bool)[inverse]


def _must_have_header(
    state: ArenaState, words: np.ndarray, chunk_idxs: np.ndarray, is_whole: np.ndarray
) -> np.ndarray:
    """The chunks that should have a header: those with contents, and those that a track must have
    taken.

    The track of a reserved chunk may never have been opened. And if limits were raised, tracks that
    had reached a lower limit skipped chunks.
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
    """The links between chunks. `is_long` marks chunks of tracks with more than one."""

    has_next: np.ndarray
    is_long: np.ndarray
    num_contradictions: int


def _link(headers: np.ndarray, chunk_idxs: np.ndarray, is_whole: np.ndarray) -> _Tracks:
    """Find the predecessor that each chunk names, and count impossible pairs."""
    has_previous = is_whole & (headers["previous_chunk_idx"] != abi.NO_CHUNK)
    later = np.flatnonzero(has_previous)
    previous = headers["previous_chunk_idx"][later]
    place_of_chunk = np.full(int(chunk_idxs[-1]) + 1, -1, dtype=np.int64)
    place_of_chunk[chunk_idxs[is_whole]] = np.flatnonzero(is_whole)
    place = place_of_chunk[np.minimum(previous, chunk_idxs[-1])]
    # The predecessor was not read or is damaged: nothing to compare with.
    is_there = (previous <= chunk_idxs[-1]) & (place >= 0)
    if not is_there.all():
        later, place = later[is_there], place[is_there]
    agrees = ~_has_no_next(headers)[place]
    anchors = headers["anchor_realtime_ticks"]
    agrees &= anchors[place] <= anchors[later]
    if (anchors[place] >= anchors[later]).any():
        # Else no chunk can come before itself.
        before = np.arange(len(headers))
        before[later] = place
        agrees &= first_of_track(before)[later] >= 0
    for name in ("launch", "block", "warp"):
        column = headers[name]
        agrees &= column[place] == column[later]
    num_next = np.bincount(place, minlength=len(headers))
    is_long = (num_next > 0) | has_previous
    num_doubled = int(np.maximum(num_next - 1, 0).sum())
    return _Tracks(num_next > 0, is_long, int(np.count_nonzero(~agrees)) + num_doubled)


def first_of_track(before: np.ndarray) -> np.ndarray:
    """The row of the first chunk of each chunk's track; -1 where it goes round in a circle.

    `before` has the row of the chunk before each one, and a first chunk's own row.
    """
    first = before
    for _ in range(len(before).bit_length()):
        if np.array_equal(further := first[first], first):
            break
        first = further
    return np.where(before[first] == first, first, -1)


def _has_lost_next(words: np.ndarray, headers: np.ndarray, tracks: _Tracks) -> np.ndarray:
    """Full chunks whose successor is missing.

    The last record of a chunk makes the track claim the next one; a closing anchor does not. Short
    tracks have one chunk.
    """
    last = words[:, _LAST_RECORD_WORD] >> abi.START_BITS
    is_anchor = (headers["flags"] & abi.CHUNK_CYCLES != 0) & (last == abi.ANCHOR_REGION_ID)
    is_ordinary = tracks.is_long | _is_of_warp(headers)
    return is_ordinary & (last != 0) & ~is_anchor & ~tracks.has_next & ~_has_no_next(headers)


def _has_no_next(headers: np.ndarray) -> np.ndarray:
    return headers["flags"] & abi.CHUNK_NO_NEXT != 0


def _is_of_warp(headers: np.ndarray) -> np.ndarray:
    return headers["warp"] != abi.BLOCK_TRACK_WARP


def _num_cursors(headers: np.ndarray) -> np.ndarray:
    """Of the arena; damaged where a bit beside the flags and the number is set."""
    flags = headers["flags"] & ~np.uint16(abi.CHUNK_OF_PROGRAMS)
    return flags >> abi.CHUNK_CURSORS_SHIFT


def _abi_version(headers: np.ndarray) -> np.ndarray:
    return headers["flags"] >> abi.CHUNK_ABI_SHIFT & abi.CHUNK_ABI_MASK


def _check_abi(headers: np.ndarray, is_in_place: np.ndarray) -> None:
    """Refuse another version. All chunks of a launch have the same, because a kernel contains the
    headers it was built with."""
    if (_abi_version(headers)[is_in_place] == abi.ABI_VERSION).all():
        return
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
