"""Events that somebody else recorded, and how a format says what it reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from kprof.regions import Category

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kprof.importers.sample import Sample

    Ints = NDArray[np.int64]

# How sure a `sniff` is: certain, or a format that many tools write, each with other meanings.
CERTAIN: Final = 1.0
GENERIC: Final = 0.2
# In a column of payload fields: this event has no such field.
NONE: Final = -1


class Guess(str):
    """From what a reader took a thing, where it had to guess. The capture keeps it."""


@dataclass(frozen=True)
class ImportSummary:
    """What was imported. `taken` says of what it took each thing (rank, block, clock, a category).

    `left_out` counts what the files hold and the capture does not, `lost` what the other tool had
    lost already. `notices` say what was assumed.
    """

    path: Path
    num_events: int
    num_ranks: int
    notices: tuple[str, ...] = ()
    kind: str = ""
    taken: tuple[tuple[str, str], ...] = ()
    left_out: Mapping[str, int] = field(default_factory=dict)
    num_lost: int = 0
    is_aligned: bool = False


@dataclass(frozen=True)
class ForeignEvents:
    """Events of all ranks in ns of each rank's clock; columns have shape (n,). `name` indexes
    `names`. Fields are NONE where an event has none.

    `marks` are the names of instants, `categories` those that the format knows. `kernels` and
    `grids` (blocks, threads per block) are by launch; `kernel` names the launches that they lack.
    `num_dropped` is by rank. `taken` says in a few words ("pid") where rank, block, warp, launch,
    clock, processor and names were found; what was guessed is a Guess. `guesses` are sentences
    about what else was, and stay in the capture. `left_out` counts what was left out, by what it
    is.
    """

    rank: Ints
    block: Ints
    name: Ints
    start_ns: Ints
    duration_ns: Ints
    names: tuple[str, ...]
    warp: Ints | int = -1
    launch: Ints | int = 0
    hw_id: Ints | int = 0
    fields: Mapping[str, Ints] = field(default_factory=dict)
    num_dropped: Mapping[int, int] = field(default_factory=dict)
    kernel: str = "imported"
    kernels: Mapping[int, str] = field(default_factory=dict)
    grids: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    tick_ns: float = 1.0
    marks: frozenset[str] = frozenset()
    categories: Mapping[str, Category] = field(default_factory=dict)
    taken: Mapping[str, str] = field(default_factory=dict)
    guesses: tuple[str, ...] = ()
    left_out: Mapping[str, int] = field(default_factory=dict)
    notices: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.start_ns)


@dataclass(frozen=True)
class ReadOptions:
    """What users know about files whose format does not say it; None where they say nothing.

    `names` are the names of tags, `tick_ns` is the length of a tick; with `is_rank_in_tid`, the
    writer added the rank to every thread id.
    """

    names: tuple[str, ...] | None = None
    tick_ns: float | None = None
    is_rank_in_tid: bool | None = None


# How each of them is given to kprof import.
OPTIONS: Final = {
    "names": "--names",
    "tick_ns": "--tick-ns",
    "is_rank_in_tid": "--rank-in-tid",
}


def _never(_: Sample) -> float:
    return 0.0


@dataclass(frozen=True)
class Format:
    """A format that can be imported: `uses` names the fields of ReadOptions that `read` looks at.

    `read` raises ForeignFormatError. With `takes_many` it gets a file per rank, rank 0 first, else
    one file. `sniff` says how sure it is, from 0 to CERTAIN, that a file is of the format; one that
    is certain or nothing may say True or False.
    """

    read: Callable[[Sequence[Path], ReadOptions], ForeignEvents]
    sniff: Callable[[Sample], float] = _never
    uses: tuple[str, ...] = ()
    takes_many: bool = False


def to_ns(ticks: Ints, tick_ns: float) -> Ints:
    """Ticks to ns, exact for whole ticks and to half a ns over the length of a trace otherwise."""
    if float(tick_ns).is_integer():
        return ticks * int(tick_ns)
    base = int(ticks.min()) if len(ticks) else 0
    offsets = np.rint((ticks - base) * tick_ns).astype(np.int64)
    return offsets + int(base * tick_ns)
