"""What the all-to-all records: every event once, every flow joined, nothing lost in silence."""

from __future__ import annotations

import ctypes
import time
from pathlib import Path

import numpy as np
import pytest
from ranks import Run, record_ranks
from waits import worst_bound_ns
from widths import WARP_WIDTH, warps_of

import kprof
from instrumented_kernels.all_to_all import Problem
from instrumented_kernels.all_to_all.routing import Skew, make_inputs, num_tokens_of
from kept_sources import kept_source
from kprof.capture.directory import Capture
from kprof.devices.build import BuildOptions, load_library
from kprof.recording.launcher.record import session
from kprof.recording.rank.recorder import Recorder
from kprof.trace import Trace

pytestmark = pytest.mark.amd

SMALL = Problem(num_experts=8, top_k=3, hidden=40, max_tokens=6)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Trace, int]:
    path = tmp_path_factory.mktemp("recorded") / "run.kprof"
    results = record_ranks(Run(SMALL, 4, num_calls=3), path)
    return Trace.open(path), sum(result.num_rows_sent for result in results)


def test_one_flow_for_every_token_sent(recorded: tuple[Trace, int]) -> None:
    trace, num_rows = recorded
    flows = trace.frame("SELECT send_region, count(*) AS n FROM flows GROUP BY 1").set_index(
        "send_region"
    )["n"]
    assert flows["dispatch/send"] == num_rows
    assert flows["combine/send"] == num_rows
    assert flows["dispatch/send-counts"] == 3 * 4 * 4


def test_flows_join_the_right_ends(recorded: tuple[Trace, int]) -> None:
    trace, _ = recorded
    wrong = trace.frame(
        """SELECT count(*) AS n FROM flows f
           JOIN events s ON s.event_id = f.send_event_id JOIN events w ON w.event_id = f.wait_event_id
           WHERE s.rank <> f.src OR s.peer <> f.dst OR w.rank <> f.dst OR w.peer <> f.src OR s.slot <> w.slot"""
    )
    assert wrong["n"][0] == 0


def test_no_wait_ends_before_its_send_began(recorded: tuple[Trace, int]) -> None:
    trace, _ = recorded
    early = trace.frame(
        "SELECT count(*) AS n FROM flows WHERE wait_end_ns < send_start_ns - ?",
        [worst_bound_ns(trace)],
    )
    assert early["n"][0] == 0


def test_every_copy_follows_its_wait(recorded: tuple[Trace, int]) -> None:
    trace, num_rows = recorded
    counts = trace.frame("SELECT region, count(*) AS n FROM events GROUP BY 1").set_index("region")[
        "n"
    ]
    assert counts["dispatch/wait-token"] == counts["dispatch/copy"] == num_rows
    assert counts["expert"] == counts["combine/send"] == counts["combine/wait-token"] == num_rows


def test_skewed_source_loads_the_blocks_that_serve_it(tmp_path: Path) -> None:
    problem = Problem(8, 2, 64, 12)
    skew = Skew(3.0, rank=1)
    run = Run(
        problem,
        4,
        num_calls=2,
        inputs=lambda rank, call: make_inputs(
            problem, num_tokens_of(problem, rank, skew), 100 * call + rank
        ),
    )
    record_ranks(run, tmp_path / "run.kprof")
    copies = kprof.open(tmp_path / "run.kprof").frame(
        """SELECT block % 4 AS served, count(*) AS n FROM events
           WHERE region = 'dispatch/copy' GROUP BY 1 ORDER BY 1"""
    )
    assert copies["n"].tolist() == [16, 48, 16, 16]


def test_waits_for_a_late_rank_last_until_it_comes(tmp_path: Path) -> None:
    """How long others wait is up to the scheduler here; for whom they wait, and until when, is not."""

    def delay(rank: int, call: int) -> None:
        if rank == 2:
            time.sleep(0.05)

    record_ranks(Run(SMALL, 4, num_calls=2, before_call=delay), tmp_path / "run.kprof")
    trace = kprof.open(tmp_path / "run.kprof").trace
    waits = trace.frame(
        """SELECT w.rank, w.end_ns, s.first_ns
           FROM events w JOIN (
               SELECT ordinal, min(start_ns) AS first_ns FROM events WHERE rank = 2 GROUP BY ordinal
           ) s USING (ordinal)
           WHERE w.region = 'dispatch/wait-counts' AND w.rank <> 2 AND w.peer = 2"""
    )
    assert set(waits["rank"]) == {0, 1, 3}
    assert (waits["end_ns"] >= waits["first_ns"] - worst_bound_ns(trace)).all()


COUNTING_KERNEL = """
#include <kprof/kprof.h>
#define KPROF_REGIONS "regions.h"
#include <kprof/declare_regions.h>
using namespace kprof::platform;
// Every warp emits `n` + its number records and counts them itself.
__global__ void emit_many(uint32_t* emitted, uint32_t n, kprof::Buffer prof) {
  kprof::Track track = kprof::open_track(prof, kprof::per_warp);
  for (uint32_t i = 0; i < n + warp_id(); ++i) {
    kprof::Span span = kprof::profile_start(track);
    pause();
    kprof::profile_stop(track, span, R_WORK, kprof::payload<R_WORK>(i % 300, i));
    if (lane_id() == 0) add_device(emitted, 1u);
  }
  kprof::Track block = kprof::open_track(prof, kprof::per_block);
  kprof::profile_mark(block, R_DONE);
  kprof::profile_value(block, R_LEFT, 17);
  { kprof::Scope scope(block, R_SCOPE); pause(); }
  if (thread_id() == 0) add_device(emitted, 3u);
  kprof::profile_mark(block, 77);
  if (thread_id() == 0) add_device(emitted, 1u);
}
extern "C" int launch(uint32_t* emitted, uint32_t n, int blocks, int threads, void* arena, uint32_t number) {
  return KPROF_LAUNCH(emit_many, blocks, threads, nullptr, 5, emitted, n, kprof::make_buffer(arena, number));
}
"""
COUNTING_REGIONS = """
REGION(R_WORK, "work", compute, peer:8, slot:24)
MARK(R_DONE, "done", sync)
VALUE(R_LEFT, "left", other)
REGION(R_SCOPE, "scope", compute)
"""


