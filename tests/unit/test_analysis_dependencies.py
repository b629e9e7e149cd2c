"""Critical path, replays and delay costs, on paper and against simulated runs with the cause taken out."""

from __future__ import annotations

from typing import Any

import pytest

from kprof import analysis
from kprof.analysis import Summary
from kprof.errors import SelectionError
from kprof.trace import Trace
from planted import Plant, simulate
from synthetic import TraceBuilder

pytestmark = pytest.mark.slow

REGIONS = """
REGION(R_SEND,    "send",    send,    peer:8, slot:24)
REGION(R_WAIT,    "wait",    wait,    peer:8, slot:24)
REGION(R_WORK,    "work",    compute)
REGION(R_BARRIER, "barrier", sync)
FLOW(R_SEND, R_WAIT)
"""


def late_pair() -> Trace:
    """rank 0: [work 0..100][send 100..120]          rank 1: [work 0..30][wait 30..150][work 150..200]"""
    build = TraceBuilder(REGIONS, 2)
    build.span(0, "work", 0, 100)
    build.span(0, "send", 100, 20, peer=1, slot=0)
    build.span(1, "work", 0, 30)
    build.span(1, "wait", 30, 120, peer=0, slot=0)
    build.span(1, "work", 150, 50)
    return build.trace()


def segments(path: Any) -> list[tuple[object, ...]]:
    columns = ["start_ns", "end_ns", "rank", "region", "kind"]
    return [tuple(row) for row in path[columns].itertuples(index=False)]


def test_the_critical_path_jumps_to_the_late_sender() -> None:
    assert segments(analysis.critical_path(Summary.of(late_pair()))) == [
        (0, 100, 0, "work", "span"),
        (100, 120, 0, "send", "span"),
        (120, 150, 1, "wait", "transfer"),
        (150, 200, 1, "work", "span"),
    ]


def test_the_critical_path_goes_on_in_the_block_that_had_the_place_before() -> None:
    build = TraceBuilder(REGIONS, 1)
    for block, start_ns, duration_ns in ((0, 0, 100), (1, 0, 90), (2, 120, 60), (3, 115, 50)):
        build.span(0, "work", start_ns, duration_ns, block=block, processor=block % 2)  # fmt: skip
    path = analysis.critical_path(Summary.of(build.trace()))
    assert segments(path) == [
        (0, 100, 0, "work", "span"),
        (100, 120, 0, "between blocks", "gap"),
        (120, 180, 0, "work", "span"),
    ]
    assert path["block"].tolist() == [0, 2, 2]


def test_a_wait_that_finds_its_data_is_not_jumped_from() -> None:
    build = TraceBuilder(REGIONS, 2)
    build.span(0, "send", 0, 20, peer=1, slot=0)
    build.span(1, "work", 0, 80)
    build.span(1, "wait", 80, 5, peer=0, slot=0)
    build.span(1, "work", 95, 5)
    assert segments(analysis.critical_path(Summary.of(build.trace()))) == [
        (0, 80, 1, "work", "span"),
        (80, 85, 1, "wait", "span"),
        (85, 95, 1, "between regions", "gap"),
        (95, 100, 1, "work", "span"),
    ]


def test_the_path_goes_through_launches_and_barriers() -> None:
    build = TraceBuilder(REGIONS, 2)
    build.launch(0, "a")
    build.launch(1, "b")
    for rank, end in ((0, 40), (1, 90)):
        build.span(rank, "work", 0, end, launch=0)
        build.span(rank, "work", end + 10, 20, launch=1)
        build.span(rank, "barrier", end + 30, 125 - end - 30, launch=1)
    build.span(0, "work", 125, 60, launch=1)
    assert segments(analysis.critical_path(Summary.of(build.trace()))) == [
        (0, 90, 1, "work", "span"),
        (90, 100, 1, "between launches", "launch"),
        (100, 120, 1, "work", "span"),
        (120, 125, 0, "barrier", "release"),
        (125, 185, 0, "work", "span"),
    ]


def met(bound_ns: float) -> Trace:
    """Rank 1 is last at a barrier, and enters it 3 ns after rank 0 left it, as its clock says."""
    build = TraceBuilder(REGIONS, 2, bound_ns=bound_ns)
    build.span(0, "work", 0, 20)
    build.span(0, "barrier", 20, 80)
    build.span(0, "work", 100, 60)
    build.span(1, "work", 0, 103)
    build.span(1, "barrier", 103, 5)
    return build.trace()


def test_a_barrier_is_one_within_the_error_of_the_clocks() -> None:
    assert segments(analysis.critical_path(Summary.of(met(bound_ns=10.0)))) == [
        (0, 100, 1, "work", "span"),
        (100, 160, 0, "work", "span"),
    ]
    late = analysis.what_if(Summary.of(met(bound_ns=10.0))).set_index(["scenario", "rank"])
    # Rank 1 works as long as rank 0 (80 ns) instead of 103.
    assert late.loc[("rank at the median", 1), "gain_ns"] > 20
    assert late["replay_error"].abs().max() < 0.05
    # What clocks rule out is none.
    path = segments(analysis.critical_path(Summary.of(met(bound_ns=1.0))))
    assert path[-2][3:] == ("barrier", "span")


def test_time_on_the_path_per_region() -> None:
    table = analysis.critical_regions(Summary.of(late_pair()))
    assert table["duration_ns"].tolist() == [100, 50, 30, 20]
    assert table["share"].sum() == pytest.approx(1.0)


PLANTED = [
    Plant(send_late_ns={3: 9000}),
    Plant(start_late_ns={3: 12_000}),
    Plant(tokens_of={3: 3.0}),
    Plant(speed_of={3: 2.5}),
    Plant(has_barrier=True, barrier_late_ns={3: 20_000}),
]


