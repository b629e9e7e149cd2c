"""What `kprof watch` says of looks at the progress of ranks."""

from __future__ import annotations

import pytest

from kprof.recording.launches.pace import Look, describe_pace, paces
from kprof.recording.launches.progress import NUM_PEERS, RankProgress


def progress(rank: int, *counts: int, waited_ns: dict[int, int] | None = None) -> RankProgress:
    """Its launches, calls, events, drops and steps, as far as they are not 0."""
    all_counts = (*counts, 0, 0, 0, 0, 0)[:5]
    peers = tuple((waited_ns or {}).get(peer, 0) for peer in range(NUM_PEERS))
    return RankProgress(rank, True, *all_counts, num_of_length=(), waited_ns=peers)


def test_the_pace_names_the_slowest_rank_and_whom_it_waits_for() -> None:
    before = Look(3.0, [progress(0, waited_ns={1: 1000}), progress(1)])
    others = {"waited_ns": {1: 1090}}, {"waited_ns": {0: 30, 3: 10}}
    after = Look(
        5.0, [progress(0, 20, 20, 500, **others[0]), progress(1, 17, 17, 500, 1, **others[1])]
    )
    assert describe_pace(paces([before, after])) == (
        "500 events/s  1 dropped  18 launches/s  slowest rank 1, 3 calls behind, waits most for "
        "rank 0 (75%)"
    )
    even = Look(5.0, [after.ranks[0], progress(1, 17, 20, 500, 1, 3, **others[1])])
    assert describe_pace(paces([before, even])) == (
        "500 events/s  1 dropped  18 launches/s  2 steps/s  all ranks made as many calls, waits most "
        "for rank 1 (69%)"
    )


def test_events_are_counted_over_all_looks_and_launches_since_the_last() -> None:
    """A drain writes events in bursts."""
    looks = [
        Look(0.0, [progress(0)]),
        Look(1.0, [progress(0, 100, 100, 60_000)]),
        Look(2.0, [progress(0, 250, 250, 60_000)]),
    ]
    (pace,) = paces(looks)
    assert (pace.events_per_s, pace.launches_per_s) == (30_000, 150)


@pytest.mark.parametrize("num_looks", [2, 3])
def test_a_rank_that_was_not_there_before_had_done_nothing(num_looks: int) -> None:
    looks = [Look(0.0, []), Look(1.0, []), Look(2.0, [progress(7, 4, 4, 12)])][-num_looks:]
    (pace,) = paces(looks)
    assert (pace.rank, pace.launches_per_s, pace.num_behind) == (7, 4, 0)
    assert pace.events_per_s == 12 / (num_looks - 1)
    assert describe_pace([pace]).endswith("all ranks made as many calls")
