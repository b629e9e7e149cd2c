"""Collectives in Triton: right against float64 in the interpreter, every send joined to its wait; and their code."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from needed import require_nvdisasm, require_triton

require_triton()

from compiled import TARGETS, Pointer, compile_for  # noqa: E402

import kprof.triton as kp  # noqa: E402
from instrumented_kernels.triton_collectives import kernels  # noqa: E402
from kprof.recording.launch_buffer import LaunchBuffer  # noqa: E402
from kprof.trace import Trace  # noqa: E402

WORLD = 2
CALLS = 2
FLOATS, NUMBERS, BASES = Pointer("fp32"), Pointer("i32"), Pointer("i64")
NEVER_SPECIAL = (3, 5, 100, 200)  # rank, epoch, offsets
ARGUMENTS: dict[str, tuple[tuple[Any, ...], dict[str, int]]] = {
    "one_shot": ((FLOATS, FLOATS, 5000, BASES, *NEVER_SPECIAL), {"WORLD": 4, "BLOCK": 1024}),
    "two_shot": (
        (FLOATS, FLOATS, 5000, BASES, *NEVER_SPECIAL, 300, 400),
        {"WORLD": 4, "BLOCK": 1024},
    ),
    "dispatch": (
        (FLOATS, NUMBERS, NUMBERS, NUMBERS, FLOATS, NUMBERS, 24, BASES, *NEVER_SPECIAL, 300),
        {"WORLD": 4, "MOST_ROWS": 24, "HIDDEN": 1024, "SENDERS": 4},
    ),
}


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    """Two ranks as processes, in Triton's interpreter. The workload compares all results with float64."""
    from needed import interpreter_fails

    if reason := interpreter_fails():
        pytest.skip(reason)
    path = tmp_path_factory.mktemp("recorded") / "run.kprof"
    command = [
        sys.executable,
        "-m",
        "kprof_cli",
        "record",
        "--nproc",
        str(WORLD),
        "-o",
        str(path),
        "--",
    ]
    workload = ["python", "-m", "instrumented_kernels.triton_collectives", "--calls", str(CALLS)]
    answer = subprocess.run(
        [*command, *workload, "--numbers", "2100", "--target", "cpu"],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stdout[-3000:] + answer.stderr[-3000:]
    return Trace.open(path)


def test_every_send_is_joined_to_its_wait(trace: Trace) -> None:
    """2100 numbers are three programs of the one shot and two of the two shots; 24 tokens a rank."""
    flows = trace.frame("SELECT send_region, count(*) AS n FROM flows GROUP BY 1")
    assert dict(zip(flows["send_region"], flows["n"], strict=True)) == {
        "signal": (3 + 2) * WORLD * CALLS,
        "signal-sum": 2 * WORLD * CALLS,
        "dispatch/send-count": WORLD * WORLD * CALLS,
        "dispatch/send": 24 * WORLD * CALLS,
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


@pytest.mark.native
@pytest.mark.parametrize("name", ARGUMENTS)
@pytest.mark.parametrize("target", TARGETS)
def test_recording_a_collective_spills_nothing(target: str, name: str) -> None:
    if target.startswith("sm_"):
        require_nvdisasm()
    arguments, constants = ARGUMENTS[name]
    kernel = getattr(kernels, name)
    prof = kp.pack(LaunchBuffer(1 << 40, 5, 100, 1, 64, 32, 32), kernels.regions)
    clock = "SR_GLOBALTIMER" if target.startswith("sm_") else "s_memrealtime"
    off = compile_for(target, kernel, *arguments, None, **constants)
    recorded = compile_for(target, kernel, *arguments, prof, **constants)
    assert off.count(clock) == 0
    assert recorded.count(clock) > 2
    assert recorded.spills <= off.spills