@pytest.fixture(scope="module")
def counting() -> tuple[ctypes.CDLL, Path]:
    source = kept_source(COUNTING_KERNEL, COUNTING_REGIONS)
    library = load_library(source, BuildOptions(warp_width=WARP_WIDTH))
    number, pointer = ctypes.c_uint32, ctypes.c_void_p
    library.launch.argtypes = [pointer, number, ctypes.c_int, ctypes.c_int, pointer, number]
    return library, source.with_name("regions.h")


def emit(
    counting: tuple[ctypes.CDLL, Path], output: Path, n: int, arena_bytes: int, flush: bool
) -> tuple[Capture, int]:
    library, regions = counting
    emitted = np.zeros(1, dtype=np.uint32)
    with session(output) as directory:
        recorder = Recorder(
            directory, rank=0, world_size=1, regions=regions, arena_bytes=arena_bytes
        )
        for _ in range(3):
            buffer = recorder.launch("emit_many", num_blocks=5, threads_per_block=96)
            assert library.launch(emitted.ctypes.data, n, 5, 96, buffer.arena, buffer.launch) == 0
            if flush:
                recorder.flush()
        recorder.close()
    return Capture.open(output), int(emitted[0])


@pytest.mark.parametrize("n", [0, 1, 60, 61, 62, 500])
@pytest.mark.parametrize("flush", [False, True])
def test_recorded_equals_what_the_kernel_counted(
    counting, tmp_path: Path, n: int, flush: bool
) -> None:
    capture, emitted = emit(counting, tmp_path / "run.kprof", n, 1 << 20, flush)
    counts = capture.manifest.ranks[0].counts
    assert (counts.recorded, counts.dropped) == (emitted, 0)
    assert Trace.open(capture).num_events() == emitted
    assert counts.unknown_region == 15
    assert counts.clamped == 3 * 5 * sum(
        sum(1 for i in range(n + warp) if i % 300 >= 255) for warp in range(warps_of(96))
    )


def accounted_by_region(capture: Capture) -> dict[str, int]:
    """Recorded and dropped events together."""
    recorded = Trace.open(capture).to_pandas()["region"].value_counts().to_dict()
    dropped = {loss.region: loss.dropped for loss in capture.manifest.ranks[0].losses}
    return {
        name: recorded.get(name, 0) + dropped.get(name, 0) for name in sorted(recorded | dropped)
    }


@pytest.mark.parametrize(
    "n", [60, 200]
)  # with 60, the second warp fills its chunk to the last record
@pytest.mark.parametrize("arena_bytes", [13_312, 14_336, 27_000, 67_000])
def test_overflow_is_counted_and_the_named_size_suffices(
    counting, tmp_path: Path, arena_bytes: int, n: int
) -> None:
    capture, emitted = emit(counting, tmp_path / "small.kprof", n, arena_bytes, False)
    info = capture.manifest.ranks[0]
    assert info.counts.dropped > 0
    assert info.counts.recorded + info.counts.dropped == emitted
    assert accounted_by_region(capture) == {
        "work": emitted - 4 * 15,
        "done": 15,
        "left": 15,
        "scope": 15,
        "unknown region 77 of table 0": 15,
    }
    assert info.arena.size_bytes <= arena_bytes
    again, emitted_again = emit(
        counting, tmp_path / "large.kprof", n, info.arena.needed_bytes, False
    )
    assert again.manifest.ranks[0].counts.dropped == 0
    assert again.manifest.ranks[0].counts.recorded == emitted_again


def test_kinds_and_payloads_survive(counting, tmp_path: Path) -> None:
    capture, _ = emit(counting, tmp_path / "run.kprof", 2, 1 << 20, False)
    events = Trace.open(capture).to_pandas()
    work = events[
        (events.region == "work") & (events.block == 3) & (events.warp == 1) & (events.launch == 1)
    ]
    assert work[["peer", "slot"]].to_numpy().tolist() == [[0, 0], [1, 1], [2, 2]]
    assert (events[events.region == "left"].payload == 17).all()
    assert set(events[events.region == "done"].warp) == {-1}
    assert set(events[events.region.str.startswith("unknown")].region) == {
        "unknown region 77 of table 0"
    }
    assert (events.duration_ns >= 0).all()
    spans = events[events.region == "scope"]
    assert len(spans) == 15
    assert (spans.kind == "span").all()


def test_a_null_buffer_records_nothing(counting) -> None:
    library, _ = counting
    emitted = np.zeros(1, dtype=np.uint32)
    assert library.launch(emitted.ctypes.data, 9, 2, 64, None, 0) == 0
    assert emitted[0] == 2 * (sum(9 + warp for warp in range(warps_of(64))) + 4)
