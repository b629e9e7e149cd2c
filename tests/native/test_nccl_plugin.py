"""The profiler plugin under a host that plays NCCL: every event is in the ring, or counted."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from nccl_host import build_host

from kprof.nccl.plugin import build_plugin, environment_for
from kprof.nccl.ring import Ring, rings_in
from under_way import until

KERNEL_CH, COLL, PHASE = 6, 1, 15

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler, cc")


@pytest.fixture(scope="module")
def host(tmp_path_factory) -> Path:
    return build_host(tmp_path_factory.mktemp("host"))


def play(
    host: Path,
    folder: Path,
    abi: int,
    ring_bytes: int = 64 << 20,
    plugin: Path | None = None,
    **options: int,
):
    """Number of events that the host made, and the rings."""
    environment = os.environ | environment_for(plugin or build_plugin(), folder, ring_bytes)
    environment.pop("RANK", None)
    words = [f"{name}={value}" for name, value in options.items()]
    run = subprocess.run(
        [host, str(abi), *words], env=environment, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    assert not run.stderr
    return sum(int(line.split()[1]) for line in run.stdout.splitlines()), rings_in(folder)


def num_kept(rings: list[Ring]) -> int:
    return sum(len(ring.records) for ring in rings)


@pytest.mark.parametrize("abi", [4, 5, 6, 7])
def test_every_event_is_in_the_ring(host, tmp_path, abi):
    made, rings = play(host, tmp_path, abi, ranks=2, calls=20, channels=5)
    assert made == num_kept(rings) > 0
    assert [ring.num_lost for ring in rings] == [0, 0]
    assert sorted(ring.rank for ring in rings) == [0, 1]
    assert {ring.abi for ring in rings} == {abi}
    (comm,) = rings[0].comms
    assert comm is not None
    assert (comm.id, comm.num_ranks, comm.name) == (0xABC0, 2, "world")


@pytest.mark.parametrize("abi", [4, 5, 6, 7])
def test_the_fields_of_a_collective_are_read_in_every_version(host, tmp_path, abi):
    _, (ring, _) = play(host, tmp_path, abi, ranks=2, calls=3, channels=2)
    starts = ring.records[ring.records["kind"] == COLL]
    assert starts["value"].tolist() == [0, 1, 2]
    texts = [
        ring.texts[int(starts[0][name])] for name in ("func", "datatype", "algorithm", "protocol")
    ]
    assert texts == ["AllReduce", "ncclFloat32", "RING", "LL"]
    assert (int(starts[0]["count"]), int(starts[0]["channel"])) == (16384, 2)
    assert int(starts[0]["tag"]) == (7 if abi == 7 else 0)


def test_a_channel_has_the_gpu_times_of_its_start_and_stop(host, tmp_path):
    _, rings = play(host, tmp_path, 7, ranks=2, calls=1, channels=1, late=1, delay=5000)
    ring = next(ring for ring in rings if ring.rank == 0)
    (start,) = ring.records[ring.records["kind"] == KERNEL_CH]
    assert (int(start["value"]), int(start["count"])) == (1000000000000, 1000000025000)
    assert start["host_ns"] <= start["tag"]


def test_100_000_events_of_threads_two_communicators_and_300_channels(host, tmp_path):
    made, rings = play(host, tmp_path, 7, threads=1, ranks=8, calls=22, channels=300, comms=2)
    assert made > 100_000
    assert num_kept(rings) == made
    (ring,) = rings
    assert len(ring.comms) == 16


def test_a_mask_of_the_user_is_kept(host, tmp_path, monkeypatch):
    monkeypatch.setenv("NCCL_PROFILE_EVENT_MASK", "66")
    _, (ring, _) = play(host, tmp_path, 7, ranks=2, calls=2)
    assert set(ring.records["kind"].tolist()) == {COLL, KERNEL_CH}


def test_what_does_not_fit_the_ring_is_counted(host, tmp_path):
    made, (ring,) = play(
        host, tmp_path, 7, ring_bytes=1 << 16, threads=1, ranks=4, calls=50, channels=20
    )
    assert 0 < len(ring.records) <= 1024
    assert len(ring.records) + ring.num_lost == made


def test_stops_that_are_missing_late_or_doubled_change_no_other_event(host, tmp_path):
    made, rings = play(host, tmp_path, 6, ranks=2, calls=10, channels=10, mess=1)
    assert num_kept(rings) == made
    for ring in rings:
        starts = ring.records[ring.records["kind"] == KERNEL_CH]
        # Every fifth channel never stops, and every other one has its own end, however often it stops.
        is_open = starts["channel"] % 5 == 1
        assert (starts["count"][is_open] == 0).all()
        assert (starts["tag"][is_open] == 0).all()
        lasted = starts["count"] - starts["value"]
        expected = 20000 + 1000 * (starts["channel"] % 8) + 100 * (1 - ring.rank)
        assert (lasted == expected)[~is_open].all()


def test_phases_of_version_7(host, tmp_path):
    _, (ring, _) = play(host, tmp_path, 7, ranks=2, calls=1, channels=2, phases=1)
    starts = ring.records[ring.records["kind"] == PHASE]
    assert starts["extra"].tolist() == [0, 1, 2, 0, 1, 2]


def test_the_ring_of_a_rank_that_was_killed_stays(host, tmp_path):
    _, rings = play(host, tmp_path, 7, ranks=2, calls=5, channels=2, die=1)
    (killed,) = [ring for ring in rings if ring.rank == 1]
    starts = killed.records[killed.records["kind"] == COLL]
    assert starts["value"].tolist() == [0, 1, 2, 3]


def test_without_a_place_for_the_ring_nothing_is_recorded_and_a_line_says_so(host, tmp_path):
    environment = os.environ | environment_for(build_plugin(), tmp_path / "absent", 1 << 20)
    environment.pop("KPROF_RECORD_DIR", None)
    run = subprocess.run(
        [host, "7", "threads=1"], env=environment, capture_output=True, text=True, check=True
    )
    assert run.stdout == "events 0\n"
    assert run.stderr.startswith("kprof: NCCL is not recorded in process ")
    assert run.stderr.count("\n") == 1


@pytest.mark.slow
@pytest.mark.parametrize("sanitizer", ["address,undefined", "thread"])
def test_sanitizers_find_nothing(tmp_path, sanitizer):
    host = build_host(tmp_path, f"-fsanitize={sanitizer}")
    plugin = build_plugin(tuple(sanitizer.split(",")))
    for ring_bytes in (1 << 16, 16 << 20):
        folder = tmp_path / str(ring_bytes)
        folder.mkdir()
        made, (ring,) = play(
            host,
            folder,
            7,
            ring_bytes,
            plugin,
            threads=1,
            ranks=6,
            calls=20,
            channels=40,
            comms=2,
            mess=1,
            phases=1,
        )
        assert len(ring.records) + ring.num_lost == made


def test_killing_while_it_writes_leaves_a_ring_that_can_be_read(host, tmp_path):
    environment = os.environ | environment_for(build_plugin(), tmp_path, 1 << 20)
    process = subprocess.Popen([host, "7", "threads=1", "calls=100000000"], env=environment)
    try:
        until(process, lambda: any(ring.num_lost for ring in rings_in(tmp_path)))
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    (ring,) = rings_in(tmp_path)
    assert len(ring.records) > (1 << 20) // 64 - 16
