"""Which replay of a graph wrote which chunk.

A launch that a graph captured runs once per replay, each time with the same buffer and the same
number. Here every replay becomes a launch with a number of its own:

    captured launch 4:   track a   opens ......... opens ......... opens ......    a track's k-th
                         track b   ..opens ......... opens ......... opens ....    opening is the
                                   | launch 4      | launch 9      | launch 10     k-th replay

Replays of one launch do not overlap, and a track that finds no chunk finds none later either (see
kprof.abi): so openings are lost at the end only. Both are checked. Where that leaves a doubt
(tracks that were opened more often than others although nothing was dropped, replays that overlap,
a chunk that is missing) the launch stays whole and is counted: nothing is guessed.

Chunks in rooms (see kprof.abi) need none of that: a room is one replay's, and rooms of later ones
lie further down. A launch with chunks of both kinds stays whole.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

import msgspec
import numpy as np

from kprof import abi
from kprof.capture.manifest import Launch
from kprof.recording.decoding.inspection import Chunks, first_of_track
from kprof.recording.launches.region_ids import RegionIds

_HEADER_WORDS: Final = abi.CHUNK_HEADER_BYTES // 8
_CHUNKS_AT_ONCE: Final = 2048


@dataclass
class _Captured:
    """A captured launch: how many replays it had in its current stretch, and whether it took its
    own number yet.

    Where openings were lost before a flush, nobody knows how many replays there were. The count
    starts over then, in the next stretch.
    """

    fields: Launch
    num_replays: int = 0
    stretch: int = 0
    has_own_number: bool = False


@dataclass
class Replays:
    """The captured launches of a rank."""

    _captured: dict[int, _Captured] = field(default_factory=dict)
    _latest: list[Launch] = field(default_factory=list)
    # When each launch began, by the splits since `merged`.
    _begin_ticks: dict[int, int] = field(default_factory=dict)

    @property
    def captured(self) -> list[int]:
        """The numbers of all captured launches."""
        return list(self._captured)

    def add(self, fields: Launch) -> None:
        """A launch was captured, or its buffer goes to many runs."""
        self._captured[fields.launch] = _Captured(fields)

    def restore(self, fields: Launch, in_parts: Iterable[Launch], *, has_lost: bool) -> None:
        """Add a captured launch, some of whose replays are in parts that another process wrote.

        `has_lost` says whether others may have been lost since.
        """
        its_own = [each for each in in_parts if fields.launch in (each.launch, each.captured)]
        stretch = max((each.stretch for each in its_own), default=0)
        latest = [each.replay for each in its_own if each.stretch == stretch]
        self._captured[fields.launch] = _Captured(
            fields,
            0 if has_lost else max(latest, default=-1) + 1,
            stretch + has_lost,
            any(each.launch == fields.launch for each in its_own),
        )

    def split(
        self,
        chunks: Chunks,
        region_ids: RegionIds,
        *,
        has_lost: bool,
        first_reserved: int = abi.NO_CHUNK,
    ) -> int:
        """Give the chunks of every replay its own launch number, in their headers and `region_ids`;
        returns how many captured launches had to stay whole.

        `has_lost` says whether tracks found no chunk. Chunks from `first_reserved` on are rooms.
        """
        headers, num_unsplit = chunks.headers, 0
        if not self._captured:
            return 0
        rows = np.flatnonzero(np.isin(headers["launch"], np.array(self.captured)))
        rows = rows[np.argsort(headers["launch"][rows], kind="stable")]
        bounds = np.flatnonzero(np.diff(headers["launch"][rows])) + 1
        for of_launch in np.split(rows, bounds) if len(rows) else ():
            is_in_room = headers["chunk_idx"][of_launch] >= first_reserved
            if is_in_room.all():
                replay_of_chunk = _replays_in_rooms(headers[of_launch])
            elif is_in_room.any():
                replay_of_chunk = None
            else:
                words = chunks.words[chunks.which[of_launch]]
                replay_of_chunk = _replays_of(words, headers[of_launch], has_lost)
            captured = self._captured[int(headers["launch"][of_launch[0]])]
            if replay_of_chunk is None:
                num_unsplit += 1
                self._keep_whole(captured)
            else:
                numbers = self._number(captured, int(replay_of_chunk.max()) + 1, region_ids)
                headers["launch"][of_launch] = np.array(numbers, dtype=np.uint32)[replay_of_chunk]
        if has_lost:
            self.begin_stretch()
        self._note_begins(chunks)
        return num_unsplit

    def begin_stretch(self) -> None:
        """Replays were lost: nobody knows how many, so their count starts over."""
        for each in self._captured.values():
            each.num_replays, each.stretch = 0, each.stretch + 1

    def merged(self, launches: list[Launch]) -> list[Launch]:
        """`launches` with the replays that were split since the last call among them, in the order
        of time.

        Captured launches are listed when they are replayed. A launch without events stays behind
        the one before it.
        """
        if not self._captured:
            return launches
        known = [each for each in launches if each.launch not in self._captured] + self._latest
        latest = 0
        begins = []
        for each in known:
            latest = self._begin_ticks.get(each.launch, latest)
            begins.append(latest)
        order = sorted(range(len(known)), key=begins.__getitem__)
        self._latest, self._begin_ticks = [], {}
        return [known[idx] for idx in order]

    def _keep_whole(self, captured: _Captured) -> None:
        if not captured.has_own_number:
            captured.has_own_number = True
            self._latest.append(captured.fields)
        captured.num_replays, captured.stretch = 0, captured.stretch + 1

    def _number(self, captured: _Captured, num_replays: int, region_ids: RegionIds) -> list[int]:
        """Launch numbers for replays.

        The very first takes the captured launch's own, the others take new ones.
        """
        fields = captured.fields
        own = [] if captured.has_own_number else [fields.launch]
        table_idx = region_ids.table_of_launch[fields.launch]
        num_new = num_replays - len(own)
        numbers = [*own, *(region_ids.add_launch(table_idx) for _ in range(num_new))]
        first = captured.num_replays
        self._latest += [
            msgspec.structs.replace(
                fields,
                launch=number,
                captured=fields.launch,
                replay=first + k,
                stretch=captured.stretch,
            )
            for k, number in enumerate(numbers)
        ]
        captured.has_own_number = True
        captured.num_replays += num_replays
        return numbers

    def _note_begins(self, chunks: Chunks) -> None:
        launches, inverse = np.unique(chunks.headers["launch"], return_inverse=True)
        begins = np.full(len(launches), np.iinfo(np.int64).max)
        first_words = chunks.words[chunks.which, _HEADER_WORDS]
        np.minimum.at(begins, inverse, _begin_of(first_words, chunks.headers))
        for launch, begin in zip(launches.tolist(), begins.tolist(), strict=True):
            self._begin_ticks.setdefault(launch, begin)


def _begin_of(first_words: np.ndarray, headers: np.ndarray) -> np.ndarray:
    """When each chunk was opened, or its first event began: short tracks are opened late."""
    anchors: np.ndarray = headers["anchor_realtime_ticks"].astype(np.int64)
    is_in_time = headers["flags"] & abi.CHUNK_CYCLES == 0
    has_event = (first_words >> np.uint64(abi.START_BITS)) != 0
    starts = unwrap(first_words, headers["anchor_realtime_ticks"])
    return np.where(is_in_time & has_event, np.minimum(starts, anchors), anchors)


def _replays_in_rooms(headers: np.ndarray) -> np.ndarray:
    """The replay of every chunk of one captured launch, by where its chunks begin in the room."""
    place = headers["block"].astype(np.int64) // abi.RECORDS_PER_CHUNK
    return np.unique(place - headers["chunk_idx"], return_inverse=True)[1]


def _replays_of(words: np.ndarray, headers: np.ndarray, has_lost: bool) -> np.ndarray | None:
    """The replay of every chunk of one captured launch, or None where there is a doubt."""
    opening = _openings(headers)
    if opening is None:
        return None
    is_opening = headers["previous_chunk_idx"] == abi.NO_CHUNK
    track = headers["block"].astype(np.int64) << 16 | headers["warp"]
    anchors = headers["anchor_realtime_ticks"].astype(np.int64)
    firsts = np.flatnonzero(is_opening)
    firsts = firsts[np.lexsort((anchors[firsts], track[firsts]))]
    is_same_track = track[firsts][1:] == track[firsts][:-1]
    if (is_same_track & (anchors[firsts][1:] == anchors[firsts][:-1])).any():
        return None
    begins = np.concatenate([[0], np.flatnonzero(~is_same_track) + 1])
    counts = np.diff(np.concatenate([begins, [len(firsts)]]))
    if not has_lost and counts.min() != counts.max():
        return None
    replay = np.zeros(len(headers), dtype=np.int64)
    replay[firsts] = np.arange(len(firsts)) - np.repeat(begins, counts)
    replay = replay[opening]
    begin = np.full(int(counts.max()), np.iinfo(np.int64).max)
    end = np.zeros_like(begin)
    np.minimum.at(begin, replay, anchors)
    np.maximum.at(end, replay, _latest_ticks(words, headers))
    return None if (end[:-1] > begin[1:]).any() else replay


def _openings(headers: np.ndarray) -> np.ndarray | None:
    """For every chunk the row of its track's first chunk.

    None where a chunk before another one is missing, or where chunks go round in a circle.
    """
    previous = headers["previous_chunk_idx"]
    is_opening = previous == abi.NO_CHUNK
    order = np.argsort(headers["chunk_idx"])
    place = np.searchsorted(headers["chunk_idx"], previous, sorter=order).clip(max=len(order) - 1)
    before = order[place]
    if (headers["chunk_idx"][before] != previous)[~is_opening].any():
        return None
    opening = first_of_track(np.where(is_opening, np.arange(len(headers)), before))
    return None if (opening < 0).any() else opening


def _latest_ticks(words: np.ndarray, headers: np.ndarray) -> np.ndarray:
    """The latest moment of the real-time clock that each chunk names."""
    parts = [
        _latest_of(words[begin : begin + _CHUNKS_AT_ONCE], headers[begin : begin + _CHUNKS_AT_ONCE])
        for begin in range(0, len(headers), _CHUNKS_AT_ONCE)
    ]
    return np.concatenate(parts)


def _latest_of(words: np.ndarray, headers: np.ndarray) -> np.ndarray:
    first, second = words[:, _HEADER_WORDS::2], words[:, _HEADER_WORDS + 1 :: 2]
    anchors = headers["anchor_realtime_ticks"].astype(np.int64)
    region = first >> np.uint64(abi.START_BITS)
    is_cycles = (headers["flags"] & abi.CHUNK_CYCLES != 0)[:, np.newaxis]
    duration = (second & np.uint64(0xFFFF_FFFF)).astype(np.int64)
    duration[duration >= abi.DURATION_SATURATED] = 0
    ends = unwrap(first, headers["anchor_realtime_ticks"][:, np.newaxis]) + duration
    # Records in cycles tell the time only where they are anchors.
    is_anchor = is_cycles & (region == abi.ANCHOR_REGION_ID)
    ends = np.where(is_anchor, second.astype(np.int64), ends)
    ends[(region == 0) | (is_cycles & ~is_anchor)] = 0
    return np.maximum(ends.max(axis=1), anchors)


def unwrap(first_words: np.ndarray, anchors: np.ndarray) -> np.ndarray:
    """Extend 48-bit starts to 64 bits: they are close to the chunk's 64-bit anchor."""
    distance = (first_words - anchors) << np.uint64(64 - abi.START_BITS)
    signed = distance.view(np.int64) >> (64 - abi.START_BITS)
    return anchors.astype(np.int64) + signed
