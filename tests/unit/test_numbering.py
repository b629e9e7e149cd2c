"""Ordinals of replays: the same launch has the same one on all ranks, whatever some of them lost."""

from __future__ import annotations

from kprof.capture.manifest import Launch, RankInfo
from kprof.recording.finishing.numbering import number_replays


def replays(
    first: int, captured: int, ordinal: int, numbers: range, stretch: int = 0
) -> list[Launch]:
    """Replays of one captured launch, whose launch numbers begin at `first`."""
    return [
        Launch(first + i, "k", ordinal, captured=captured, replay=replay, stretch=stretch)
        for i, replay in enumerate(numbers)
    ]


def ordinals(infos: tuple[RankInfo, ...]) -> list[list[int]]:
    return [[launch.ordinal for launch in info.launches] for info in infos]


def test_captures_without_graphs_stay_as_they_are() -> None:
    infos = RankInfo(0, launches=(Launch(0, "k", 0), Launch(1, "k", 7))), RankInfo(1)
    assert number_replays(infos) == infos


def test_a_rank_that_lost_its_last_replays_has_the_same_numbers_for_the_others() -> None:
    eager = Launch(0, "k", 0), Launch(9, "other", 0)
    whole = (*eager, *replays(1, captured=1, ordinal=1, numbers=range(4)))
    short = (*eager, *replays(1, captured=1, ordinal=1, numbers=range(2)))
    infos = number_replays([RankInfo(0, launches=short), RankInfo(1, launches=whole)])
    assert ordinals(infos) == [[0, 0, 1, 2], [0, 0, 1, 2, 3, 4]]


def test_a_count_that_started_over_is_not_taken_for_the_first_one() -> None:
    """Rank 1 lost replays before a flush: nobody knows which replays came after it."""
    whole = replays(1, captured=1, ordinal=0, numbers=range(3))
    broken = [
        *replays(1, captured=1, ordinal=0, numbers=range(2)),
        *replays(3, captured=1, ordinal=0, numbers=range(1), stretch=1),
    ]
    infos = number_replays(
        [RankInfo(0, launches=tuple(whole)), RankInfo(1, launches=tuple(broken))]
    )
    assert ordinals(infos) == [[0, 1, 2], [0, 1, 3]]


def test_two_captures_of_a_kernel_take_turns() -> None:
    """Two graphs on two streams may come in another order on another rank."""
    a = replays(10, captured=0, ordinal=0, numbers=range(2))
    b = replays(20, captured=1, ordinal=1, numbers=range(2))
    infos = number_replays(
        [
            RankInfo(0, launches=(a[0], b[0], a[1], b[1])),
            RankInfo(1, launches=(b[0], a[0], a[1], b[1])),
        ]
    )
    assert ordinals(infos) == [[0, 1, 2, 3], [1, 0, 2, 3]]
