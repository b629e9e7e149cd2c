"""Raw buffers of MORI-VIZ: int64 pairs (time, warp << 16 | slot << 2 | type), a ring per warp."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np

from kprof.importers.collector import Collector, Place, from_options
from kprof.importers.foreign import CERTAIN, ForeignEvents, Format, ReadOptions, Taken
from kprof.importers.reading import read_words
from kprof.importers.sample import Sample, share

_WORDS_OF_A_WARP: Final = 32768
_BEGIN, _END, _INSTANT = range(3)


def _read(files: Sequence[Path], options: ReadOptions) -> ForeignEvents:
    """One buffer per rank; `names[slot]` names an event."""
    found = Collector()
    tick_ns, clock = from_options("100 MHz, as on MI300", options.tick_ns, 10.0)
    names, num_full = options.names or (), 0
    for rank, path in enumerate(files):
        words = read_words(path, "<i8", "a buffer of MORI-VIZ")
        for warp, begin in enumerate(range(0, len(words), _WORDS_OF_A_WARP)):
            part = words[begin : begin + _WORDS_OF_A_WARP]
            pairs = part[: len(part) // 2 * 2].reshape(-1, 2)
            num_full += bool(len(pairs) == _WORDS_OF_A_WARP // 2 and pairs[:, 0].all())
            pairs = pairs[pairs[:, 0] != 0]
            # A ring that has wrapped begins in its middle.
            for time, meta in pairs[np.argsort(pairs[:, 0], kind="stable")].tolist():
                slot, kind = meta >> 2 & 0x3FFF, meta & 3
                name = names[slot] if slot < len(names) else f"slot {slot}"
                if kind == _BEGIN:
                    found.begin(Place(rank, 0, warp), name, time, slot)
                elif kind == _END:
                    found.end(Place(rank, 0, warp), time, slot)
                else:
                    found.mark(Place(rank, 0, warp), name, time)
    notices = [f"rings that are full, so that older events may be gone: {num_full:,}"]
    return found.events(
        files[0],
        tick_ns,
        notices=tuple(notices[: 1 if num_full else 0]),
        taken=(
            Taken("rank", "the order of the files"),
            Taken("block", "nothing: all are 0", is_guess=True),
            Taken("warp", "the place of its ring"),
            clock,
            Taken("names", "--names" if options.names else "numbers of slots"),
        ),
    )


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
    _read,
    _sniff,
    uses=("names", "tick_ns"),
    takes_many=True,
    tool="MORI-VIZ: raw buffers (its JSON is format `chrome`)",
    brings="spans and instants by warp",
    lacks="blocks, how many events a full ring has overwritten",
    tested="by its source of 2026",
)
