"""What sentences say beyond the fields of a finding, and limits that have become the headline."""

from __future__ import annotations

import itertools

import pytest

from kprof import analysis
from kprof import report as reports
from kprof.analysis import Summary
from kprof.analysis.findings import Finding, When
from kprof.analysis.findings.kinds import named
from kprof.analysis.findings.places import place_of
from kprof.report import in_trace
from kprof.report.page import to_html
from recorded import analysed
from synthetic import TraceBuilder


@pytest.mark.slow
def test_ranks_that_start_late_in_turn_are_named_with_their_calls() -> None:
    first = analysed("all_reduce-oneshot-2xH200-torch_profiler").found.findings[0]
    assert first.sentence.startswith("Rank 1 starts late in 7 of 20 calls, rank 0 in 5; fixing it ")
    assert any("Ranks 0, 1 wait for each other in wait" in detail for detail in first.details)


@pytest.mark.slow
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
    report = reports.build_from(analysed(name).summary)
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


@pytest.mark.slow
def test_items_have_the_names_of_their_regions() -> None:
    found = analysed("all_to_all-token_flags-4xH200-skew3-264blocks").found.findings
    (uneven,) = [f for f in found if f.kind.name == "uneven_work"]
    assert uneven.region is None
    assert (
        " as many items in dispatch/send and combine/reduce as others; balancing it "
        in uneven.sentence
    )


@pytest.mark.parametrize(
    ("slow_blocks", "expected"),
    [
        ((3,), "4 of 4 slow events are in block 3 of rank 1"),
        ((0, 1, 2, 3), "The 16 slow events are spread over 4 blocks of rank 1"),
    ],
)
def test_slow_events_have_a_place(slow_blocks: tuple[int, ...], expected: str) -> None:
    build = TraceBuilder('REGION(R_ADD, "add", compute)', 2)
    for rank in range(2):
        for block in range(4):
            for i in range(20):
                is_slow = rank == 1 and block in slow_blocks and i % 5 == 0
                build.span(rank, "add", 10_000 * i, 5000 if is_slow else 1000, block=block)
    cause = Finding(
        kind=named("slow_events"),
        region="add",
        calls=(0,),
        when=When.ALWAYS,
        gain_ns=1000.0,
        interval_ns=(1000.0, 1000.0),
        share=0.1,
        factor=5.0,
        gains_ns=(1000.0,),
        costly_calls=(0,),
        alone_ns=1000.0,
    )
    summary = Summary.of(build.trace())
    looked_up = cause.kind.looked_up(summary, cause)
    assert looked_up.details[-1] == expected
    # The picture has a second block to compare with.
    _, tracks = place_of(summary, cause, (0,))
    assert len(tracks) == 2


def test_a_finding_about_an_unknown_region_has_a_place() -> None:
    build = TraceBuilder('REGION(R_ADD, "add", compute)', 2)
    for launch in range(3):
        build.launch(launch, "kernel")
        for rank, block in itertools.product(range(2), range(4)):
            is_slow = (rank, block) == (1, 2)
            build.span(
                rank, "add", 100_000 * launch, 9000 if is_slow else 1000, block=block, launch=launch
            )
            build._rows[-1]["region"] = 77
    (finding,) = analysis.find(Summary.of(build.trace())).findings
    assert finding.region == "unknown region"
    assert finding.where_ns == (0, 9000)
    assert finding.tracks[0] == (1, 2)
    assert len(finding.tracks) == 2
