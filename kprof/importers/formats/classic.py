"""The classic buffer of hand-written helpers: one int64 array per rank.

    word 0          how many events were begun (may be more than fit: then the rest was dropped)
    word 1 + 4 i    start, ticks
    word 2 + 4 i    duration, ticks
    word 3 + 4 i    tag: index into a list of names
    word 4 + 4 i    id: the threadblock

Files are .npy, or the bare words, little-endian. Starts are those of the rank's own counter.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np

from kprof.capture.manifest import MAX_COUNT
from kprof.errors import ForeignFormatError
from kprof.importers.collector import Collector, Place, file_per_rank
from kprof.importers.foreign import Format
from kprof.importers.reading import read_array
from kprof.importers.sample import Sample, share

_MOST_TAGS: Final = 1 << 15


def _collect(found: Collector, file: Path, rank: int) -> None:
    words = read_array(file, "<i8", "a classic buffer")
    if words.ndim != 1 or len(words) < 1:
        raise ForeignFormatError(
            f"{file} holds {words.dtype} of shape {words.shape}, "
            "expected int64 words in one dimension"
        )
    num_begun, capacity = int(words[0]), (len(words) - 1) // 4
    if not 0 <= num_begun <= MAX_COUNT:
        raise ForeignFormatError(f"{file} begins with the count {num_begun}: not a classic buffer")
    num_kept = min(num_begun, capacity)
    found.num_dropped[rank] += num_begun - num_kept
    for start, duration, tag, block in words[1 : 1 + 4 * num_kept].reshape(-1, 4).tolist():
        if not 0 <= tag < _MOST_TAGS:
            raise ForeignFormatError(
                f"{file} has the tag {tag}, expected 0 to {_MOST_TAGS - 1}: it is damaged, or not "
                "of this format"
            )
        found.span(Place(rank, block), found.name(tag, "tag"), start, duration)


def _sniff(sample: Sample) -> float:
    words = sample.words("<i8")
    num_begun = int(words[0]) if len(words) > 4 else 0
    if not 0 < num_begun <= 1 << 32:
        return 0.0
    events = words[1 : 1 + 4 * min(num_begun, (len(words) - 1) // 4)].reshape(-1, 4)
    start, duration, tag, block = events.T
    fits = (start > 0) & (duration > 0) & (duration < 1 << 40)
    fitting = share(fits & (tag >= 0) & (tag < _MOST_TAGS) & (block >= 0) & (block < 1 << 31))
    # Anything has a few such numbers; all of it, within a day, is hardly chance.
    return 0.5 if fitting > 0.9 and int(np.ptp(start)) < 1 << 44 else 0.0


FORMAT: Final = Format(
    # Of 10 ns are the ticks of the 100 MHz counter of AMD GPUs, which these helpers read.
    file_per_rank(_collect, ("ticks of 10 ns, a guess", 10.0), block="the last word of an event"),
    _sniff,
    uses=("names", "tick_ns"),
    takes_many=True,
)
