"""What a call of several kernels is made of, on paper."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from kprof.analysis import Summary
from kprof.analysis.kernels import BETWEEN, kernels
from kprof.report.model import build
from kprof.report.terminal import render_terminal
from synthetic import TraceBuilder

REGIONS = 'REGION(R_WORK, "work", compute)'
CALLS = 5


def steps(host_ns: int = 50) -> TraceBuilder:
    """Five calls on two ranks: `norm` once, `product` twice, and `host_ns` between the launches. norm: one wave of
    4 programs, of which one takes 100 ns and the others 40. product: 8 programs of 100 ns, 4 at a time, and the
    last one 60 ns longer. The second product begins 30 ns before the first one ends."""
    trace = TraceBuilder(REGIONS, 2)
    for rank in range(2):
        start = 0
        for call in range(CALLS):
            for idx, (launch, kernel) in enumerate(
                [(3 * call, "norm"), (3 * call + 1, "product"), (3 * call + 2, "product")]
            ):
                trace.launch(launch, kernel)
                where = {"rank": rank, "region": "work", "launch": launch}
                if idx == 0:
                    for block in range(4):
                        length = 100 if block == 2 else 40
                        trace.span(**where, block=block, start_ns=start, duration_ns=length)
                    start += 100 + host_ns
                    continue
                for block in range(8):
                    begin = start + 100 * (block // 4)
                    length = 160 if block == 7 else 100
                    trace.span(**where, block=block, start_ns=begin, duration_ns=length)
                start += 260 - 30
            start += 1000
    return trace


def test_kernels_by_how_much_longer_they_make_a_call() -> None:
    table = kernels(Summary.of(steps().trace()))
    assert table["kernel"].tolist() == ["product", "norm", BETWEEN]
    assert table["launches"].tolist() == [2, 1, 0]
    # The second product makes a call 30 ns less long than it is.
    assert table["path_ns"].tolist() == [260 + 230, 100, 50]
    assert table["share"].tolist() == pytest.approx([490 / 640, 100 / 640, 50 / 640])
    assert table["median_ns"].tolist() == [260, 100, 0]
    assert table["programs"].tolist() == [8, 4, 0]
    assert table["at_once"].tolist() == [4, 4, 0]
    assert table["waves"].tolist() == [2, 1, 0]
    assert table["imbalance"].tolist() == pytest.approx([160 / 107.5, 100 / 55, 0])
    # With one of four programs: fewer than half.
    assert table["tail_ns"].tolist() == [60, 60, 0]


def printed(trace: TraceBuilder) -> str:
    console = Console(file=io.StringIO(), width=200)
    console.print(render_terminal(build(trace.trace())))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_report_has_the_kernels_of_a_call() -> None:
    text = printed(steps())
    table = text[text.index("\nKernels") :]
    order = [table.index(name) for name in ("product", "norm", "(between launches)")]
    assert order == sorted(order)
    assert "lies between launches" not in text


def test_a_call_that_waits_for_the_host() -> None:
    text = printed(steps(host_ns=1000))
    assert "63 % of a call (1.00 us) lies between launches: the GPU waits for the host" in text


def test_a_single_kernel_has_no_table() -> None:
    trace = TraceBuilder(REGIONS, 1)
    assert kernels(Summary.of(trace.trace())).empty
    trace.span(0, "work", 0, 10)
    assert "\nKernels" not in printed(trace)
