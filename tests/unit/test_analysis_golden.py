"""Tables whose every number is worked out on paper, and sums over flows against the flows themselves."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kprof import analysis
from kprof.analysis import Summary
from kprof.analysis.timeline import Focus, activity
from kprof.trace import Trace
from synthetic import TraceBuilder

REGIONS = """
REGION(R_SEND, "send", send,    peer:8, slot:24)
REGION(R_WAIT, "wait", wait,    peer:8, slot:24)
REGION(R_WORK, "work", compute)
FLOW(R_SEND, R_WAIT)
"""


def two_launches() -> Trace:
    """Rank 0 works 60 then waits 40; rank 1 works 100. Then, from 1000 on, both work 50 of 100 and 80 of 100."""
    build = TraceBuilder(REGIONS, 2)
    build.launch(1, "kernel")
    build.span(0, "work", 0, 60)
    build.span(0, "wait", 60, 40, peer=1, slot=0)
    build.span(1, "work", 0, 100)
    for rank, worked in ((0, 50), (1, 80)):
        build.span(rank, "work", 1000, worked, launch=1)
        build.span(rank, "wait", 1000 + worked, 100 - worked, launch=1, peer=rank, slot=1)
    return build.trace()


def test_launch_efficiency_on_paper() -> None:
    rows = analysis.launch_efficiency(Summary.of(two_launches())).to_dict("records")
    # U = 60, 100 over T = 100 with N = 2: PE 0.8 = LB 80/100 x CommE 100/100.
    assert [rows[0][name] for name in ("work_ns", "wait_ns", "window_ns", "locations")] == [
        160,
        40,
        100,
        2,
    ]
    assert rows[0]["parallel_efficiency"] == pytest.approx(0.8)
    assert rows[0]["load_balance"] == pytest.approx(0.8)
    assert rows[0]["communication_efficiency"] == pytest.approx(1.0)
    # U = 50, 80: PE 130/200 = LB 65/80 x CommE 80/100.
    assert rows[1]["parallel_efficiency"] == pytest.approx(0.65)
    assert rows[1]["load_balance"] == pytest.approx(65 / 80)
    assert rows[1]["communication_efficiency"] == pytest.approx(0.8)


def test_rank_efficiency_on_paper() -> None:
    rows = analysis.rank_efficiency(Summary.of(two_launches())).set_index("rank")
    assert rows["parallel_efficiency"].tolist() == [110 / 200, 180 / 200]
    assert rows["window_ns"].tolist() == [200, 200]


def test_block_time_and_launch_starts_on_paper() -> None:
    trace = two_launches()
    assert analysis.block_time_ns(Summary.of(trace)) == 400
    assert analysis.block_time_ns(Summary.of(trace), rank=1) == 200
    starts = analysis.launch_starts(Summary.of(trace))
    assert starts[["ordinal", "rank", "first_ns", "last_ns"]].to_numpy().tolist() == [
        [0, 0, 0, 100],
        [0, 1, 0, 100],
        [1, 0, 1000, 1100],
        [1, 1, 1000, 1100],
    ]


def test_calls_on_paper() -> None:
    table = analysis.calls(Summary.of(two_launches()))
    assert table[["ordinal", "first_ns", "length_ns", "launches"]].to_numpy().tolist() == [
        [0, 0, 100, 1],
        [1, 1000, 100, 1],
    ]


def test_histogram_on_paper() -> None:
    """Sixteen buckets an octave: 64 and 128 begin one, 100 is in the tenth after 64 (64 * 2**(10/16) = 98.7)."""
    build = TraceBuilder(REGIONS, 1)
    for at, duration in enumerate((64, 100, 100, 128)):
        build.span(0, "work", 1000 * at, duration)
    table = analysis.histogram(Summary.of(build.trace()))
    assert table["from_ns"].tolist() == pytest.approx([64, 64 * 2 ** (10 / 16), 128])
    assert table["events"].tolist() == [1, 2, 1]


def test_activity_on_paper() -> None:
    """Four bins of 25 ns: rank 0 works in the first two and 10 ns of the third."""
    table = activity(Summary.of(two_launches()), Focus(0, 100, "the call"), num_bins=4)
    shares = table.set_index(["rank", "category", "bin"])["share"]
    assert shares[0, "compute"].tolist() == pytest.approx([1, 1, 0.4, 0])
    assert shares[0, "wait"].tolist() == pytest.approx([0, 0, 0.6, 1])
    assert shares[1, "compute"].tolist() == pytest.approx([1, 1, 1, 1])
    assert table["from_ns"].drop_duplicates().tolist() == [0, 25, 50, 75]


flow_end = st.fixed_dictionaries(
    {
        "rank": st.integers(0, 2),
        "launch": st.integers(0, 1),
        "block": st.integers(0, 1),
        "region": st.sampled_from(["send", "wait"]),
        "start_ns": st.integers(0, 60),
        "duration_ns": st.integers(0, 50),
        "peer": st.integers(0, 2),
        "slot": st.integers(0, 2),
    }
)


@pytest.mark.slow
@settings(max_examples=25)
@given(st.lists(flow_end, min_size=1, max_size=40))
def test_sums_over_flows_are_sums_over_the_view(spans: list[dict[str, Any]]) -> None:
    build = TraceBuilder(REGIONS, 3)
    build.launch(1, "kernel")
    for fields in spans:
        build.span(**fields)
    trace = build.trace()
    expected = trace.frame(
        """SELECT src, dst, count(*) AS flows, sum(wait_end_ns - wait_start_ns) AS wait_ns,
            sum(greatest(0, least(send_start_ns, wait_end_ns) - wait_start_ns)) AS late_sender_ns,
            count(*) FILTER (wait_end_ns < send_start_ns) AS violations
        FROM flows GROUP BY src, dst ORDER BY src, dst"""
    )
    table = analysis.late_sender(Summary.of(trace)).sort_values(["src", "dst"])[
        list(expected.columns)
    ]
    assert table.to_numpy().tolist() == expected.to_numpy().tolist()
