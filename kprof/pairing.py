"""Which send released which wait: the n-th of a (source, destination, slot) within a call meets its n-th.

Sorting one number per event is several times cheaper than joining on five columns, and flows are what large captures
spend their time on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
_LARGEST_KEY: Final = 1 << 62


@dataclass(frozen=True)
class Ends:
    """One side of flows as columns: who sent, to whom, in which call and slot, when, and the event's id."""

    src: Ints
    dst: Ints
    ordinal: Ints
    slot: Ints
    start_ns: Ints
    end_ns: Ints
    event_id: Ints

    def __len__(self) -> int:
        """The number of sends, or of waits."""
        return len(self.src)


def pair(sends: Ends, waits: Ends) -> tuple[Ints, Ints]:
    """Indices of the sends and of the waits that belong together."""
    count = len(sends)
    keys = _numbered(
        [
            np.concatenate([getattr(sends, name), getattr(waits, name)])
            for name in ("src", "dst", "ordinal", "slot")
        ]
    )
    send_order, send_keys = _in_order(keys[:count], sends)
    wait_order, wait_keys = _in_order(keys[count:], waits)
    if _has_repeats(send_keys) or _has_repeats(wait_keys):
        occurrences = [_occurrences(send_keys), _occurrences(wait_keys)]
        most = 1 + max((int(column.max(initial=0)) for column in occurrences), default=0)
        send_keys, wait_keys = send_keys * most + occurrences[0], wait_keys * most + occurrences[1]
    if np.array_equal(send_keys, wait_keys):
        return send_order, wait_order
    if len(wait_keys) == 0 or count == 0:
        return send_order[:0], wait_order[:0]
    at = np.minimum(np.searchsorted(wait_keys, send_keys), len(wait_keys) - 1)
    is_met = wait_keys[at] == send_keys
    return send_order[is_met], wait_order[at[is_met]]


def _numbered(columns: list[Ints]) -> Ints:
    """One number per distinct row, small enough to be multiplied by an occurrence."""
    keys = np.zeros(len(columns[0]), dtype=np.int64)
    size = 1
    for column in columns:
        lowest = int(column.min(initial=0))
        width = int(column.max(initial=0)) - lowest + 1
        if size * width * (len(keys) + 1) >= _LARGEST_KEY:
            _, dense = np.unique(keys, return_inverse=True)
            keys, size = dense.astype(np.int64), len(keys) + 1
        keys = keys * width + (column - lowest)
        size *= width
    return keys


def _in_order(keys: Ints, ends: Ends) -> tuple[Ints, Ints]:
    """The order of the keys and the sorted keys; ends with one key follow each other in time."""
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    if _has_repeats(ordered):
        order = np.lexsort((ends.event_id, ends.start_ns, keys))
        ordered = keys[order]
    return order, ordered


def _has_repeats(ordered: Ints) -> bool:
    return bool((ordered[1:] == ordered[:-1]).any())


def _occurrences(ordered: Ints) -> Ints:
    """0 for the first of equal neighbours, 1 for the second, ..."""
    positions = np.arange(len(ordered))
    is_first = np.r_[True, ordered[1:] != ordered[:-1]] if len(ordered) else np.zeros(0, bool)
    return positions - np.maximum.accumulate(np.where(is_first, positions, 0))
