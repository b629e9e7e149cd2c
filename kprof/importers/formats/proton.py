"""The raw host buffer of Triton's Proton, instrumentation backend, in both of its layouts.

    u32 version, header offset, header size, payload offset, payload size, device type, blocks,
        warps, bytes per block; newer: the number of recorded warps; then the ids of these
    per block: 0xDEADBEEF, block, SM, ring bytes; newer: three u64 times in ns (begin, end, end of
        the copy); the words that each warp has written (more than fit: the oldest are gone); rings
    per event: u32 (bit 31 end, bits 30..23 scope, bits 10..0 clock 42..32), u32 clock 31..0

The clock counts cycles of the SM. Only the newer layout says when a block began.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kprof.errors import ForeignFormatError
from kprof.importers.collector import Collector, Place, no_cycle
from kprof.importers.foreign import ForeignEvents, Format, Guess, ReadOptions
from kprof.importers.reading import read_words

Words = NDArray[np.uint32]

_VERSION: Final = 1
_MAGIC: Final = 0xDEADBEEF
# Words of a block before the counts of its warps, without times and with.
_OLD: Final = 4
_NEW: Final = 10
_HEADER_WORDS: Final = 9
_MOST_WARPS: Final = 64
_LEAST_TIME: Final = 1 << 45
_LONGEST_NS: Final = 1 << 36


@dataclass(frozen=True)
class _Layout:
    payload: int
    num_blocks: int
    num_warps: int
    block_words: int
    warps: tuple[int, ...]
    ring_words: int
    has_times: bool

    @property
    def head_words(self) -> int:
        """Words of a block before its rings."""
        return (_NEW if self.has_times else _OLD) + self.num_warps


@dataclass(frozen=True)
class _Ring:
    place: Place
    begin_ns: int
    end_ns: int
    entries: Words


def _read(files: Sequence[Path], options: ReadOptions) -> ForeignEvents:
    """One buffer per rank. `tick_ns` is the length of a cycle, `names` are those of the scopes."""
    found = Collector(options)
    rings = [ring for rank, path in enumerate(files) for ring in _rings(found, path, rank)]
    tick_ns, clock = _cycle(files[0], rings, options)
    for ring in rings:
        _collect(found, ring, tick_ns)
    taken = {
        "rank": "the order of the files",
        "block": "block_id",
        "warp": "the place of its ring",
        "processor": "proc_id",
        "clock": clock,
    }
    return found.events(files[0], taken=taken)


def _layout(words: Words) -> _Layout | None:
    """What the header and the first block say, None where they are none."""
    if len(words) < _HEADER_WORDS + 1 or words[0] != _VERSION:
        return None
    size, payload, num_blocks, num_warps, block_bytes = (int(words[i]) for i in (2, 3, 6, 7, 8))
    start, is_new = payload // 4, size == 4 * (_HEADER_WORDS + 1 + int(words[9]))
    warps = tuple(words[_HEADER_WORDS + is_new : size // 4].tolist())
    if size % 4 or block_bytes % 4 or not 0 < num_warps <= _MOST_WARPS or not warps:
        return None
    if max(warps) >= num_warps or len(words) < start + _NEW or words[start] != _MAGIC:
        return None
    begin, end, last = (int(time) for time in words[start + _OLD : start + _NEW].view("<u8"))
    # Where old buffers have the counts of warps.
    has_times = _LEAST_TIME < begin <= end <= last < begin + _LONGEST_NS
    ring_words = int(words[start + 3]) // 4 // len(warps) // 2 * 2
    found = _Layout(start, num_blocks, num_warps, block_bytes // 4, warps, ring_words, has_times)
    needed = found.head_words + ring_words * len(warps)
    return found if ring_words and needed <= found.block_words else None


def _rings(found: Collector, path: Path, rank: int) -> list[_Ring]:
    words: Words = read_words(path, "<u4", "Proton's buffer")
    layout = _layout(words)
    if layout is None:
        raise ForeignFormatError(f"{path} has no header of Proton's buffer; it may be damaged")
    num_whole = min(layout.num_blocks, (len(words) - layout.payload) // layout.block_words)
    if num_whole < layout.num_blocks:
        found.left_out["blocks behind the end of the file"] += layout.num_blocks - num_whole
    rings: list[_Ring] = []
    for i in range(num_whole):
        block = words[layout.payload + i * layout.block_words :][: layout.block_words]
        if block[0] != _MAGIC:
            found.left_out["blocks without their mark"] += 1
            continue
        rings += _rings_of(found, block, layout, rank)
    return rings


def _rings_of(found: Collector, block: Words, layout: _Layout, rank: int) -> list[_Ring]:
    times = block[_OLD:_NEW].view("<u8") if layout.has_times else np.zeros(3, "<u8")
    counts, size = block[: layout.head_words][-layout.num_warps :], layout.ring_words
    rings = []
    for i, warp in enumerate(layout.warps):
        count = int(counts[warp])
        entries = block[layout.head_words + i * size :][: min(count, size) // 2 * 2].reshape(-1, 2)
        if count > size:
            found.num_dropped[rank] += (count - size) // 2
            # The oldest entry is where the next would be written.
            entries = np.roll(entries, -(count % size // 2), axis=0)
        place = Place(rank, int(block[1]), warp, hw_id=int(block[2]))
        rings.append(_Ring(place, int(times[0]), int(times[1]), entries))
    return rings


def _cycles(ring: _Ring) -> NDArray[np.int64]:
    high = (ring.entries[:, 0] & 0x7FF).astype(np.int64)
    return (high << 32) | ring.entries[:, 1].astype(np.int64)


def _cycle(path: Path, rings: Sequence[_Ring], options: ReadOptions) -> tuple[float, str]:
    """ns per cycle: as given, else the longest for which all events fit their blocks."""
    if options.tick_ns is not None:
        return options.tick_ns, f"--tick-ns {options.tick_ns:g}"
    limits = [
        (ring.end_ns - ring.begin_ns) / int(np.ptp(_cycles(ring)))
        for ring in rings
        if 0 < ring.begin_ns < ring.end_ns and len(ring.entries) > 1 and np.ptp(_cycles(ring))
    ]
    if not limits:
        raise no_cycle(path)
    source = f"cycles, at most {min(limits):.3f} ns long if all events fit their blocks"
    return min(limits), Guess(source)


def _collect(found: Collector, ring: _Ring, tick_ns: float) -> None:
    cycles = _cycles(ring)
    first = int(cycles[0]) if len(cycles) and ring.begin_ns else 0
    for tag, cycle in zip(ring.entries[:, 0].tolist(), cycles.tolist(), strict=True):
        time = ring.begin_ns + round((cycle - first) * tick_ns)
        scope = tag >> 23 & 0xFF
        if tag >> 31:
            found.end(ring.place, time, scope)
        else:
            found.begin(ring.place, found.name(scope, "scope"), time, scope)


FORMAT: Final = Format(
    _read,
    lambda sample: _layout(sample.words("<u4")) is not None,
    uses=("names", "tick_ns"),
    takes_many=True,
)
