"""What a workload says about its clocks: which event of one rank was not later than which of
another."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kprof.clocks.hulls import lower_hull
from kprof.errors import ClockError

Ints = NDArray[np.int64]

WINDOW_S: Final = 10.0
_PIECES: Final = 16


@dataclass(frozen=True)
class RankClock:
    """What is known of a rank's clock: its first and last reading that are used, its step, and how
    far off a reading can be either way."""

    first_ns: int
    last_ns: int
    step_ns: float
    error_ns: float = 0.0

    @property
    def middle_ns(self) -> int:
        """Half way between the readings."""
        return (self.first_ns + self.last_ns) // 2


@dataclass(frozen=True)
class Limits:
    """Limits of one pair: the clock of rank `before` read `sent_ns` no later than the clock of rank
    `after` read `seen_ns`. Columns of shape (n,); a contradiction names limits by
    `number`, which is the caller's."""

    before: int
    after: int
    sent_ns: Ints
    seen_ns: Ints
    number: Ints

    def binding(self, clocks: Mapping[int, RankClock]) -> Limits:
        """Those that can bind in some window: the others follow from them. Windows are put together
        of the pieces that are looked at here."""
        from_ns = clocks[self.before].first_ns
        sent, between = (self.sent_ns - from_ns).astype(float), self.seen_ns - self.sent_ns
        piece = (sent // (WINDOW_S * 1e9 / _PIECES)).astype(np.int64)
        limit = (between - (between[0] if len(between) else 0)).astype(float)
        rows = [np.flatnonzero(piece == each) for each in np.unique(piece)]
        kept = [each[lower_hull(sent[each], limit[each])] for each in rows]
        return self._rows(np.concatenate(kept) if kept else np.zeros(0, np.intp))

    def _rows(self, rows: NDArray[np.intp]) -> Limits:
        return replace(
            self, sent_ns=self.sent_ns[rows], seen_ns=self.seen_ns[rows], number=self.number[rows]
        )


class ContradictionError(ClockError):
    """Limits that cannot all hold: `ranks` is the cycle, `numbers` name a limit of each of its
    sides (-1: one that follows from others), `by_ns` is what they lack."""

    def __init__(self, ranks: tuple[int, ...], numbers: tuple[int, ...], by_ns: float) -> None:
        self.ranks, self.numbers, self.by_ns = ranks, numbers, by_ns
        cycle = " to ".join(map(str, (*ranks, ranks[0])))
        super().__init__(
            f"what happened before what on ranks {cycle} contradicts itself by {by_ns / 1000:,.1f} "
            "us: events were joined that do not belong together, or a clock is wrong"
        )