@pytest.mark.parametrize("plant", PLANTED, ids=["send", "start", "tokens", "speed", "barrier"])
def test_the_prediction_is_what_happens_when_the_cause_is_taken_out(plant: Plant) -> None:
    table = analysis.what_if(Summary.of(simulate(plant)))
    best = table.iloc[0]
    assert (best["scenario"], best["rank"]) == ("rank at the median", 3)
    healthy = Plant(has_barrier=plant.has_barrier, seed=plant.seed)
    assert best["predicted_ns"] == pytest.approx(length_ns(healthy), rel=0.1)


def length_ns(plant: Plant) -> float:
    call = analysis.typical_call(Summary.of(simulate(plant)))
    assert call is not None
    return call.end_ns - call.start_ns


def test_arrival_order_on_paper() -> None:
    """rank 1 waits for slot 0, there at 100, then slot 1, there since 10. 40 ns of work with each."""
    build = TraceBuilder(REGIONS, 2)
    build.span(0, "send", 0, 10, block=0, peer=1, slot=1)
    build.span(0, "work", 0, 90, block=1)
    build.span(0, "send", 90, 10, block=1, peer=1, slot=0)
    build.span(1, "wait", 0, 100, peer=0, slot=0)
    build.span(1, "work", 100, 40)
    build.span(1, "wait", 140, 2, peer=0, slot=1)
    build.span(1, "work", 142, 40)
    row = (
        analysis.what_if(Summary.of(build.trace()))
        .set_index("scenario")
        .loc["waits in arrival order"]
    )
    assert row["measured_ns"] == 182
    # 10: slot 1 is there; its work ends at 50; slot 0 comes at 100 and its work ends at 140.
    assert row["predicted_ns"] == 140


def test_what_if_is_exact_whenever_the_run_was() -> None:
    """Clocks of devices count from 1970: floats of so many ns are 256 ns apart."""
    tables = []
    for begin in (0, 1_795_000_000_000_000_003):
        build = TraceBuilder(REGIONS, 2)
        build.span(0, "work", begin, 90)
        build.span(0, "send", begin + 90, 10, peer=1, slot=0)
        build.span(1, "wait", begin, 130, peer=0, slot=0)
        build.span(1, "work", begin + 130, 47)
        build.span(1, "wait", begin + 177, 2, peer=0, slot=0)
        tables.append(analysis.what_if(Summary.of(build.trace())))
    assert tables[1].equals(tables[0])
    assert tables[1].set_index("scenario").loc["no transfer time", "predicted_ns"] == 149
    assert tables[1]["replay_error"].eq(0).all()


def test_delay_costs_on_paper() -> None:
    """rank 2 waits for rank 1, which itself waits for rank 0, which works: direct for 1's own work, passed on to 0."""
    build = TraceBuilder(REGIONS, 3)
    build.span(0, "work", 0, 60)
    build.span(0, "send", 60, 5, peer=1, slot=0)
    build.span(1, "wait", 0, 70, peer=0, slot=0)
    build.span(1, "work", 70, 20)
    build.span(1, "send", 100, 5, peer=2, slot=0)
    build.span(2, "wait", 10, 100, peer=1, slot=0)
    table = analysis.delay_costs(Summary.of(build.trace())).set_index(["rank", "region"])
    assert table.loc[(0, "work"), "direct_ns"] == 60  # rank 1's wait, 0..60
    assert table.loc[(0, "work"), "propagated_ns"] == 50  # rank 2's wait through rank 1's, 10..60
    assert table.loc[(1, "wait"), "direct_ns"] == 10  # 60..70: rank 0's send was on its way
    assert table.loc[(1, "work"), "direct_ns"] == 20
    assert table.loc[(1, "between regions"), "direct_ns"] == 10
    late = analysis.late_sender(Summary.of(build.trace()))["late_sender_ns"].sum()
    assert table["cost_ns"].sum() == late == 150


def test_a_call_too_large_is_refused_with_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kprof.analysis.replay.load.MAX_SPANS_WALKED", 100)
    with pytest.raises(SelectionError, match="select fewer"):
        analysis.critical_path(Summary.of(simulate(Plant())))


def test_the_typical_call_is_of_median_length() -> None:
    build = TraceBuilder(REGIONS, 1)
    for launch, length in enumerate((500, 10, 30, 20)):
        build.launch(launch, "k")
        build.span(0, "work", launch * 1000, length, launch=launch)
    call = analysis.typical_call(Summary.of(build.trace()))
    assert call is not None
    assert (call.ordinal, call.launches) == (3, (3,))
    assert analysis.calls(Summary.of(build.trace()))["length_ns"].tolist() == [500, 10, 30, 20]


def test_a_wait_released_within_its_send_follows_it() -> None:
    """Rank 1 is late by 600 ns. Its send ends (the clock is read) after rank 0 has seen the flag."""
    build = TraceBuilder(REGIONS, 3)
    for rank, late in ((0, 0), (1, 600), (2, 0)):
        at = 100 + late
        build.span(rank, "work", 0, at)
        build.span(rank, "send", at, 50, peer=(rank + 2) % 3, slot=0)
    for rank, end in ((0, 720), (1, 760), (2, 155)):
        start = 150 + (600 if rank == 1 else 0)
        build.span(rank, "wait", start, end - start, peer=(rank + 1) % 3, slot=0)
    table = analysis.what_if(Summary.of(build.trace())).set_index(["scenario", "rank"])
    fixed = table.loc[("rank at the median", 1)]
    assert fixed["measured_ns"] == 760
    # Rank 1 would have sent at 100, seen at 120. All sends are over at 150, and its own look at the
    # flag takes 10 ns.
    assert fixed["predicted_ns"] == 160
