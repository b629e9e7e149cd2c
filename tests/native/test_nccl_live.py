"""Collectives of a program that runs: what `kprof watch` and its metrics know, from the rings."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from nccl_host import KPROF, build_driver, build_host

import kprof
from in_process import run_kprof
from kprof.hangs.report import Hang
from kprof.nccl.live import Behind, counts_of
from kprof.nccl.plugin import build_plugin, environment_for
from kprof.nccl.ring import rings_in
from kprof.nccl.stalls import CollectivesWatch, with_collectives
from kprof.nccl.waited import CollectiveWaits
from kprof.recording.launches.pace import Look, describe_pace, paces
from kprof.recording.launches.progress import NUM_PEERS, metrics_text, read_progress

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler, cc")


@pytest.fixture(scope="module")
def host(tmp_path_factory) -> Path:
    return build_host(tmp_path_factory.mktemp("host"))


def play(host: Path, folder: Path, *options: str, ring_bytes: int = 8 << 20) -> subprocess.Popen:
    environment = os.environ | environment_for(build_plugin(), folder, ring_bytes)
    environment.pop("RANK", None)
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


@pytest.fixture(scope="module")
def driver(host) -> Path:
    return build_driver(host.parent)


def played(host: Path, driver: Path, folder: Path, *options: str) -> None:
    environment = os.environ | environment_for(build_plugin(), folder, 8 << 20)
    environment |= {"LD_PRELOAD": str(driver)}
    environment.pop("RANK", None)
    command = [host, "7", *options]
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)


def with_events(folder: Path, share: float) -> dict[Path, bytes]:
    """Make all rings end after this share of their events; their headers as they were."""
    headers = {}
    for ring in rings_in(folder):
        data = bytearray(ring.path.read_bytes())
        headers[ring.path] = bytes(data)
        data[64:72] = int(ring.num_events * share).to_bytes(8, "little")
        ring.path.write_bytes(data)
    return headers


def test_waits_by_peer_are_counted_once_from_look_to_look(host, driver, tmp_path):
    options = ("ranks=3", "calls=40", "channels=2", "late=1", "delay=50000")
    played(host, driver, tmp_path, *options)
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


def test_watch_and_metrics_say_whom_ranks_wait_for_in_collectives(host, driver, tmp_path):
    played(host, driver, tmp_path, "ranks=3", "calls=40", "late=1", "delay=50000")
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
