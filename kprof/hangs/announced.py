"""Which announced spans are open: from the state lines of a device, and the records in its arenas.

    line     the chunk in which the track was when a span began ──> its header: launch, block, warp
    records  one of the same track with the same start and region: the span has ended

The rank says what it finds in its journal, for whoever looks for a hang: the `spans` of an Answer,
SPAN x n, in the order in which they began.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

import numpy as np

from kprof import abi
from kprof.hangs.lines import headers_in

SPAN: Final = np.dtype(
    [
        ("start_ticks", "<u8"),
        ("region", "<u4"),
        ("payload", "<u4"),
        ("launch", "<u4"),
        ("block", "<u4"),
        ("warp", "<u4"),
        ("reserved", "<u4"),
    ]
)
NUM_TRACKS: Final = 16384
LINES_BYTES: Final = NUM_TRACKS * abi.LINES_PER_TRACK * abi.STATE_LINE.itemsize
_CHUNK_MASK: Final = np.uint32((1 << abi.STATE_CHUNK_BITS) - 1)
_SIDES: Final[tuple[Literal["left"], Literal["right"]]] = ("left", "right")
_HALF: Final = 1 << (abi.START_BITS - 1)
_TRACK: Final = ["launch", "block", "warp"]
# The address of an arena, and the bytes of its chunks.
ArenaChunks = tuple[int, np.ndarray]


class _Tracks(NamedTuple):
    """The chunks of all arenas. `track_of` numbers tracks, `first` is a track's earliest anchor on
    the clock of its records, `is_cut` tells of tracks that dropped events."""

    headers: np.ndarray
    keys: np.ndarray
    track_of: np.ndarray
    first: np.ndarray
    is_cut: np.ndarray
    words: np.ndarray


def open_spans(
    lines: np.ndarray, arenas: Sequence[ArenaChunks], ticks_per_cycle: float = 1.0
) -> np.ndarray:
    """The spans that have begun and not ended, as SPAN: `lines` were copied before the chunks.

    Of tracks that dropped events nobody knows what they have ended: they are left out.
    `ticks_per_cycle` is for records that hold cycles.
    """
    lines = lines[_are_whole(lines)]
    if not len(lines) or not arenas:
        return np.empty(0, SPAN)
    tracks = _tracks(arenas)
    order = np.argsort(tracks.keys, kind="stable")
    chunk = lines["chunk_and_tag"] & _CHUNK_MASK
    at, end = (np.searchsorted(tracks.keys, chunk, side, order) for side in _SIDES)
    # Arenas of more than 16 GiB may have two chunks that a line could mean: none is taken.
    is_known = end - at == 1
    lines, at = lines[is_known], order[at[is_known]]
    track = tracks.track_of[at]
    # What an earlier launch left there began before this track did.
    is_now = _since(lines["start_and_region"], tracks.first[track]) >= 0
    is_ended = _are_recorded(lines["start_and_region"], track, tracks)
    chosen = is_now & ~is_ended & ~tracks.is_cut[track]
    spans = _spans(lines[chosen], tracks.headers[at[chosen]], ticks_per_cycle)
    return spans[np.lexsort([spans[name] for name in ("start_ticks", "warp", "block", "launch")])]


def _are_whole(lines: np.ndarray) -> np.ndarray:
    """Which lines are of a span, and have both of its words."""
    words, tags = lines["start_and_region"], lines["chunk_and_tag"] >> abi.STATE_CHUNK_BITS
    return (words >> abi.START_BITS > 0) & (tags == abi.state_tags(words))


def _tracks(arenas: Sequence[ArenaChunks]) -> _Tracks:
    headers, keys, words = [], [], []
    for address, content in arenas:
        head, is_claimed = headers_in(content)
        first = (address + abi.CHUNKS_OFFSET) // abi.CHUNK_BYTES
        headers.append(head)
        keys.append((first + head["chunk_idx"].astype(np.uint64)).astype(np.uint32) & _CHUNK_MASK)
        rows = content.reshape(-1, abi.CHUNK_BYTES)[is_claimed, abi.CHUNK_HEADER_BYTES :]
        words.append(np.ascontiguousarray(rows).view("<u8")[:, ::2])
    header = np.concatenate(headers)
    names = np.stack([header[name].astype(np.uint32) for name in _TRACK], axis=1)
    unique, track_of = np.unique(names, axis=0, return_inverse=True)
    track_of = track_of.reshape(-1)
    first_anchor = np.full(len(unique), np.iinfo(np.uint64).max, np.uint64)
    np.minimum.at(first_anchor, track_of, _anchors(header))
    is_cut = np.zeros(len(unique), bool)
    is_last = (header["flags"] & abi.CHUNK_NO_NEXT) != 0
    is_cut[track_of[is_last | (header["num_dropped"] > 0)]] = True
    return _Tracks(
        header, np.concatenate(keys), track_of, first_anchor, is_cut, np.concatenate(words)
    )


def _are_cycles(headers: np.ndarray) -> np.ndarray:
    """Which chunks have records on the clock of their processor."""
    return (headers["flags"] & abi.CHUNK_CYCLES) != 0


def _anchors(headers: np.ndarray) -> np.ndarray:
    """The beginning of chunks on the clock of their records."""
    of_cycles, of_device = headers["anchor_cycles"], headers["anchor_realtime_ticks"]
    return np.where(_are_cycles(headers), of_cycles, of_device)


def _since(words: np.ndarray, anchors: np.ndarray) -> np.ndarray:
    """How long after an anchor a start lies, of which words hold the lower bits."""
    mask, half = np.uint64(abi.START_MASK), np.uint64(_HALF)
    return ((words - anchors + half) & mask).astype(np.int64) - _HALF


def _are_recorded(words: np.ndarray, track: np.ndarray, tracks: _Tracks) -> np.ndarray:
    """Whether tracks have a record that begins with a word."""
    row, column = np.nonzero(np.isin(tracks.words, words))
    ended = set(zip(tracks.track_of[row].tolist(), tracks.words[row, column].tolist(), strict=True))
    pairs = zip(track.tolist(), words.tolist(), strict=True)
    return np.array([pair in ended for pair in pairs], bool)


def _spans(lines: np.ndarray, headers: np.ndarray, ticks_per_cycle: float) -> np.ndarray:
    spans = np.zeros(len(lines), SPAN)
    for name in _TRACK:
        spans[name] = headers[name]
    spans["payload"] = lines["payload"]
    spans["region"] = lines["start_and_region"] >> abi.START_BITS
    after = _since(lines["start_and_region"], _anchors(headers))
    after = np.where(_are_cycles(headers), np.rint(after * ticks_per_cycle).astype(np.int64), after)
    spans["start_ticks"] = headers["anchor_realtime_ticks"].astype(np.int64) + after
    return spans
