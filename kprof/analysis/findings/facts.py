"""Parts of a finding, and what tables show of its region: typed fields, and no text."""

from __future__ import annotations

from dataclasses import dataclass

from kprof.analysis.findings.thresholds import LEAST_RATIO

# A stretch of the trace, and the tracks (rank, block) to look at.
Where = tuple[tuple[int, int] | None, tuple[tuple[int, int], ...]]


@dataclass(frozen=True)
class Caused:
    """A wait that remains, under its cause: what `ranks` waited in `region` for `peers`, in ns
    summed over blocks, and its share of the blocks' time."""

    region: str
    ranks: tuple[int, ...]
    peers: tuple[int, ...]
    wait_ns: int
    share: float


@dataclass(frozen=True)
class Arrival:
    """A collective at which ranks are `late_ns` late: the `place`-th of `places` of its kernel in a
    call. `before` is the kernel before it that takes `before_ns` of that; "" where none does."""

    kernel: str
    place: int
    places: int
    late_ns: float
    before: str
    before_ns: float


@dataclass(frozen=True)
class BlockTime:
    """Per block of a call, the mean of those that have the region: its time, its spans, and the
    bytes that they count (0: none)."""

    total_ns: float
    spans: float
    bytes: float


@dataclass(frozen=True)
class Measured:
    """A region where it takes longer, and at the same places in the other recording."""

    longer: BlockTime
    shorter: BlockTime

    @property
    def factor(self) -> float:
        """How many times as long it takes per block."""
        return self.longer.total_ns / self.shorter.total_ns

    @property
    def work(self) -> tuple[float, str] | None:
        """How many times as much a block has to do there, and of what: bytes, or spans where no
        bytes are counted. None where it is as much."""
        here, there = self.longer, self.shorter
        if here.bytes and there.bytes:
            factor, unit = here.bytes / there.bytes, "bytes"
        else:
            factor, unit = here.spans / there.spans, "spans"
        return (factor, unit) if has_changed(1.0, factor) else None


def has_changed(before: float, now: float) -> bool:
    """Whether there is so much more to do, or less, that one would say so."""
    return not 1 / LEAST_RATIO < now / before < LEAST_RATIO
