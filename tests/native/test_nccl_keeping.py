"""What stays of rings that are overwritten: the slowest calls, and what a snapshot has saved."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from nccl_host import KPROF, record, tools

import kprof
from kprof.capture.shared_memory import memory_of
from kprof.nccl.events import channels_of, resolve
from kprof.nccl.keeping import SlowestCalls, slowest, snapshot
from kprof.nccl.plugin import build_plugin, environment_for
from kprof.nccl.ring import KEPT, read_rings, rings_in, write_kept
from under_way import until

__all__ = ["tools"]
pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler, cc")


def play(tools, folder: Path, *options: str, ring_bytes: int = 1 << 20, **how: int) -> None:
    host, driver = tools
    environment = os.environ | environment_for(build_plugin(), folder, ring_bytes, **how)
    environment |= {"LD_PRELOAD": str(driver)}
    environment.pop("RANK", None)
    subprocess.run([host, "7", *options], env=environment, check=True, stdout=subprocess.DEVNULL)


def calls(path: Path) -> pd.DataFrame:
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
    play(tools, tmp_path, *options)
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
        play(
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
    play(tools, tmp_path, "threads=1", "ranks=2", "calls=20", "late=1", "delay=9000", "stuck=0")
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
    found = calls(output)
    assert sorted(set(found["ordinal"])) == list(range(number))
    assert (found[found["rank"] == 0]["ns"] > 70_000).all()
    assert (found["blocks"] == 2).all()
    notes = kprof.open(output).manifest.ranks[0].notes
    assert "others were not to be kept" in notes[-1]
    assert not list(output.glob(f"{KEPT}*"))


def test_a_snapshot_stays_when_the_ring_goes_on(tools, tmp_path):
    play(tools, tmp_path, "threads=1", "ranks=2", "calls=10", keeps_latest=True)
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
    play(tools, tmp_path, "threads=1", "ranks=2", "calls=10")
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
