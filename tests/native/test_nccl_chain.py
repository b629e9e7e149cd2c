"""From a late rank at a collective back to what it did before: kernels that a recorder has recorded, and rings of a host
that plays NCCL, in the same processes."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import msgspec
import numpy as np
import pytest
from nccl_host import tools

from in_process import run_kprof
from kprof import analysis
from kprof.analysis.calls import call_numbers
from kprof.analysis.collectives import arrivals
from kprof.capture.directory import write_rank_events, write_rank_info
from kprof.capture.journal import Begun, begin_journal
from kprof.capture.manifest import ClockInfo
from kprof.nccl.plugin import build_plugin, environment_for
from kprof.recording.finishing.recover import recover
from kprof.trace import Trace
from synthetic import TraceBuilder

__all__ = ["tools"]
pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler, cc")

RANKS, STEPS, LATE_NS, WORK_NS = 4, 12, 233_000, 60_000
GPU_CLOCK = ClockInfo("%globaltimer", 1e9, 32.0)
REGIONS = """
REGION(R_MULTIPLY, "multiply", compute)
REGION(R_SUM, "sum", compute)
"""


def recorded(
    tools,
    folder: Path,
    why: str,
    *,
    late: int = 2,
    per_step: int = 1,
    more: int = 0,
    clock: ClockInfo = GPU_CLOCK,
) -> Path:
    """A capture of steps with a gemm, a norm, and some all-reduces, of which rank `late` is late at the last one: `why`
    is the kernel that takes longer there, or "host"."""
    run = folder / "run.kprof.unfinished"
    run.mkdir()
    begin_journal(run, Begun((), "", RANKS))
    host, driver = tools
    environment = os.environ | environment_for(build_plugin(), run, 1 << 22)
    options = (
        f"ranks={RANKS}",
        f"calls={STEPS * per_step + more}",
        f"late={late}",
        f"delay={LATE_NS}",
    )
    subprocess.run(
        [host, "7", *options, f"every={per_step}"],
        env=environment | {"LD_PRELOAD": str(driver)},
        check=True,
        stdout=subprocess.DEVNULL,
    )
    build = TraceBuilder(REGIONS, RANKS)
    noise = np.random.default_rng(1)
    for step in range(STEPS):
        call = step * per_step + per_step - 1
        begin_ns = 10**12 + call * (100_000 + LATE_NS)
        for number, (kernel, region, work_ns) in enumerate(
            (("norm", "sum", WORK_NS // 4), ("gemm", "multiply", WORK_NS))
        ):
            build.launch(2 * step + number, kernel, 8)
            for rank in range(RANKS):
                delay_ns = LATE_NS * (rank == late)
                longer_ns = delay_ns * (why == kernel)
                # After the all-reduce of the step before, which ends 23 us after its last rank came.
                at_ns = begin_ns + 10 * rank - WORK_NS - (1_000 if number else 16_500)
                # What comes after a longer kernel begins later.
                at_ns += delay_ns if why == "host" or (why == "norm" and number) else 0
                for block in range(8):
                    build.span(
                        rank,
                        region,
                        at_ns + int(noise.integers(0, 50)),
                        work_ns + longer_ns + int(noise.integers(0, 200)),
                        block=block,
                        launch=2 * step + number,
                    )
    trace = build.trace()
    for info in trace.manifest.ranks:
        rows = build.table().to_pandas()
        of_rank = build.table().filter((rows["rank"] == info.rank).to_numpy())
        write_rank_events(run, info.rank, of_rank)
        write_rank_info(run, msgspec.structs.replace(info, clock=clock))
    return recover(run).path


def first_of(path: Path) -> analysis.Finding:
    found = analysis.find(analysis.Summary.of(Trace.open(path)))
    return found.findings[0]


CHAINS = {
    "gemm": (
        "Rank 2 runs multiply 4.9x slower than the rest and arrives 233 us late at AllReduce RING LL; costs up to",
        "Rank 2 arrives 233 us late at AllReduce RING LL: 100 % of that goes into gemm, which runs before it",
    ),
    "norm": (
        "Rank 2 runs sum 16.4x slower than the rest and arrives 233 us late at AllReduce RING LL; costs up to",
        "Rank 2 arrives 233 us late at AllReduce RING LL: 100 % of that goes into norm, which runs before it",
    ),
    "host": (
        "Rank 2 arrives 233 us late at AllReduce RING LL; fixing it would save up to",
        "Rank 2 arrives 233 us late at AllReduce RING LL: no recorded kernel takes the time; the host does, or kernels "
        "that are not recorded",
    ),
}


def test_the_page_quotes_such_a_finding():
    page = (Path(__file__).parents[2] / "docs" / "nccl.md").read_text()
    sentence, chain = CHAINS["gemm"]
    assert f"\n{sentence}" in page
    assert f"\n{chain}\n" in page


@pytest.mark.parametrize("why", CHAINS)
def test_the_first_finding_says_what_the_late_rank_did_before(tools, tmp_path, why):
    path = recorded(tools, tmp_path, why)
    first, (sentence, chain) = first_of(path), CHAINS[why]
    assert first.sentence.startswith(sentence)
    assert chain in first.details
    said = run_kprof(["report", path]).stdout
    assert first.sentence in " ".join(said.split())


def test_at_one_of_several_collectives_of_a_step(tools, tmp_path):
    path = recorded(tools, tmp_path, "gemm", per_step=3)
    first = first_of(path)
    assert first.arrival is not None
    assert (first.arrival.kernel, first.arrival.before) == ("AllReduce RING LL", "gemm")
    assert first.ranks == (2,)
    # A call begins with the norm, before the all-reduce that is late.
    assert "late at AllReduce RING LL (1 of 3 in a call): 100 % of that goes into gemm" in str(
        first.details
    )


def test_a_step_is_a_call_with_its_collectives(tools, tmp_path):
    path = recorded(tools, tmp_path, "gemm", per_step=2)
    summary = analysis.Summary.of(Trace.open(path))
    assert len(analysis.calls(summary)) == STEPS
    numbers = call_numbers(summary)
    assert numbers is not None
    # The collectives have numbers behind all others, though they ran between them. The one before the first step is of
    # the first call.
    assert numbers.groupby(["rank", "call"]).size().unique().tolist() == [5, 4, 3]


def test_many_collectives_after_the_last_other_kernel_are_calls_of_their_own(tools, tmp_path):
    path = recorded(tools, tmp_path, "gemm", more=300)
    assert len(analysis.calls(analysis.Summary.of(Trace.open(path)))) > 300


def test_the_table_of_arrivals(tools, tmp_path):
    summary = analysis.Summary.of(Trace.open(recorded(tools, tmp_path, "gemm")))
    found = arrivals(summary).sort_values("of_kernel")
    assert found["rank"].tolist() == [2] * STEPS
    assert found["before"].tolist() == ["gemm"] * STEPS
    assert (found["late_ns"] - found["before_ns"]).abs().max() < 300


def test_collectives_are_left_out_where_the_recorder_reads_another_clock(tools, tmp_path):
    path = recorded(tools, tmp_path, "gemm", clock=ClockInfo("CLOCK_MONOTONIC", 1e9, 1.0))
    manifest = Trace.open(path).manifest
    assert {launch.kernel for info in manifest.ranks for launch in info.launches} == {
        "gemm",
        "norm",
    }
    sentence = "the collectives of ranks 0, 1, 2, 3 are not in the capture: a recorder there reads another clock"
    assert sentence in manifest.messages
