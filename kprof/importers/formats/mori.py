"""Raw buffers of MORI-VIZ: int64 pairs (time, warp << 16 | slot << 2 | type), a ring per warp."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np

from kprof.importers.collector import Collector, Place, file_per_rank
from kprof.importers.foreign import CERTAIN, Format, Guess
from kprof.importers.reading import read_words
from kprof.importers.sample import Sample, share

_WORDS_OF_A_WARP: Final = 32768
_BEGIN, _END, _INSTANT = range(3)


def _collect(found: Collector, path: Path, rank: int) -> None:
    words, num_full = read_words(path, "<i8", "a buffer of MORI-VIZ"), 0
    for warp, begin in enumerate(range(0, len(words), _WORDS_OF_A_WARP)):
        part = words[begin : begin + _WORDS_OF_A_WARP]
        pairs = part[: len(part) // 2 * 2].reshape(-1, 2)
        num_full += bool(len(pairs) == _WORDS_OF_A_WARP // 2 and pairs[:, 0].all())
        pairs = pairs[pairs[:, 0] != 0]
        place = Place(rank, 0, warp)
        # A ring that has wrapped begins in its middle.
        for time, meta in pairs[np.argsort(pairs[:, 0], kind="stable")].tolist():
            slot, kind = meta >> 2 & 0x3FFF, meta & 3
            if kind == _BEGIN:
                found.begin(place, found.name(slot, "slot"), time, slot)
            elif kind == _END:
                found.end(place, time, slot)
            else:
                found.mark(place, found.name(slot, "slot"), time)
    if num_full:
        found.notices["rings that are full, so that older events may be gone"] += num_full


def _sniff(sample: Sample) -> float:
    words = sample.words("<i8")
    pairs = words[: len(words) // 2 * 2].reshape(-1, 2)
    warps = np.arange(len(pairs)) // (_WORDS_OF_A_WARP // 2)
    used = pairs[:, 0] != 0
    fits = (pairs[used, 1] >> 16 == warps[used]) & (pairs[used, 1] & 3 <= _INSTANT)
    # Smaller buffers may be anything: a warp alone has 256 KiB.
    is_whole = len(words) >= _WORDS_OF_A_WARP and len(words) % _WORDS_OF_A_WARP == 0
    fitting = share(fits & (pairs[used, 0] > 0))
    return 0.8 * CERTAIN * fitting if is_whole and fitting > 0.9 else 0.0


FORMAT: Final = Format(
    file_per_rank(
        _collect,
        ("100 MHz, as on MI300", 10.0),
        block=Guess("nothing: all are 0"),
        warp="the place of its ring",
    ),
    _sniff,
    uses=("names", "tick_ns"),
    takes_many=True,
)
