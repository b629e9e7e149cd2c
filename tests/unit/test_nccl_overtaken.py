"""Channels that NCCL gives the times of a later call."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from kprof.nccl.overtaken import by_order, by_others

NUM_CALLS, PERIOD_NS = 400, 25_000


def channels(late_ns: int = 0) -> pd.DataFrame:
    """Two ranks, of which the second begins each call `late_ns` later; both end together."""
    calls = np.arange(NUM_CALLS)
    return pd.concat(
        [
            pd.DataFrame(
                {
                    "rank": rank,
                    "comm": "world",
                    "func": "AllReduce",
                    "seq": calls,
                    "channel": 0,
                    "start_ns": 10**9 + calls * PERIOD_NS + rank * late_ns,
                    "stop_ns": 10**9 + calls * PERIOD_NS + 20_000,
                }
            )
            for rank in (0, 1)
        ],
        ignore_index=True,
    )


def overtaken(rows: pd.DataFrame, first: int, last: int) -> pd.DataFrame:
    """The second rank's calls from `first` to `last` have the times of those 64 later."""
    shifted = rows.copy()
    mine = (rows["rank"] == 1) & rows["seq"].between(first, last)
    shifted.loc[mine, ["start_ns", "stop_ns"]] += 64 * PERIOD_NS
    return shifted


def both(rows: pd.DataFrame, bound_ns: float = 32.0) -> np.ndarray:
    ordered = by_order(rows)
    kept = rows[~ordered]
    found = ordered.copy()
    found[~ordered] = by_others(kept, np.zeros(len(kept), np.int64), bound_ns)
    return found


def test_sound_times_stay():
    assert not both(channels(late_ns=5000)).any()


@pytest.mark.parametrize(("first", "last"), [(100, 250), (0, 63), (100, 101), (300, 335)])
def test_calls_with_the_times_of_later_ones_are_found_and_no_others(first, last):
    rows = overtaken(channels(late_ns=5000), first, last)
    expected = (rows["rank"] == 1) & rows["seq"].between(first, last)
    assert both(rows).tolist() == expected.tolist()


def test_the_order_alone_finds_the_last_ones_where_no_clock_is_known():
    rows = overtaken(channels(), 100, 250)
    found = rows[by_order(rows)]
    # The first of them has the very time of the call after the last.
    assert found["seq"].tolist() == list(range(188, 251))


def test_a_clock_that_is_not_good_enough_accuses_nobody():
    rows = overtaken(channels(), 100, 250)
    found = both(rows, bound_ns=64.0 * PERIOD_NS)
    assert rows[found]["seq"].tolist() == list(range(188, 251))


def test_no_channels_at_all():
    assert both(channels().iloc[:0].astype(object)).tolist() == []
