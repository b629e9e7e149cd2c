"""What recording does to a workload: compared over A-B-B-A runs, with the noise between equal runs beside it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from kprof.capture.directory import Capture
from kprof.recording.launcher.record import RecordRequest, record
from kprof.recording.rank.overhead import (
    KernelTiming,
    compare_runs,
)

# A clock that only this workload turns: what recording costs is what it says, whatever else runs.
WORKLOAD = """
import os, sys
import kprof
from kprof.devices import gpu
now_ns = 0
gpu.note_moment = lambda device: now_ns
recorder = kprof.recorder(regions=["work"])
os.environ.get("KPROF_TIMINGS_DIR") or sys.exit("not timed")
for call in range(7):
    buffer = recorder.launch("slow" if call % 2 else "fast")
    # Recording costs this workload 4 ms per launch of the one kernel, and nothing for the other.
    now_ns += 6_000_000 + 4_000_000 * bool(buffer.arena) if call % 2 else 2_000_000
sys.exit({code})
"""


def run(us: dict[str, float], num_launches: int = 10, num_ranks: int = 2) -> list[KernelTiming]:
    return [KernelTiming(name, num_launches, value) for name, value in us.items()] * num_ranks


def test_percent_and_spread_come_from_all_four_runs() -> None:
    off = [run({"a": 100.0, "b": 300.0}), run({"a": 104.0, "b": 296.0})]
    on = [run({"a": 110.0, "b": 300.0}), run({"a": 106.0, "b": 292.0})]
    overhead = compare_runs(off, on)
    assert overhead is not None
    assert overhead.kernels[0].off_us == (100.0, 104.0)
    assert overhead.kernels[0].on_us == (110.0, 106.0)
    # Off 400 and 400 us per pair of launches, on 410 and 398.
    assert overhead.percent == pytest.approx(1.0)
    assert overhead.spread_percent == pytest.approx(3.0)


def test_the_median_rank_speaks_and_a_kernel_missing_in_a_run_is_left_out() -> None:
    off = [run({"a": 100.0}), run({"a": 100.0, "b": 1.0})]
    on = [[*run({"a": 100.0}), KernelTiming("a", 10, 9000.0)], run({"a": 100.0})]
    overhead = compare_runs(off, on)
    assert overhead is not None
    assert [entry.kernel for entry in overhead.kernels] == ["a"]
    assert overhead.percent == pytest.approx(0.0)
    assert compare_runs([run({}), run({})], [run({}), run({})]) is None


def test_the_four_runs_find_what_recording_costs(tmp_path: Path) -> None:
    command = (sys.executable, "-c", WORKLOAD.format(code=0))
    recording = record(RecordRequest(command, tmp_path / "run.kprof", measure_overhead=True))
    overhead = Capture.open(tmp_path / "run.kprof").manifest.overhead
    assert overhead == recording.capture.manifest.overhead
    assert overhead is not None
    by_name = {entry.kernel: entry for entry in overhead.kernels}
    assert by_name["slow"].off_us == (6000.0, 6000.0)
    assert by_name["slow"].on_us == (10_000.0, 10_000.0)
    assert by_name["fast"].off_us == by_name["fast"].on_us == (2000.0, 2000.0)
    # Off 8 ms per pair of launches, on 12.
    assert overhead.percent == pytest.approx(50.0)


def test_a_workload_that_fails_is_kept_and_its_cost_is_not_claimed(tmp_path: Path) -> None:
    command = (sys.executable, "-c", WORKLOAD.format(code=7))
    recording = record(RecordRequest(command, tmp_path / "run.kprof", measure_overhead=True))
    assert recording.exit_code == 7
    assert recording.capture.manifest.overhead is None
    assert recording.capture.manifest.overhead_note == "run off-1 exited with 7"
