"""Clocks from collectives, what ranks bound directly and through their host; channels with the times of a later call."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from kprof.capture.manifest import Alignment
from kprof.nccl.clocks import common_clock
from kprof.nccl.overtaken import by_order, by_others

NUM_CALLS, PERIOD_NS, TRANSFER_NS, LATE_NS = 400, 500_000, 10_000, 300_000
HOST_NS, AHEAD_NS = 77 * 10**9, 7_000_000
LAUNCH_NS, LOOK_NS = 8_000, 3_000


def all_reduces(rank: int, **times_ns: np.ndarray) -> pd.DataFrame:
    """What channel 0 of a rank ran, by the times of each call."""
    known = {"rank": rank, "comm": "world", "func": "AllReduce", "channel": 0, "root": -1}
    return pd.DataFrame(known | {"seq": np.arange(NUM_CALLS)} | times_ns)


def channels(num_ranks: int = 2, seed: int = 1) -> pd.DataFrame:
    """All-reduces on clocks that are AHEAD_NS apart from rank to rank. The last rank is LATE_NS late for every one."""
    noise = np.random.default_rng(seed)
    calls = np.arange(NUM_CALLS)
    true_ns = 10**12 + calls * PERIOD_NS
    last_ns = true_ns + LATE_NS
    parts = []
    for rank in range(num_ranks):
        begin_ns = last_ns if rank == num_ranks - 1 else true_ns + noise.integers(0, 500, NUM_CALLS)
        stop_ns = last_ns + TRANSFER_NS + noise.integers(0, 500, NUM_CALLS)
        late_ns = LAUNCH_NS + noise.exponential(5000, NUM_CALLS).astype(np.int64)
        seen_ns = LOOK_NS + noise.exponential(5000, NUM_CALLS).astype(np.int64)
        parts.append(
            all_reduces(
                rank,
                start_ns=begin_ns + rank * AHEAD_NS,
                stop_ns=stop_ns + rank * AHEAD_NS,
                begun_ns=begin_ns - late_ns + HOST_NS - 10**12,
                ended_ns=stop_ns + seen_ns + HOST_NS - 10**12,
            )
        )
    return pd.concat(parts, ignore_index=True)


def aligned(rows: pd.DataFrame, machines: dict[int, int]) -> Alignment:
    alignment, note = common_clock(rows, (), frozenset(rows["rank"]), machines)
    assert alignment is not None, note
    assert [entry.rank for entry in alignment.ranks] == sorted(set(rows["rank"]))
    return alignment


def off_ns(alignment: Alignment, rank: int) -> float:
    at_ns = 10**12 + NUM_CALLS // 2 * PERIOD_NS + rank * AHEAD_NS
    return alignment.ranks[rank].correction_ns(at_ns) + rank * AHEAD_NS


def test_a_rank_that_is_always_late_is_no_clock_that_is_ahead_where_a_host_has_both():
    rows = channels()
    alone, together = aligned(rows, {}), aligned(rows, {0: 5, 1: 5})
    assert alone.widest_bound_ns > LATE_NS / 2
    assert together.widest_bound_ns < 2 * (LAUNCH_NS + LOOK_NS)
    for found in (alone, together):
        assert abs(off_ns(found, 1)) <= found.widest_bound_ns


def test_hosts_are_in_no_alignment():
    found = aligned(channels(4), {0: 5, 1: 5, 2: 6, 3: 6})
    assert found.reference_rank == 0
    assert {rank for pair in found.pairs for rank in (pair.a, pair.b)} == {0, 1, 2, 3}
    # Between the machines only collectives tell, between the ranks of one its clock does, too.
    assert found.bound_between_ns(0, 1) < found.bound_between_ns(0, 3)


@pytest.mark.parametrize("broken", ["set", "unknown"])
def test_a_host_clock_that_cannot_be_is_none(broken):
    rows = channels()
    if broken == "set":
        rows.loc[rows["seq"] > NUM_CALLS // 2, ["begun_ns", "ended_ns"]] += 10**9
    else:
        rows["begun_ns"] = 0
    assert aligned(rows, {0: 5, 1: 5}).ranks == aligned(rows, {}).ranks


def test_ranks_without_a_collective_are_on_one_clock_where_a_host_has_both():
    rows = channels()
    rows["comm"] = rows["rank"].map("comm {}".format)
    assert common_clock(rows, (), frozenset({0, 1}), {})[0] is None
    found = aligned(rows, {0: 5, 1: 5})
    assert abs(off_ns(found, 1)) <= found.widest_bound_ns < 2 * (LAUNCH_NS + LOOK_NS)


BETWEEN_NS = 25_000


def two_ranks(late_ns: int = 0) -> pd.DataFrame:
    """Two ranks, of which the second begins each call `late_ns` later; both end together."""
    calls = np.arange(NUM_CALLS)
    return pd.concat(
        [
            all_reduces(
                rank,
                start_ns=10**9 + calls * BETWEEN_NS + rank * late_ns,
                stop_ns=10**9 + calls * BETWEEN_NS + 20_000,
            )
            for rank in (0, 1)
        ],
        ignore_index=True,
    )


def overtaken(rows: pd.DataFrame, first: int, last: int) -> pd.DataFrame:
    """The second rank's calls from `first` to `last` have the times of those 64 later."""
    shifted = rows.copy()
    mine = (rows["rank"] == 1) & rows["seq"].between(first, last)
    shifted.loc[mine, ["start_ns", "stop_ns"]] += 64 * BETWEEN_NS
    return shifted


def both(rows: pd.DataFrame, bound_ns: float = 32.0) -> np.ndarray:
    ordered = by_order(rows)
    kept = rows[~ordered]
    found = ordered.copy()
    found[~ordered] = by_others(kept, np.zeros(len(kept), np.int64), bound_ns)
    return found


def test_sound_times_stay():
    assert not both(two_ranks(late_ns=5000)).any()


@pytest.mark.parametrize(("first", "last"), [(100, 250), (0, 63), (100, 101), (300, 335)])
def test_calls_with_the_times_of_later_ones_are_found_and_no_others(first, last):
    rows = overtaken(two_ranks(late_ns=5000), first, last)
    expected = (rows["rank"] == 1) & rows["seq"].between(first, last)
    assert both(rows).tolist() == expected.tolist()


def test_the_order_alone_finds_the_last_ones_where_no_clock_is_known():
    rows = overtaken(two_ranks(), 100, 250)
    found = rows[by_order(rows)]
    # The first of them has the very time of the call after the last.
    assert found["seq"].tolist() == list(range(188, 251))


def test_a_clock_that_is_not_good_enough_accuses_nobody():
    rows = overtaken(two_ranks(), 100, 250)
    found = both(rows, bound_ns=64.0 * BETWEEN_NS)
    assert rows[found]["seq"].tolist() == list(range(188, 251))


def test_no_channels_at_all():
    assert both(two_ranks().iloc[:0].astype(object)).tolist() == []
