"""The classic buffer of hand-written helpers: one int64 array per rank.

    word 0          how many events were begun (may be more than fit: then the rest was dropped)
    word 1 + 4 i    start, ticks
    word 2 + 4 i    duration, ticks
    word 3 + 4 i    tag: index into a list of names
    word 4 + 4 i    id: the threadblock

Files are .npy, or the bare words, little-endian. Starts are those of the rank's own counter.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kprof.capture.manifest import MAX_COUNT
from kprof.errors import ForeignFormatError
from kprof.importers.collector import from_options
from kprof.importers.foreign import ForeignEvents, Format, ReadOptions, Taken, to_ns
from kprof.importers.reading import read_array
from kprof.importers.sample import Sample, share

# The 100 MHz counter of AMD GPUs, which these helpers read.
_DEFAULT_TICK_NS: Final = 10.0


def _read(files: Sequence[Path], options: ReadOptions) -> ForeignEvents:
    """One buffer per rank, in the order of ranks; `names[tag]` names an event."""
    if not files:
        raise ForeignFormatError("no files to import; give one buffer per rank, rank 0 first")
    names = options.names or ()
    tick_ns, clock = from_options("ticks of 10 ns, a guess", options.tick_ns, _DEFAULT_TICK_NS)
    buffers = [_read_buffer(file) for file in files]
    words = np.concatenate([events for events, _ in buffers])
    rank = np.repeat(np.arange(len(buffers)), [len(events) for events, _ in buffers])
    known = _all_names(names, words[:, 2])
    return ForeignEvents(
        rank=rank,
        block=words[:, 3],
        name=words[:, 2],
        start_ns=to_ns(words[:, 0], tick_ns),
        duration_ns=to_ns(words[:, 1], tick_ns),
        names=known,
        num_dropped={i: dropped for i, (_, dropped) in enumerate(buffers)},
        tick_ns=tick_ns,
        taken=(
            Taken("rank", "the order of the files"),
            Taken("block", "the last word of an event"),
            clock,
        ),
        notices=_notices(sum(dropped for _, dropped in buffers), len(known) - len(names)),
    )


def _read_buffer(file: Path) -> tuple[NDArray[np.int64], int]:
    """Events of one buffer, shape (n, 4), and how many did not fit."""
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
    return words[1 : 1 + 4 * num_kept].reshape(num_kept, 4), num_begun - num_kept


def _all_names(names: Sequence[str], tags: NDArray[np.int64]) -> tuple[str, ...]:
    """The names given, and `tag 7` for tags beyond them."""
    if len(tags) and tags.min() < 0:
        raise ForeignFormatError(
            f"tag {int(tags.min())} is negative: the buffer is damaged, or not of this format"
        )
    num_tags = int(tags.max()) + 1 if len(tags) else 0
    if num_tags > max(len(names), 1 << 15):
        raise ForeignFormatError(
            f"tag {num_tags - 1} is too large: the buffer is damaged, or not of this format"
        )
    return (*names, *(f"tag {tag}" for tag in range(len(names), num_tags)))


def _notices(num_dropped: int, num_unnamed: int) -> tuple[str, ...]:
    notices = []
    if num_dropped:
        notices.append(f"{num_dropped:,} events did not fit the buffers and are lost")
    if num_unnamed > 0:
        notices.append(f"{num_unnamed} tags have no name; give more names to see what they are")
    return tuple(notices)


def _sniff(sample: Sample) -> float:
    words = sample.words("<i8")
    num_begun = int(words[0]) if len(words) > 4 else 0
    if not 0 < num_begun <= 1 << 32:
        return 0.0
    events = words[1 : 1 + 4 * min(num_begun, (len(words) - 1) // 4)].reshape(-1, 4)
    start, duration, tag, block = events.T
    fits = (start > 0) & (duration > 0) & (duration < 1 << 40)
    fitting = share(fits & (tag >= 0) & (tag < 1 << 15) & (block >= 0) & (block < 1 << 31))
    # Anything has a few such numbers; all of it, within a day, is hardly chance.
    return 0.5 if fitting > 0.9 and int(np.ptp(start)) < 1 << 44 else 0.0


FORMAT: Final = Format(
    _read,
    _sniff,
    uses=("names", "tick_ns"),
    takes_many=True,
    tool="hand-written helpers: one int64 array per rank",
    brings="spans by block, the number of events that did not fit",
    lacks="names, the length of a tick",
)
