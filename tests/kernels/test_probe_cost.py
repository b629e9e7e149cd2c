"""The recorder says what it costs: measured on this device, at every start."""

from __future__ import annotations

from pathlib import Path

import pytest
from widths import IS_CPU_TARGET

import kprof
from kprof.capture.manifest import Ceilings
from kprof.clocks.calibration import measure_clock
from kprof.recording.launcher.record import session
from kprof.recording.rank.probe_cost import measure_probe_cost
from kprof.recording.rank.recorder import Recorder

pytestmark = pytest.mark.amd
# An emulator takes long for each, and a clock of instructions is not disturbed.
NUM_MEASUREMENTS = 10 if IS_CPU_TARGET else 1


def test_the_cost_of_a_pair_is_measured() -> None:
    # The one in which nothing else took the processor.
    measured = [measure_probe_cost("cpu", measure_clock("cpu")) for _ in range(NUM_MEASUREMENTS)]
    cost = min(measured, key=lambda each: each.pair_ns)
    # Two readings of the clock and a record: not free, and far from a microsecond unless the
    # machine is.
    assert 5 < cost.pair_ns < 20_000
    assert 0 < cost.empty_span_ns < cost.pair_ns
    assert cost.num_tracks == 1 or not IS_CPU_TARGET
    assert 1e8 < cost.cycles_per_second < 1e10
    assert cost.took_ms > 0


def test_every_rank_of_a_capture_says_it(tmp_path: Path) -> None:
    with session(tmp_path / "run.kprof") as directory:
        Recorder(directory, rank=0, world_size=1, arena_bytes=1 << 20).close()
    (info,) = kprof.open(tmp_path / "run.kprof").manifest.ranks
    assert info.probe is not None
    assert info.probe.pair_ns > 0
    # The measurement leaves nothing behind in the recorder's own arena.
    assert info.counts.recorded == info.counts.dropped == 0


def test_a_capture_takes_along_what_doctor_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = Ceilings(copy_gb_s=3.5, near_gb_s=20.0, peer_gb_s=3.25)
    monkeypatch.setattr("kprof.recording.rank.ceilings.kept_ceilings", lambda _device: measured)
    with session(tmp_path / "run.kprof") as directory:
        Recorder(directory, rank=0, world_size=1, arena_bytes=1 << 20).close()
    (info,) = kprof.open(tmp_path / "run.kprof").manifest.ranks
    assert info.ceilings == measured
