"""Identities that hold on every trace, whatever is in it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kprof import analysis
from kprof.analysis import Summary
from kprof.trace import Trace
from synthetic import TraceBuilder

pytestmark = pytest.mark.slow

REGIONS = """
REGION(R_SEND,    "send",    send,    peer:8, slot:24)
REGION(R_WAIT,    "wait",    wait,    peer:8, slot:24)
REGION(R_COMPUTE, "compute", compute)
REGION(R_BARRIER, "barrier", sync)
FLOW(R_SEND, R_WAIT)
"""
NUM_RANKS = 3

span = st.fixed_dictionaries(
    {
        "rank": st.integers(0, NUM_RANKS - 1),
        "block": st.integers(0, 2),
        "warp": st.sampled_from([-1, 0, 1]),
        "region": st.sampled_from(["send", "wait", "compute", "barrier"]),
        "start_ns": st.integers(0, 2000),
        "duration_ns": st.integers(0, 500),
        "launch": st.integers(0, 1),
        "peer": st.integers(0, NUM_RANKS - 1),
        "slot": st.integers(0, 3),
    }
)


# Ends that often meet.
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
few = settings(max_examples=25)


def trace_of(spans: list[dict[str, Any]]) -> Trace:
    build = TraceBuilder(REGIONS, NUM_RANKS)
    # Of one call, whose path goes on from launch to launch.
    build.launch(1, "other")
    for fields in spans:
        has_peer = fields["region"] in ("send", "wait")
        build.span(**{k: v for k, v in fields.items() if has_peer or k not in ("peer", "slot")})
    return build.trace()


def measure(intervals: list[tuple[int, int]]) -> int:
    """The measure of a union, point by point."""
    return len({t for start, end in intervals for t in range(start, end)})


@few
@given(st.lists(span, min_size=1, max_size=30))
def test_parallel_efficiency_is_load_balance_times_communication_efficiency(
    spans: list[dict[str, Any]],
) -> None:
    # Launches of a rank follow each other, as on one stream.
    spans = [s | {"start_ns": s["start_ns"] + 5000 * s["launch"]} for s in spans]
    trace = trace_of(spans)
    summary = Summary.of(trace)
    for table in (
        analysis.efficiency(summary),
        analysis.rank_efficiency(summary),
        analysis.launch_efficiency(summary),
    ):
        for row in table.to_dict("records"):
            if row["max_work_ns"] > 0:
                product = row["load_balance"] * row["communication_efficiency"]
                assert row["parallel_efficiency"] == pytest.approx(product)
                assert 0 <= row["parallel_efficiency"] <= 1


@few
@given(st.lists(span, min_size=1, max_size=30))
def test_the_blame_matrix_sums_to_the_attributed_wait(spans: list[dict[str, Any]]) -> None:
    trace = trace_of(spans)
    summary = Summary.of(trace)
    attributed = sum(s["duration_ns"] for s in spans if s["region"] == "wait")
    assert analysis.blame_matrix(summary).to_numpy().sum() == attributed
    by_peer = analysis.waits(summary, "peer").set_index("peer")["wait_ns"]
    assert by_peer.drop(-1, errors="ignore").sum() == attributed
    by_region = sum(
        analysis.blame_matrix(summary, region).to_numpy().sum() for region in ("wait", "barrier")
    )
    assert by_region == attributed


@few
@given(st.lists(span, min_size=1, max_size=20))
def test_work_and_wait_are_measures_of_unions(spans: list[dict[str, Any]]) -> None:
    expected_work, expected_wait = 0, 0
    tracks = {(s["rank"], s["launch"], s["block"], s["warp"]) for s in spans}
    for track in tracks:
        on_track = [s for s in spans if (s["rank"], s["launch"], s["block"], s["warp"]) == track]
        ends = [(s["start_ns"], s["start_ns"] + s["duration_ns"], s["region"]) for s in on_track]
        waiting = measure([(a, b) for a, b, region in ends if region in ("wait", "barrier")])
        expected_work += measure([(a, b) for a, b, _ in ends]) - waiting
        expected_wait += waiting
    table = analysis.imbalance(Summary.of(trace_of(spans)), "rank")
    assert (table["work_ns"].sum(), table["wait_ns"].sum()) == (expected_work, expected_wait)


@few
@given(st.lists(flow_end, min_size=1, max_size=40))
def test_sums_over_flows_are_sums_over_the_view(spans: list[dict[str, Any]]) -> None:
    trace = trace_of(spans)
    expected = trace.frame(
        """SELECT src, dst, count(*) AS flows, sum(wait_end_ns - wait_start_ns) AS wait_ns,
            sum(greatest(0, least(send_start_ns, wait_end_ns) - wait_start_ns)) AS late_sender_ns,
            wait_ns - late_sender_ns AS exposed_transfer_ns,
            count(*) FILTER (wait_end_ns < send_start_ns) AS violations
        FROM flows GROUP BY src, dst ORDER BY src, dst"""
    )
    table = analysis.late_sender(Summary.of(trace)).sort_values(["src", "dst"])
    assert table[list(expected.columns)].to_numpy().tolist() == expected.to_numpy().tolist()


@settings(max_examples=20)
@given(st.lists(span, min_size=1, max_size=25))
def test_the_path_is_as_long_as_the_window_whatever_the_trace(spans: list[dict[str, Any]]) -> None:
    """Overlapping spans, impossible orders and all: the segments tile the window of the innermost spans."""
    path = analysis.critical_path(Summary.of(trace_of(spans)))
    if path.empty:
        return
    assert path["duration_ns"].sum() == path["end_ns"].max() - path["start_ns"].min()
    assert path["start_ns"].tolist()[1:] == path["end_ns"].tolist()[:-1]
    assert (path["duration_ns"] > 0).all()
