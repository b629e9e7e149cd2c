"""Collectives in Triton beside the all-reduce in C++: right against float64, every send joined, all on one clock."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from needed import require_triton

require_triton()

from benchmarks.gpu_runs import times_in  # noqa: E402
from in_process import run_kprof  # noqa: E402
from instrumented_kernels.triton_collectives.__main__ import times_text  # noqa: E402
from kprof.trace import Trace  # noqa: E402

WORLD = 2
CALLS = 2


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    """Two ranks as processes, in Triton's interpreter. The workload compares all results with float64."""
    from needed import interpreter_fails

    if reason := interpreter_fails():
        pytest.skip(reason)
    path = tmp_path_factory.mktemp("recorded") / "run.kprof"
    command = ["record", "--nproc", WORLD, "-o", path, "--"]
    workload = ["python", "-m", "instrumented_kernels.triton_collectives", "--calls", str(CALLS)]
    what = ["--kinds", "oneshot,cpp,twoshot,dispatch", "--numbers", "2100", "--target", "cpu"]
    answer = run_kprof(
        [*command, *workload, *what],
        environment=os.environ | {"TRITON_INTERPRET": "1"},
        folder=Path(__file__).parents[2],
    )
    assert answer.returncode == 0, answer.stdout[-3000:] + answer.stderr[-3000:]
    return Trace.open(path)


def test_every_send_is_joined_to_its_wait(trace: Trace) -> None:
    """2100 numbers are three programs of the one shot and two of the two shots. 24 tokens a rank."""
    flows = trace.frame("SELECT send_region, count(*) AS n FROM flows GROUP BY 1")
    joined = dict(zip(flows["send_region"], flows["n"], strict=True))
    assert joined.pop("put") > 0  # of the kernel in C++
    assert joined == {
        "triton/signal": (3 + 2) * WORLD * CALLS,
        "triton/signal-sum": 2 * WORLD * CALLS,
        "triton/dispatch-send-count": WORLD * WORLD * CALLS,
        "triton/dispatch-send": 24 * WORLD * CALLS,
    }
    events = trace.frame("SELECT category, count(*) AS n FROM events GROUP BY 1")
    counts = dict(zip(events["category"], events["n"], strict=True))
    assert counts["send"] == counts["wait"] == flows["n"].sum()


def test_no_wait_ends_before_its_send_begins(trace: Trace) -> None:
    assert trace.alignment is not None
    early = trace.frame(
        "SELECT count(*) AS n FROM flows WHERE wait_end_ns < send_start_ns - ?",
        [trace.alignment.bound_between_ns(0, 1)],
    )
    assert early["n"][0] == 0


def test_kernels_in_triton_and_in_cpp_follow_each_other_on_one_clock(trace: Trace) -> None:
    """A rank's launches ran one after the other: on one clock, their events do not overlap."""
    launches = trace.frame(
        """SELECT rank, kernel, launch, min(start_ns) AS begin, max(end_ns) AS done
           FROM events GROUP BY ALL ORDER BY rank, begin"""
    )
    order = ["oneshot"] * CALLS + ["all_reduce/oneshot"] * CALLS + ["twoshot"] * CALLS
    for _, of_rank in launches.groupby("rank"):
        assert of_rank["kernel"].tolist() == order + ["dispatch"] * CALLS
        assert (of_rank["begin"].to_numpy()[1:] >= of_rank["done"].to_numpy()[:-1]).all()


def test_a_slow_batch_is_not_in_the_time_of_a_call() -> None:
    """The benchmark reads what the workload prints."""
    text = times_text("oneshot", 8192, [6.0, 2600.0, 6.2, 5.9, 6.1])
    assert times_in(f"warning\n{text}\n") == {
        "oneshot": {"32768 bytes": {"median": 6.1, "fastest": 5.9, "slowest": 2600.0}}
    }
