"""Which events of a run are kept.

By default, those that come before the arena is full. With `drain` all of them, because the arena is
emptied while the workload runs. With a ring the latest ones, and with `keep_slowest` those of the
slowest calls.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from numbers import Real
from typing import Final

from kprof.errors import RecorderError
from kprof.recording.launches.whole import whole

_NUM_DRAINED: Final = 2
# Each arena of a ring holds an eighth of what the ring has to keep. It is retired when it is three
# quarters full, so eleven retired ones hold enough. Launches use a twelfth, and one is being
# emptied.
_RING_SHARE: Final = 8
NUM_RETIRED_OF_RING: Final = 11
_NUM_OF_RING: Final = NUM_RETIRED_OF_RING + 2
# Launches use one. The others wait until all ranks have ended the same calls.
NUM_FOR_SLOWEST: Final = 4
# The list of the slowest calls is looked through often.
_MAX_SLOWEST: Final = 1000
# A head and a chunk for each arena. kprof.abi has their sizes, but it imports numpy, and a workload
# that records nothing should not.
_MIN_RING_BYTES: Final = _RING_SHARE * (13 << 10)

# For those who ask for what a ring holds.
NO_RING: Final = (
    "this recording has no ring; record with --ring 64MiB, in Python with "
    "kprof.Retention(ring_bytes=64 << 20)"
)


@dataclass(frozen=True)
class Retention:
    """What to keep, by default what fits the arena; raises RecorderError for fields that contradict
    each other.

    `drain` empties the arena while kernels run, in `drain_share` of the time at most; calls for
    which that leaves no room are left out whole. A ring keeps the last `ring_bytes`, and writes
    them at the end, when somebody asks, and when a call takes longer than `slower_than` times the
    median. `keep_slowest` is a number of calls (see `slowest`). `in_host_memory`: a GPU records
    into memory of the host, which outlives the process, and takes longer for it.
    """

    drain: bool = False
    ring_bytes: int = 0
    slower_than: float = 0.0
    keep_slowest: int = 0
    in_host_memory: bool = False
    drain_share: float = 1.0

    def __post_init__(self) -> None:
        self._check_types()
        if self.drain + bool(self.ring_bytes) + bool(self.keep_slowest) > 1:
            raise RecorderError(
                "drain keeps all events, a ring the latest ones and keep-slowest those of the "
                "slowest calls; choose one of them"
            )
        if not 0 <= self.keep_slowest <= _MAX_SLOWEST:
            raise RecorderError(
                f"{self.keep_slowest} is no number of slowest calls to keep; give 1 to "
                f"{_MAX_SLOWEST}, or drain to keep all calls"
            )
        if self.ring_bytes and self.ring_bytes < _MIN_RING_BYTES:
            raise RecorderError(
                f"a ring of {self.ring_bytes} bytes has no room for a chunk in each of its parts; "
                f"give at least {_MIN_RING_BYTES} bytes"
            )
        if not 0 < self.drain_share <= 1:
            raise RecorderError(f"drain_share is {self.drain_share:g}: give a share, like 0.05")
        if self.slower_than and not self.ring_bytes:
            raise RecorderError(f"a slow call writes what a ring holds, and {NO_RING}")
        if self.slower_than and self.slower_than <= 1:
            raise RecorderError(
                f"half of all calls are slower than {self.slower_than:g} times the median; "
                "give more than 1, like 3"
            )

    def _check_types(self) -> None:
        """Raises RecorderError for what is no number, and makes numbers those of Python."""
        for name in ("drain", "in_host_memory"):
            value = getattr(self, name)
            if not isinstance(value, bool):
                raise RecorderError(f"{name} is {value!r}: give True or False")
        for name in ("ring_bytes", "keep_slowest"):
            number = whole(getattr(self, name))
            if number is None:
                raise RecorderError(f"{name} is {getattr(self, name)!r}: give a whole number")
            object.__setattr__(self, name, number)
        for name, usual in (("slower_than", 3), ("drain_share", 0.05)):
            number = getattr(self, name)
            if not isinstance(number, Real) or not isfinite(number):
                raise RecorderError(f"{name} is {number!r}: give a number, like {usual}")
            object.__setattr__(self, name, float(number))

    @property
    def num_arenas(self) -> int:
        """How many arenas are used in turn."""
        if self.ring_bytes:
            return _NUM_OF_RING
        return NUM_FOR_SLOWEST if self.keep_slowest else _NUM_DRAINED if self.drain else 1

    def too_small(self, kernel: str, num_tracks: int, num_chunks: int) -> str:
        """A sentence for a launch whose tracks are more than the chunks of its arena."""
        return (
            f"a launch of {kernel} opens {num_tracks} tracks, and only {num_chunks} fit the arena "
            f"that it gets; give at least {self.size_for(num_tracks)}"
        )

    def size_for(self, num_tracks: int) -> str:
        """The option that gives every arena a chunk for each of so many tracks."""
        from kprof import abi

        each_bytes = abi.CHUNKS_OFFSET + num_tracks * abi.CHUNK_BYTES
        if self.ring_bytes:
            return f"--ring {(_RING_SHARE * each_bytes >> 20) + 1}MiB"
        return f"--arena-size {(self.num_arenas * each_bytes >> 20) + 1}MiB"

    def total_bytes(self, arena_bytes: int) -> int:
        """Bytes of all arenas; `arena_bytes` is what a recorder without a ring is given.

        Raises RecorderError where that is no whole number.
        """
        size_bytes = whole(arena_bytes)
        if size_bytes is None:
            raise RecorderError(
                f"arena_bytes is {arena_bytes!r}: give a whole number of bytes, like 64 << 20"
            )
        if not self.ring_bytes:
            return size_bytes
        return -(-self.ring_bytes // _RING_SHARE) * _NUM_OF_RING


EVERYTHING_THAT_FITS: Final = Retention()
