"""What happens to events once they are recorded: everything is kept until the arena is full, it is
drained while the workload runs, or only the latest events stay, in a ring."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, Final

from kprof.errors import RecorderError

_NUM_DRAINED: Final = 2
# A ring is made of arenas of an eighth of what it has to hold. One of them is retired when it is
# three quarters full, so that eleven hold what is wanted; launches use one, and one is being wiped.
_RING_SHARE: Final = 8
NUM_RETIRED_OF_RING: Final = 11
_NUM_OF_RING: Final = NUM_RETIRED_OF_RING + 2
# A head and a chunk for each arena; kprof.abi says how large they are, but needs numpy, which a
# workload that records nothing does not import.
_MIN_RING_BYTES: Final = _RING_SHARE * (13 << 10)


@dataclass(frozen=True)
class Retention:
    """By default an arena that fills up once; raises RecorderError for what contradicts itself.

    `drain` empties it while kernels run. A ring keeps the last `ring_bytes` and writes them when
    somebody asks, when a call takes longer than `slower_than` times the median, and at the end.
    """

    drain: bool = False
    ring_bytes: int = 0
    slower_than: float = 0.0

    def __post_init__(self) -> None:
        if self.drain and self.ring_bytes:
            raise RecorderError(
                "draining keeps all events and a ring the latest ones; choose one of them"
            )
        if 0 < self.ring_bytes < _MIN_RING_BYTES:
            raise RecorderError(
                f"a ring of {self.ring_bytes} bytes has no room for a chunk in each of its parts; "
                f"give at least {_MIN_RING_BYTES} bytes"
            )
        if self.slower_than and not self.ring_bytes:
            raise RecorderError(
                "slow calls are written from a ring, and there is none; give --ring 64MiB, too"
            )
        if self.slower_than and self.slower_than <= 1:
            raise RecorderError(
                f"half of all calls are slower than {self.slower_than:g} times the median; "
                "give more than 1, like 3"
            )

    @property
    def num_arenas(self) -> int:
        """How many arenas are used in turn."""
        return _NUM_OF_RING if self.ring_bytes else _NUM_DRAINED if self.drain else 1

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
        """Bytes of all arenas; `arena_bytes` is what a recorder without a ring is given."""
        if not self.ring_bytes:
            return arena_bytes
        return -(-self.ring_bytes // _RING_SHARE) * _NUM_OF_RING

    def to_text(self) -> str:
        """For `from_text`."""
        return json.dumps(asdict(self))

    @staticmethod
    def from_text(text: str) -> Retention:
        """What `to_text` has written; raises RecorderError for other text."""
        try:
            fields: dict[str, Any] = json.loads(text)
            return Retention(**fields)
        except (ValueError, TypeError):
            raise RecorderError(f"{text!r} does not say what to keep") from None


EVERYTHING_THAT_FITS: Final = Retention()
