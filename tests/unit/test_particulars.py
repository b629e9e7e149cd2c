"""What sentences say beyond the fields of a finding, and limits that have become the headline."""

from __future__ import annotations

from pathlib import Path

import pytest

from kprof import analysis
from kprof import report as reports
from kprof.analysis import Summary
from kprof.report import in_trace
from kprof.report.page import to_html
from kprof.trace import Trace

TRACES = Path(__file__).parents[2] / "traces"


def report_of(name: str) -> reports.Report:
    return reports.build(Trace.open(TRACES / f"{name}.kprof"))


def test_ranks_that_start_late_in_turn_are_named_with_their_calls() -> None:
    trace = Trace.open(TRACES / "all_reduce-oneshot-2xH200-torch_profiler.kprof")
    first = analysis.find(Summary.of(trace)).findings[0]
    assert first.sentence.startswith("Rank 1 starts late in 7 of 20 calls, rank 0 in 5: costs ")
    assert any("Ranks 0, 1 wait for each other in wait" in detail for detail in first.details)


@pytest.mark.parametrize(
    ("name", "design"),
    [
        ("all_reduce-oneshot_lock-4xH200", "design/lock/lock/acquire"),
        ("all_reduce-oneshot_serial-4xH200", "design/few_blocks"),
    ],
)
def test_a_limit_in_the_headline_has_a_picture_and_a_place_in_the_trace(
    name: str, design: str
) -> None:
    report = report_of(name)
    shown = report.found.design
    assert shown is not None
    assert report.verdict == shown.sentence
    # There are no findings before it.
    assert in_trace.find(report.found.shown, "1") is shown
    assert in_trace.find(report.found.shown, design) is shown
    first, last = in_trace.window_ns(shown)
    assert report.window_ns[0] <= first + (last - first) / 2 <= report.window_ns[1]
    assert len(shown.tracks) == 2
    page = to_html(report)
    screen = page[page.index('id="verdict"') : page.index("<details")]
    assert f'id="finding-{design}"' in screen
    assert '<div class="picture"><svg' in screen
    assert f"--finding {design}" in page
    # The sentence below does not contradict it.
    assert "to blame" not in screen
    assert "Nothing stands out" not in screen


def test_items_have_the_names_of_their_regions() -> None:
    trace = Trace.open(TRACES / "all_to_all-token_flags-4xH200-skew3-264blocks.kprof")
    (uneven,) = [
        f for f in analysis.find(Summary.of(trace)).findings if f.kind.value == "uneven_work"
    ]
    assert uneven.cause.region is None
    assert " as many items for dispatch/send and combine/reduce: costs " in uneven.sentence
