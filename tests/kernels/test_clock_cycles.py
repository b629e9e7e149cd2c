"""Kernels that record with the cycle counter: the same moments, on the real-time clock, as with that clock itself. What
recording costs is measured on this device, at every start."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from widths import IS_CPU_TARGET

import kprof
from kept_sources import kept_source
from kprof import abi
from kprof.capture.manifest import Ceilings, ClockInfo, RankInfo
from kprof.clocks.calibration import measure_clock
from kprof.devices.build import BuildOptions, load_library
from kprof.recording.arenas.arena import Arena
from kprof.recording.decoding.decode import Decoder
from kprof.recording.launcher.record import session
from kprof.recording.launches.launch_buffer import LaunchBuffer
from kprof.recording.launches.region_ids import RegionIds
from kprof.recording.rank.probe_cost import measure_probe_cost
from kprof.recording.rank.recorder import Recorder
from kprof.regions import RegionTable

pytestmark = pytest.mark.amd


KERNEL = """
#include <kprof/kprof.h>
using namespace kprof::platform;
// Spans whose payload is the real-time clock's idea of them. The bracket is read again when the system got between.
__global__ void spans(unsigned num_spans, unsigned span_ticks, unsigned tightest, kprof::Buffer prof) {
  kprof::Track track = kprof::open_track(prof, kprof::per_warp);
  if (lane_id() != 0) return;
  for (unsigned i = 0; i < num_spans; ++i) {
    const uint64_t before = realtime_ticks();
    const kprof::Span span = kprof::profile_start(track);
    const uint64_t begin = realtime_ticks();
    while (realtime_ticks() - begin < span_ticks) {}
    const uint64_t end = realtime_ticks();
    const uint64_t measured = end - begin;
    const bool is_disturbed = begin - before > tightest || measured > span_ticks + tightest;
    kprof::profile_stop(track, span, 1, is_disturbed ? 0 : static_cast<uint32_t>(measured));
  }
}
extern "C" int run(int blocks, unsigned num_spans, unsigned span_ticks, const kprof::LaunchBuffer* buffer) {
  return KPROF_LAUNCH(spans, blocks, 64, nullptr, 0, num_spans, span_ticks, 200u, kprof::make_buffer(*buffer));
}
"""
CLOCK = ClockInfo("CLOCK_MONOTONIC", 1e9, 1.0)


def record(cycles: str, num_spans: int, span_ns: int, num_chunks: int = 64):
    options = BuildOptions(defines=(("KPROF_CLOCK_CYCLES", cycles),), sanitizers=())
    library = load_library(kept_source(KERNEL), options)
    library.run.argtypes = [ctypes.c_int, ctypes.c_uint, ctypes.c_uint, ctypes.c_char_p]
    arena = Arena(abi.CHUNKS_OFFSET + num_chunks * abi.CHUNK_BYTES)
    assert library.run(2, num_spans, span_ns, LaunchBuffer(arena.address, 0).packed()) == 0
    ids = RegionIds()
    ids.table_of_launch[0] = ids.table_idx(RegionTable.from_names(["span"]))
    decoder = Decoder(RankInfo(0, clock=CLOCK), ids)
    events = pa.concat_tables(decoder.decode(*arena.read())).to_pandas()
    return events, decoder


@pytest.mark.parametrize("num_spans", [40, 60, 61, 200])
def test_both_clocks_agree_on_spans_over_ten_microseconds(num_spans: int) -> None:
    events, decoder = record("1", num_spans, 20_000)
    # The closing anchors are no events, however full the last chunk is.
    assert len(events) == decoder.tally.counts.recorded == 2 * num_spans
    assert decoder.tally.counts.unknown_region == decoder.tally.counts.dropped == 0
    undisturbed = events[events["payload"] > 0]
    assert len(undisturbed) > num_spans / 2
    # The two clocks are read one after the other at both ends: what lies between the readings, 60 ns
    # on a fast core, is allowed, and no more than 1 % of a span.
    difference = undisturbed["duration_ns"] - undisturbed["payload"]
    assert np.abs(difference).median() <= 200
    assert (np.abs(difference) <= 1000).mean() > 0.9
    assert decoder.cycle_clock is not None
    assert decoder.cycle_clock.cycles_per_second > 1e8


def test_a_kernel_in_real_time_has_no_cycle_clock() -> None:
    events, decoder = record("0", 40, 5_000)
    assert len(events) == 80
    assert decoder.cycle_clock is None


def test_what_does_not_fit_is_counted_and_nothing_is_written_for_it() -> None:
    events, decoder = record("1", 200, 100, num_chunks=3)
    assert decoder.tally.counts.recorded + decoder.tally.counts.dropped == 2 * 200
    assert decoder.tally.counts.dropped > 0
    assert len(events) == decoder.tally.counts.recorded


def test_spans_follow_each_other_on_the_real_time_clock() -> None:
    events, _ = record("1", 150, 10_000)
    for _, track in events.groupby("block"):
        ends = track["start_ns"] + track["duration_ns"]
        assert (track["start_ns"].to_numpy()[1:] >= ends.to_numpy()[:-1] - 1).all()


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
