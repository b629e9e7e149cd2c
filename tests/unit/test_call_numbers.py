"""Calls of kernels that are launched several times a call."""

from __future__ import annotations

from collections.abc import Collection
from types import SimpleNamespace

import numpy as np
import pytest
from msgspec.structs import replace

from kprof import analysis
from kprof.analysis.calls import _by_order, _calls_of, call_numbers
from kprof.analysis.findings import When, explain_trace
from kprof.analysis.warmup import steady_part
from kprof.report.model import build
from kprof.trace import Trace
from synthetic import TraceBuilder

LENGTHS = {"gemm": 1000, "reduce": 500, "init": 200}


def run_of(
    kernels: list[str], slow: int = -1, num_ranks: int = 2, *, gap_before: int = -1
) -> Trace:
    """Launches one after the other; launch `slow` takes eight times as long, and nothing is recorded
    for 50 ms before launch `gap_before`."""
    build = TraceBuilder('REGION(R, "r", compute)', num_ranks)
    start = 1000
    for launch, kernel in enumerate(kernels):
        build.launch(launch, kernel)
        start += 50_000_000 * (launch == gap_before)
        for rank in range(num_ranks):
            factor = 8 if launch == slow else 1
            build.span(rank, "r", start, factor * LENGTHS[kernel], launch=launch)
        start += (8 if launch == slow else 1) * LENGTHS[kernel] + 10
    return build.trace()


def test_a_period_of_launches_is_a_call() -> None:
    trace = run_of(["gemm", "gemm", "reduce"] * 5)
    table = analysis.calls(analysis.Summary.of(trace))
    assert table["ordinal"].tolist() == [0, 1, 2, 3, 4]
    assert table["length_ns"].tolist() == [2520] * 5
    assert table["launches"].tolist() == [3] * 5


def test_what_is_launched_once_at_the_beginning_is_of_the_first_call() -> None:
    numbers = call_numbers(analysis.Summary.of(run_of(["init", *["gemm", "gemm", "reduce"] * 3])))
    assert numbers is not None
    of_rank = numbers[numbers["rank"] == 0].sort_values("launch")
    assert of_rank["call"].tolist() == [0, 0, 0, 0, 1, 1, 1, 2, 2, 2]


def test_ranks_that_left_out_different_calls_have_the_others_in_common() -> None:
    """Rank 0 left out call 2, rank 1 call 3; ordinals count both."""
    trace = run_of(["gemm", "gemm", "reduce"] * 5)
    infos = []
    for info, left_out in zip(trace.manifest.ranks, (2, 3), strict=True):
        launches = [each for each in info.launches if each.launch // 3 != left_out]
        counts = replace(info.counts, left_out_calls=1, left_out_launches=3)
        infos.append(replace(info, launches=tuple(launches), counts=counts))
    manifest = replace(trace.manifest, ranks=tuple(infos))
    numbers = _by_order(SimpleNamespace(manifest=manifest))
    assert numbers is not None
    assert (numbers["call"] == numbers["launch"] // 3).all()
    assert numbers.groupby("rank")["call"].unique().map(list).to_dict() == {
        0: [0, 1, 3, 4],
        1: [0, 1, 2, 4],
    }


@pytest.mark.slow
def test_time_in_which_calls_were_left_out_is_not_between_launches() -> None:
    kernels = ["gemm", "gemm", "reduce"] * 10
    whole, with_gap = (build(run_of(kernels, gap_before=at)) for at in (-1, 15))
    assert with_gap.tables["kernels"].equals(whole.tables["kernels"])
    assert with_gap.verdict == whole.verdict
    assert with_gap.run_time_ns == whole.run_time_ns


@pytest.mark.parametrize(
    "kernels",
    [["gemm"] * 6, ["gemm", "reduce"] * 4, ["gemm", "gemm", "reduce", "gemm", "reduce", "reduce"]],
)
def test_elsewhere_a_call_is_what_has_one_ordinal(kernels: list[str]) -> None:
    assert call_numbers(analysis.Summary.of(run_of(kernels))) is None


def test_kernels_that_run_one_after_another_are_not_one_call() -> None:
    """As in a benchmark of several kernels: the n-th launches of two kernels are far apart."""
    trace = run_of(["gemm"] * 20 + ["reduce"] * 20 + ["gemm"] * 5)
    table = analysis.calls(analysis.Summary.of(trace))
    assert table["ordinal"].tolist() == list(range(45))
    assert table["length_ns"].tolist() == [1000] * 20 + [500] * 20 + [1000] * 5


def test_a_slow_launch_is_found_in_its_call() -> None:
    explanation = explain_trace(run_of(["gemm", "gemm", "reduce"] * 12, slow=3 * 7 + 1))
    assert explanation.num_calls == 12
    (finding,) = explanation.findings
    assert (finding.ranks, finding.calls, finding.when) == ((), (7,), When.SOMETIMES)
    assert finding.gain_ns == pytest.approx(7000, rel=0.05)


def test_every_kernel_has_its_own_warm_up() -> None:
    """The first launch of a kernel in the middle of a run loads or compiles it."""
    trace = run_of(["gemm"] * 8 + ["reduce"] * 10 + ["gemm"] * 3, slow=8)
    explanation = explain_trace(trace)
    assert (explanation.warm_up, explanation.findings) == ((8,), ())
    assert explanation.ordinals == (*range(8), *range(9, 21))
    found = analysis.find(analysis.Summary.of(trace))
    (warm_up,) = [doubt for doubt in found.doubts if doubt.kind is analysis.DoubtKind.WARM_UP]
    assert warm_up.sentence.startswith(
        "Call 8 took much longer than later calls of the same kernel"
    )
    assert steady_part(analysis.Summary.of(trace))[1] == (8,)


def test_a_slow_launch_that_is_no_kernels_first_is_no_warm_up() -> None:
    kernels = ["gemm"] * 8 + ["reduce"] * 10
    explanation = explain_trace(run_of(kernels, slow=9))
    assert explanation.warm_up == ()
    (finding,) = explanation.findings
    assert finding.calls == (9,)
    # Selected launches begin with one that is slow, but not with the kernel's first.
    later = run_of(kernels, slow=9).select(launches=range(9, 18))
    assert explain_trace(later).warm_up == ()


@pytest.mark.parametrize("missing", [(), (0, 2, 4, 9), range(1, 9)])
def test_a_first_step_may_lack_launches(missing: Collection[int]) -> None:
    """torch.compile makes copies of kernels at their first launch, which is not recorded then."""
    step = list("abacadaeafagahai")
    first = [kernel for place, kernel in enumerate(step) if place not in missing]
    kernels = [*first, *step * 5]
    ordinals = [kernels[:n].count(kernel) for n, kernel in enumerate(kernels)]
    found = _calls_of(kernels, ordinals)
    assert found is not None
    assert np.bincount(found)[1:-1].tolist() == [len(step)] * (len(np.bincount(found)) - 2)
    assert len(np.bincount(found)) in (5, 6)
