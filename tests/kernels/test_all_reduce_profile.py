"""What the all-reduce records: each variant its regions, every put joined to its wait."""

from __future__ import annotations

from pathlib import Path

import pytest
from reductions import VARIANTS, Call, Setting, count_wrong
from thread_ranks import run_threads
from waits import SPLIT_READING_NS, worst_bound_ns
from widths import warps_of

from instrumented_kernels.all_reduce.plan import CPU_BLOCKS
from kprof.devices.groups import Group
from kprof.recording.launcher.record import session
from kprof.recording.rank.recorder import Recorder
from kprof.trace import Trace

pytestmark = pytest.mark.amd

NUM_CALLS = 3
NUM_RANKS = 4
REGIONS = {
    "oneshot_serial": {"put", "publish", "wait", "reduce", "copy-out"},
    "oneshot_lock": {"put", "wait", "lock/acquire", "lock/hold", "copy-out"},
    "oneshot_tree": {"tree/put", "tree/wait", "reduce"},
    "oneshot": {"put", "wait", "reduce"},
    "twoshot_packets": {"put", "wait", "reduce", "broadcast", "broadcast/wait", "copy-out"},
    "twoshot": {"put", "publish", "wait", "reduce", "broadcast", "broadcast/wait", "copy-out"},
    "ring": {"put", "wait", "broadcast", "broadcast/wait", "copy-out"},
}
# Flows of one call: blocks x sends of a block that somebody waits for.
FLOWS = {
    "oneshot_serial": NUM_RANKS * 3,
    "oneshot_lock": NUM_RANKS * 3,
    "oneshot_tree": 2 * NUM_RANKS * 2,
    "oneshot": 2 * NUM_RANKS * 3,
    # A slice is 63 packets: for one warp of 64 threads, or for two blocks of narrower warps.
    "twoshot_packets": min(2, warps_of(63)) * NUM_RANKS * 3 * 2,
    "twoshot": 2 * NUM_RANKS * 3 * 2,
    "ring": 2 * 3 * 2,
}


def record(variant: str, output: Path, arena_bytes: int = 1 << 22) -> Trace:
    def work(group: Group) -> int:
        plan = Setting(NUM_RANKS).plan(group)
        recorder = Recorder(
            directory, rank=group.rank, world_size=group.world_size, arena_bytes=arena_bytes
        )
        call = Call(2000, variant=variant)
        wrong = count_wrong(plan, call, 0)  # not recorded, in kernels without instrumentation
        recorder.align(group)
        wrong += sum(count_wrong(plan, call, n, recorder) for n in range(NUM_CALLS))
        recorder.align(group)
        recorder.close()
        plan.close()
        return wrong

    with session(output) as directory:
        assert run_threads(NUM_RANKS, work) == [0] * NUM_RANKS
    return Trace.open(output)


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_put_meets_its_wait(variant: str, tmp_path: Path) -> None:
    trace = record(variant, tmp_path / "run.kprof")
    regions = trace.frame("SELECT DISTINCT region FROM events")["region"]
    assert set(regions) == REGIONS[variant]
    kernels = trace.frame("SELECT DISTINCT kernel, ordinal FROM launches")
    assert set(kernels["kernel"]) == {f"all_reduce/{variant}"}
    assert len(kernels) == NUM_CALLS
    flows = trace.frame("SELECT count(*) AS n FROM flows")["n"][0]
    assert flows == NUM_CALLS * FLOWS[variant]
    earliest_ns = trace.frame("SELECT min(wait_end_ns - send_start_ns) AS ns FROM flows")["ns"][0]
    # A split reading makes the sender's times late, another one the waiter's early.
    allowed_ns = worst_bound_ns(trace) + 2 * SPLIT_READING_NS
    assert earliest_ns >= -allowed_ns, "a send began after its wait had ended"


def test_bytes_of_the_puts_are_those_of_the_tensor(tmp_path: Path) -> None:
    trace = record("twoshot", tmp_path / "run.kprof")
    by_rank = trace.frame(
        "SELECT rank, sum(bytes) AS b FROM events WHERE region = 'put' GROUP BY 1"
    )
    # 2000 elements are 250 vectors, 63 for each of the four slices; three of them leave.
    assert set(by_rank["b"]) == {NUM_CALLS * 3 * 63 * 16}


def test_short_tracks_without_room_count_all_their_records(tmp_path: Path) -> None:
    """Four chunks hold four short tracks. The others are counted with all that they would have recorded."""
    trace = record("oneshot", tmp_path / "run.kprof", arena_bytes=16 << 10)
    tracks = trace.frame("SELECT DISTINCT rank, launch, block FROM events").groupby("rank").size()
    assert tracks.tolist() == [4] * NUM_RANKS
    # Of each block: puts and waits by rank, the reduce, and the second pair of clocks of a long
    # track.
    num_records = 2 * NUM_RANKS + 2
    for rank in trace.manifest.ranks:
        assert rank.counts.dropped == (NUM_CALLS * CPU_BLOCKS - 4) * num_records
        assert [losses.region for losses in rank.losses] == ["tracks of one chunk"]


def test_waits_follow_one_another_in_the_order_of_arrival(tmp_path: Path) -> None:
    trace = record("oneshot", tmp_path / "run.kprof")
    waits = trace.frame(
        "SELECT rank, launch, block, start_ns, start_ns + duration_ns AS end_ns FROM events "
        "WHERE region = 'wait' ORDER BY rank, launch, block, start_ns, end_ns"
    )
    tracks = waits.groupby(["rank", "launch", "block"])
    assert (tracks.size() == NUM_RANKS - 1).all()
    gaps = waits["start_ns"] - tracks["end_ns"].shift()
    # Four cycles are taken for one, and each moment is rounded to ns.
    assert gaps.dropna().abs().max() <= 3
