"""The profiler plugin under a host that plays NCCL: every event is in the ring, or counted. What `kprof watch` and its metrics
know of a program that runs, and what stays of rings that are overwritten: the slowest calls, and what a snapshot has saved."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from nccl_host import KPROF, build_host, record, tools

import kprof
from in_process import run_kprof
from kprof.capture.shared_memory import memory_of
from kprof.hangs.report import Hang
from kprof.nccl.events import channels_of, resolve
from kprof.nccl.keeping import SlowestCalls, slowest, snapshot
from kprof.nccl.live import Behind, counts_of
from kprof.nccl.plugin import build_plugin, environment_for
from kprof.nccl.ring import KEPT, Ring, read_rings, rings_in, write_kept
from kprof.nccl.stalls import CollectivesWatch, with_collectives
from kprof.nccl.waited import CollectiveWaits
from kprof.recording.launches.pace import Look, describe_pace, paces
from kprof.recording.launches.progress import NUM_PEERS, metrics_text, read_progress
from under_way import until

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler, cc")


@pytest.fixture(scope="module")
def host(tools) -> Path:
    return tools[0]


def environment_of(folder: Path, ring_bytes: int, plugin: Path | None = None, **how: int):
    environment = os.environ | environment_for(plugin or build_plugin(), folder, ring_bytes, **how)
    environment.pop("RANK", None)
    return environment


def play(host: Path, folder: Path, *options: str, ring_bytes: int = 8 << 20) -> subprocess.Popen:
    environment = environment_of(folder, ring_bytes)
    return subprocess.Popen([host, "7", *options], env=environment, stdout=subprocess.DEVNULL)


def test_calls_and_events_of_each_rank_are_counted(host, tmp_path):
    assert play(host, tmp_path, "ranks=3", "calls=40", "channels=2", "p2p=1").wait() == 0
    counts = counts_of(tmp_path)
    # Ranks 0 and 1 also send and receive.
    assert [(each.rank, each.num_calls) for each in counts] == [(0, 80), (1, 80), (2, 40)]
    assert not any(each.is_running or each.num_lost for each in counts)
    assert all(each.num_events > 3 * each.num_calls for each in counts)


def test_a_program_that_runs_is_seen_by_watch_and_its_metrics(host, tmp_path):
    process = play(host, tmp_path, "threads=1", "ranks=2", "calls=100000000", ring_bytes=1 << 20)
    try:
        ranks = read_progress(tmp_path)
        while len(ranks) < 2 or not (ranks[0].num_dropped and ranks[1].num_launches):
            assert process.poll() is None
            ranks = read_progress(tmp_path)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    # The first rank has the events of the process.
    assert [(each.rank, each.is_running, each.num_launches > 0) for each in ranks] == [
        (0, True, True),
        (1, True, True),
    ]
    text = metrics_text(ranks)
    assert f'kprof_launches_total{{rank="1"}} {ranks[1].num_launches}' in text
    assert 'kprof_rank_is_running{rank="0"} 1' in text
    assert not any(each.is_running for each in read_progress(tmp_path))


def test_a_rank_that_others_wait_for_is_named_from_the_second_look_on(host, tmp_path):
    assert play(host, tmp_path, "ranks=3", "calls=1408", "channels=1", "stuck=2").wait() == 0
    behind = Behind(tmp_path)
    assert behind.look() == []
    assert behind.look() == [
        "AllReduce 1407 of communicator world waits: ranks 0, 1 entered it; "
        "rank 2 has not, its last one there is 1406"
    ]


def test_a_folder_without_rings_says_nothing(tmp_path):
    assert counts_of(tmp_path) == []
    assert Behind(tmp_path).look() == []


def with_events(folder: Path, share: float) -> dict[Path, bytes]:
    """Make all rings end after this share of their events; their headers as they were."""
    headers = {}
    for ring in rings_in(folder):
        data = bytearray(ring.path.read_bytes())
        headers[ring.path] = bytes(data)
        data[64:72] = int(ring.num_events * share).to_bytes(8, "little")
        ring.path.write_bytes(data)
    return headers


def test_waits_by_peer_are_counted_once_from_look_to_look(tools, tmp_path):
    options = ("ranks=3", "calls=40", "channels=2", "late=1", "delay=50000")
    play_on_a_gpu(tools, tmp_path, *options)
    whole, waits = with_events(tmp_path, 0.4), CollectiveWaits(tmp_path)
    first = waits.look(NUM_PEERS)[0].copy()
    assert 0 < first[1] < 40 * 2 * 50_002
    for path, data in whole.items():
        path.write_bytes(data)
    for _ in range(2):
        found = waits.look(NUM_PEERS)
    # Rank 0 waits in two channels of 40 calls, from its begin until 2 ns behind the last rank's; rank 2 begins 20 ns later.
    assert found.keys() == {0, 2}
    assert found[0].tolist() == [0, 40 * 2 * 50_002, *[0] * (NUM_PEERS - 2)]
    assert found[2].sum() == 40 * 2 * 49_982


def test_watch_and_metrics_say_whom_ranks_wait_for_in_collectives(tools, tmp_path):
    play_on_a_gpu(tools, tmp_path, "ranks=3", "calls=40", "late=1", "delay=50000")
    before = Look(0.0, read_progress(tmp_path))
    ranks = read_progress(tmp_path, CollectiveWaits(tmp_path))
    text = metrics_text(ranks)
    assert f'kprof_waited_seconds_total{{rank="0",peer="1"}} {40 * 4 * 50_002 / 1e9:.15g}' in text
    assert describe_pace(paces([before, Look(1.0, ranks)])).endswith("waits most for rank 1 (100%)")


def test_without_a_common_clock_nobody_is_waited_for(host, tmp_path):
    assert play(host, tmp_path, "ranks=2", "calls=1", "stuck=1", "p2p=1").wait() == 0
    assert CollectiveWaits(tmp_path).look(NUM_PEERS) == {}


@pytest.fixture
def hung(host, tmp_path):
    """Three ranks that stay in an all-reduce which the last one has not entered."""
    process = play(host, tmp_path, "threads=1", "ranks=3", "calls=12", "stuck=2", "linger=1")
    while [each.num_calls for each in counts_of(tmp_path)] != [12, 12, 11]:
        assert process.poll() is None
    yield tmp_path
    process.kill()
    process.wait()


SENTENCE = (
    "AllReduce 11 of communicator world waits: ranks 0, 1 entered it; rank 2 has not, "
    "its last one there is 10"
)


def test_a_hang_is_reported_once_when_nothing_has_moved_for_so_long(hung):
    watch = CollectivesWatch(hung, 60.0)
    found = [watch.step(at_s) for at_s in (0.0, 59.0, 61.0, 130.0)]
    assert [each is not None for each in found] == [False, False, True, False]
    assert (found[2].idle_s, found[2].diagnosis, found[2].kind) == (61.0, SENTENCE, "collectives")
    assert watch.has_reported


def test_a_look_at_a_run_that_hangs_says_which_collective(hung):
    said = with_collectives(Hang(0.0, "no kernel says that it waits"), hung)
    assert (said.diagnosis, said.others) == (SENTENCE, ())


def test_ranks_that_have_ended_hang_no_longer(host, tmp_path):
    assert play(host, tmp_path, "ranks=3", "calls=12", "stuck=2").wait() == 0
    watch = CollectivesWatch(tmp_path, 60.0)
    assert [watch.step(at_s) for at_s in (0.0, 61.0)] == [None, None]


def test_record_reports_a_collective_that_hangs_and_the_capture_keeps_it(host, tmp_path):
    output = tmp_path / "run.kprof"
    command = [*KPROF, "record", "--nccl", "--hang-after", "0.2", "-o", output, "--", host, "7"]
    workload = ["threads=1", "ranks=3", "calls=12", "stuck=2", "linger=1"]
    with subprocess.Popen([*command, *workload], stderr=subprocess.PIPE, text=True) as process:
        for line in process.stderr:
            if "nothing has moved for" in line:
                assert SENTENCE in line
                process.send_signal(signal.SIGINT)
                break
        rest = process.stderr.read()
    assert process.returncode == 130, rest
    hang = kprof.open(output).manifest.hang
    assert (hang.sentence, hang.kind) == (SENTENCE, "collectives")
    said = run_kprof(["report", output]).stdout
    assert f"when that was reported: {SENTENCE}" in " ".join(said.split())
    assert run_kprof(["hang", output]).stdout.startswith(SENTENCE)


__all__ = ["tools"]


def play_on_a_gpu(
    tools, folder: Path, *options: str, ring_bytes: int = 1 << 20, **how: int
) -> None:
    host, driver = tools
    environment = environment_of(folder, ring_bytes, **how) | {"LD_PRELOAD": str(driver)}
    subprocess.run([host, "7", *options], env=environment, check=True, stdout=subprocess.DEVNULL)


def calls_in(path: Path) -> pd.DataFrame:
    """Rank and ordinal of each launch, and how long it took."""
    return (
        kprof.open(path)
        .sql(
            "SELECT rank, ordinal, max(end_ns) - min(start_ns) AS ns, count(DISTINCT block) AS blocks "
            "FROM events GROUP BY ALL ORDER BY ALL"
        )
        .to_pandas()
    )


def test_the_slowest_calls_are_those_that_took_longest_on_a_rank(tools, tmp_path):
    # In each tenth call, rank 1 is late: the others wait 70 us for it.
    options = ("ranks=3", "calls=100", "channels=3", "late=1", "delay=70000", "every=10", "p2p=1")
    play_on_a_gpu(tools, tmp_path, *options)
    rings = slowest(rings_in(tmp_path), 10)
    found = channels_of(rings, resolve(rings)[0])
    assert set(found["seq"]) == set(range(9, 100, 10))
    # With all that belongs to them, on all ranks.
    assert len(found) == 10 * 3 * 3
    # A call, an operation of its proxy with a step, and the channels.
    assert set(rings[0].records["kind"].tolist()) == {1, 3, 4, 6}
    assert len(rings[0].records) == 10 * (1 + 1 + 1 + 3)


def test_keep_slowest_finds_calls_that_the_ring_has_long_overwritten(tools, tmp_path):
    kept = SlowestCalls(tmp_path, 5)
    for late, num_calls in (("late=1", 40), ("late=-1", 3000)):
        # The second process overwrites nothing of the first: each has its ring.
        play_on_a_gpu(
            tools,
            tmp_path,
            "threads=1",
            "ranks=2",
            f"calls={num_calls}",
            late,
            "delay=50000",
            keep_slowest=5,
        )
        kept.look()
    (first, second) = sorted(rings_in(tmp_path), key=lambda ring: ring.num_events)
    assert second.num_events > second.num_records
    assert len(list(tmp_path.glob(f"{KEPT}*"))) == 2
    rings = slowest([first, second], first.keep_slowest)
    found = channels_of(rings, resolve(rings)[0])
    assert found["ring"].unique().tolist() == [0]
    assert found["seq"].nunique() == 5


def test_calls_that_had_not_ended_at_a_look_are_read_again(tools, tmp_path):
    kept = SlowestCalls(tmp_path, 3)
    play_on_a_gpu(
        tools, tmp_path, "threads=1", "ranks=2", "calls=20", "late=1", "delay=9000", "stuck=0"
    )
    kept.look()
    (path,) = tmp_path.glob("nccl-*")
    (ring,) = rings_in(tmp_path)
    # The last call has begun on rank 1 and not ended: all from its record on is read again.
    num_seen, since = kept._seen[path]
    assert num_seen == ring.num_events
    assert since < num_seen
    assert (ring.records["count"][since:] == 0).any()


@pytest.mark.parametrize("number", [4])
def test_record_keeps_the_slowest_collectives(tools, tmp_path, number):
    host, driver = tools
    output = tmp_path / "run.kprof"
    options = ("ranks=2", "calls=200", "channels=2", "late=1", "delay=70000", "every=50")
    flags = ("--keep-slowest", str(number))
    run = record(host, output, *options, driver=driver, flags=(*flags, "--strict"))
    assert run.returncode == 0, run.stderr
    found = calls_in(output)
    assert sorted(set(found["ordinal"])) == list(range(number))
    assert (found[found["rank"] == 0]["ns"] > 70_000).all()
    assert (found["blocks"] == 2).all()
    notes = kprof.open(output).manifest.ranks[0].notes
    assert "others were not to be kept" in notes[-1]
    assert not list(output.glob(f"{KEPT}*"))


def test_a_snapshot_stays_when_the_ring_goes_on(tools, tmp_path):
    play_on_a_gpu(tools, tmp_path, "threads=1", "ranks=2", "calls=10", keeps_latest=True)
    num_saved = snapshot(tmp_path)
    (path,) = tmp_path.glob("nccl-*")
    (before,) = rings_in(tmp_path)
    assert num_saved == len(before.records)
    # As if all of it had been overwritten.
    data = bytearray(path.read_bytes())
    data[143360:] = bytes(len(data) - 143360)
    path.write_bytes(data)
    (after,) = rings_in(tmp_path)
    assert after.records.tolist() == before.records.tolist()


def test_kept_files_that_make_no_sense_are_left_out(tools, tmp_path):
    play_on_a_gpu(tools, tmp_path, "threads=1", "ranks=2", "calls=10")
    (path,) = tmp_path.glob("nccl-*")
    (before,) = rings_in(tmp_path)
    kept = tmp_path / f"{KEPT}{path.name}"
    for size in (100, 150_000):
        kept.write_bytes(os.urandom(size))
        assert rings_in(tmp_path)[0].records.tolist() == before.records.tolist()
    # A ring that claims to have any size, and nothing in it that its own ring has not.
    write_kept(kept, replace(before, num_events=1 << 50))
    header = bytearray(kept.read_bytes())
    header[24:32] = (1 << 34).to_bytes(8, "little")
    kept.write_bytes(header)
    os.truncate(kept, 143360 + (64 << 34))
    rings, refused = read_rings(tmp_path)
    assert (rings[0].records.tolist(), refused) == (before.records.tolist(), [])


def test_sigusr1_saves_what_the_rings_hold(tools, tmp_path):
    host, _ = tools
    output, unfinished = tmp_path / "run.kprof", tmp_path / "run.kprof.unfinished"
    command = [*KPROF, "record", "--nccl", "--ring", "1MiB", "-o", output, "--"]
    workload = [host, "7", "threads=1", "ranks=2", "calls=1000000000"]
    with (tmp_path / "said").open("w") as said:
        process = subprocess.Popen([*command, *workload], stderr=said)
    try:
        until(
            process,
            lambda: (
                unfinished.exists()
                and any(ring.num_events > 1 << 14 for ring in rings_in(memory_of(unfinished)))
            ),
        )
        (ring,) = rings_in(memory_of(unfinished))
        process.send_signal(signal.SIGUSR1)
        # Until then its file grows under another name.
        until(process, lambda: "are saved" in (tmp_path / "said").read_text())
        (kept,) = unfinished.glob(f"{KEPT}*")
        num_saved = (kept.stat().st_size - 143360) // 64
        # All of it is overwritten.
        (saved,) = rings_in(memory_of(unfinished))
        enough = saved.num_events + (1 << 14)
        until(process, lambda: rings_in(memory_of(unfinished))[0].num_events >= enough)
        os.kill(ring.pid, signal.SIGTERM)
    finally:
        process.wait()
    assert f"SIGUSR1: {num_saved:,} events of NCCL are saved" in (tmp_path / "said").read_text()
    run = kprof.open(output)
    held = sum(info.arena.used_bytes for info in run.manifest.ranks) // 64
    assert held > num_saved + (1 << 13)
    # Each rank is a thread, and may be writing one when the process is told to end.
    assert sum(info.counts.dropped for info in run.manifest.ranks) <= 2


KERNEL_CH, COLL, PHASE = 6, 1, 15


def made_by(
    host: Path,
    folder: Path,
    abi: int,
    ring_bytes: int = 64 << 20,
    plugin: Path | None = None,
    **options: int,
):
    """Number of events that the host made, and the rings."""
    environment = environment_of(folder, ring_bytes, plugin)
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
    made, rings = made_by(host, tmp_path, abi, ranks=2, calls=20, channels=5)
    assert made == num_kept(rings) > 0
    assert [ring.num_lost for ring in rings] == [0, 0]
    assert sorted(ring.rank for ring in rings) == [0, 1]
    assert {ring.abi for ring in rings} == {abi}
    (comm,) = rings[0].comms
    assert comm is not None
    assert (comm.id, comm.num_ranks, comm.name) == (0xABC0, 2, "world")


@pytest.mark.parametrize("abi", [4, 5, 6, 7])
def test_the_fields_of_a_collective_are_read_in_every_version(host, tmp_path, abi):
    _, (ring, _) = made_by(host, tmp_path, abi, ranks=2, calls=3, channels=2)
    starts = ring.records[ring.records["kind"] == COLL]
    assert starts["value"].tolist() == [0, 1, 2]
    texts = [
        ring.texts[int(starts[0][name])] for name in ("func", "datatype", "algorithm", "protocol")
    ]
    assert texts == ["AllReduce", "ncclFloat32", "RING", "LL"]
    assert (int(starts[0]["count"]), int(starts[0]["channel"])) == (16384, 2)
    assert int(starts[0]["tag"]) == (7 if abi == 7 else 0)


def test_a_channel_has_the_gpu_times_of_its_start_and_stop(host, tmp_path):
    _, rings = made_by(host, tmp_path, 7, ranks=2, calls=1, channels=1, late=1, delay=5000)
    ring = next(ring for ring in rings if ring.rank == 0)
    (start,) = ring.records[ring.records["kind"] == KERNEL_CH]
    assert (int(start["value"]), int(start["count"])) == (1000000000000, 1000000025000)
    assert start["host_ns"] <= start["tag"]


def test_100_000_events_of_threads_two_communicators_and_300_channels(host, tmp_path):
    made, rings = made_by(host, tmp_path, 7, threads=1, ranks=8, calls=22, channels=300, comms=2)
    assert made > 100_000
    assert num_kept(rings) == made
    (ring,) = rings
    assert len(ring.comms) == 16


def test_a_mask_of_the_user_is_kept(host, tmp_path, monkeypatch):
    monkeypatch.setenv("NCCL_PROFILE_EVENT_MASK", "66")
    _, (ring, _) = made_by(host, tmp_path, 7, ranks=2, calls=2)
    assert set(ring.records["kind"].tolist()) == {COLL, KERNEL_CH}


def test_what_does_not_fit_the_ring_is_counted(host, tmp_path):
    made, (ring,) = made_by(
        host, tmp_path, 7, ring_bytes=1 << 16, threads=1, ranks=4, calls=50, channels=20
    )
    assert 0 < len(ring.records) <= 1024
    assert len(ring.records) + ring.num_lost == made


def test_stops_that_are_missing_late_or_doubled_change_no_other_event(host, tmp_path):
    made, rings = made_by(host, tmp_path, 6, ranks=2, calls=10, channels=10, mess=1)
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
    _, (ring, _) = made_by(host, tmp_path, 7, ranks=2, calls=1, channels=2, phases=1)
    starts = ring.records[ring.records["kind"] == PHASE]
    assert starts["extra"].tolist() == [0, 1, 2, 0, 1, 2]


def test_the_ring_of_a_rank_that_was_killed_stays(host, tmp_path):
    _, rings = made_by(host, tmp_path, 7, ranks=2, calls=5, channels=2, die=1)
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
        made, (ring,) = made_by(
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
