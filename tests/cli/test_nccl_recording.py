"""`kprof record --nccl`: collectives in the capture, with waits for the rank that came last. Runs that are not as they
should be are recorded as far as they can be, and a sentence says what is not."""

from __future__ import annotations

import gzip
import json
import os
import resource
import shutil
import signal
import subprocess
from pathlib import Path

import numpy as np
import pytest
from nccl_host import KPROF, build_driver, record, tools

import kprof
from foreign_files.flight_recorder import make_pickle
from in_process import run_kprof
from kprof.capture.journal import Begun, begin_journal
from kprof.capture.shared_memory import memory_of
from kprof.capture.torch_traces import host_trace_name
from kprof.importers.formats.flight_recorder import found_since
from kprof.nccl.plugin import build_plugin, environment_for
from kprof.nccl.ring import RECORD, rings_in
from kprof.recording.finishing.recover import recover

__all__ = ["tools"]
pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler, cc")


def recorded(
    tools, folder: Path, options: str, *flags: str, abi: int = 7, has_gpu: bool = True, driver=None
):
    """What the host that plays NCCL does with these options, as run.kprof, and what was said."""
    driver = driver or (tools[1] if has_gpu else None)
    output = folder / "run.kprof"
    said = record(tools[0], output, *options.split(), abi=abi, driver=driver, flags=flags)
    assert said.returncode == 0, said.stderr
    return kprof.open(output), said


def channels(run) -> list[tuple]:
    """Of each channel of each call: rank, kernel, ordinal, block, wait, transfer, duration, wait's peer."""
    return run.sql(
        """SELECT rank, kernel, ordinal, block,
            sum(CASE WHEN region = 'nccl/wait' THEN duration_ns ELSE 0 END) AS wait,
            sum(CASE WHEN region = 'nccl/transfer' THEN duration_ns ELSE 0 END) AS transfer,
            max(end_ns) - min(start_ns) AS duration,
            max(CASE WHEN region = 'nccl/wait' THEN peer END) AS peer
        FROM events GROUP BY ALL ORDER BY ALL"""
    ).to_pandas()


@pytest.mark.parametrize("abi", [4, 5, 6, 7])
def test_the_late_rank_is_named_and_wait_and_transfer_are_the_duration(tools, tmp_path, abi):
    run, said = recorded(tools, tmp_path, "ranks=3 calls=20 channels=3 late=1 delay=50000", abi=abi)
    found = channels(run)
    assert (found["wait"] + found["transfer"] == found["duration"]).all()
    others, late = found[found["rank"] != 1], found[found["rank"] == 1]
    assert (late["wait"] == 0).all()
    assert (others["peer"] == 1).all()
    # The span lasts 2 ns longer than until the late rank's begin.
    assert (others["wait"].groupby(others["rank"]).unique().explode().tolist()) == [50002, 49982]
    assert len(found) == 3 * 20 * 3
    assert "Rank 1 arrives 50.0 us late at AllReduce RING LL" in said.stdout


def test_flows_lead_from_the_last_begin_to_every_wait(tools, tmp_path):
    run, _ = recorded(tools, tmp_path, "ranks=4 calls=5 channels=2 late=2 delay=9000")
    flows = run.sql(
        "SELECT src, dst, count(*) AS n FROM flows GROUP BY ALL ORDER BY ALL"
    ).to_pylist()
    assert flows == [{"src": 2, "dst": dst, "n": 10} for dst in (0, 1, 3)]


def test_two_communicators_and_pairs_are_kernels_of_their_own(tools, tmp_path):
    run, _ = recorded(tools, tmp_path, "ranks=3 calls=4 channels=2 comms=2 p2p=1")
    rows = run.sql("SELECT DISTINCT kernel FROM launches ORDER BY kernel").to_pylist()
    assert [row["kernel"] for row in rows] == [
        *("AllReduce RING LL (second)", "AllReduce RING LL (world)"),
        *("SendRecv 0 to 1 (second)", "SendRecv 0 to 1 (world)"),
    ]
    found = channels(run)
    pairs = found[found["kernel"].str.startswith("SendRecv")]
    # Rank 1 receives, and has begun 3 us before rank 0 sends.
    assert pairs.groupby("rank")["wait"].unique().explode().tolist() == [0, 3002]


def test_every_replay_of_a_graph_is_a_launch(tools, tmp_path):
    run, _ = recorded(tools, tmp_path, "ranks=2 calls=3 graph=4 late=0 delay=5000")
    assert run.sql("SELECT count(*) AS n FROM launches").to_pylist() == [{"n": 2 * 3 * 4}]
    waits = channels(run)
    assert (waits[waits["rank"] == 1]["wait"] == 4992).all()


def test_phases_are_spans(tools, tmp_path):
    run, _ = recorded(tools, tmp_path, "ranks=2 calls=2 channels=2 phases=1 late=1 delay=8000")
    rows = run.sql(
        "SELECT region, category, count(*) AS n FROM events GROUP BY ALL ORDER BY region"
    ).to_pylist()
    assert [(row["region"], row["category"], row["n"]) for row in rows] == [
        ("nccl/arrive", "send", 4),
        ("nccl/compute", "compute", 8),
        ("nccl/final-sync", "sync", 8),
        ("nccl/wait", "wait", 8),
    ]


def test_collectives_align_clocks_that_nothing_has_calibrated(tools, tmp_path):
    options = "ranks=3 calls=30 turns=1 delay=300000 ahead=7000000"
    run, _ = recorded(tools, tmp_path, options, has_gpu=False)
    alignment = run.manifest.alignment
    assert alignment.method == "collectives of NCCL"
    for entry in alignment.ranks:
        off_ns = (
            entry.correction_ns(1_000_001_000_000 + 7_000_000 * entry.rank) + 7_000_000 * entry.rank
        )
        assert abs(off_ns) <= entry.bound_ns
        assert entry.bound_ns < 25_000
    found = channels(run)
    waits = found[(found["wait"] > 250_000)]
    assert len(waits) == 30 * 2 * 4
    assert (waits["peer"] == waits["ordinal"] % 3).all()
    assert (found["wait"] + found["transfer"] == found["duration"]).all()


def test_without_a_common_clock_there_are_no_waits_and_it_says_why(tools, tmp_path):
    run, _ = recorded(tools, tmp_path, "ranks=2 calls=1 stuck=1 p2p=1", has_gpu=False)
    assert run.manifest.alignment is None
    assert "no two ranks bound each other" in run.manifest.alignment_note
    assert not run.sql(
        "SELECT * FROM events WHERE region IN ('nccl/transfer', 'nccl/arrive')"
    ).to_pylist()


def test_a_collective_that_a_rank_never_entered_is_named(tools, tmp_path):
    run, said = recorded(tools, tmp_path, "ranks=3 calls=6 channels=2 stuck=2")
    sentence = "AllReduce 5 of communicator world never ended: ranks 0, 1 entered it; rank 2 never did, its last one there is 4"
    assert sentence in run.manifest.messages
    assert sentence in said.stderr


def test_a_rank_that_was_killed_leaves_its_collectives(tools, tmp_path):
    run, _ = recorded(tools, tmp_path, "ranks=2 calls=4 die=1")
    counts = run.sql(
        "SELECT rank, count(*) AS n FROM launches GROUP BY ALL ORDER BY ALL"
    ).to_pylist()
    assert counts == [{"rank": 0, "n": 4}, {"rank": 1, "n": 3}]


def test_ranks_may_be_threads(tools, tmp_path):
    run, _ = recorded(tools, tmp_path, "threads=1 ranks=4 calls=5 late=3 delay=5000")
    assert [info.rank for info in run.manifest.ranks] == [0, 1, 2, 3]
    assert set(channels(run)["peer"].dropna()) == {3}


def test_nobody_loads_the_plugin(tmp_path):
    run = run_kprof(["record", "--nccl", "-o", tmp_path / "run.kprof", "--", "true"])
    assert run.returncode == 0
    assert (
        "so there is no capture; no communicator of NCCL or RCCL has loaded the plugin"
        in run.stderr
    )


def test_versions_that_differ_are_said(tools, tmp_path):
    host, _ = tools
    both = f"RANK=0 {host} 6 threads=1 ranks=1 calls=1; RANK=1 {host} 7 threads=1 ranks=1 calls=1"
    command = ["record", "--nccl", "-o", tmp_path / "run.kprof", "--", "sh", "-c", both]
    run = run_kprof(command)
    assert run.returncode == 0, run.stderr
    assert "version 6 in 1 of 2 processes, version 7 in 1 of 2 processes" in run.stderr


@pytest.fixture(scope="module")
def ring_file(tools, tmp_path_factory) -> Path:
    """The ring of a process with three ranks and eight calls."""
    folder = tmp_path_factory.mktemp("ring")
    environment = {name: value for name, value in os.environ.items() if name != "RANK"}
    environment |= environment_for(build_plugin(), folder, 1 << 18)
    command = [tools[0], "7", "threads=1", "ranks=3", "calls=8", "p2p=1"]
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
    (ring,) = rings_in(folder)
    return ring.path


@pytest.mark.parametrize("seed", range(8))
def test_a_damaged_ring_harms_nothing_else(ring_file, tmp_path, seed):
    from kprof.nccl.capture import collect

    shutil.copy(ring_file, tmp_path)
    (ring,) = rings_in(tmp_path)
    data = np.fromfile(ring.path, np.uint8)
    draw = np.random.default_rng(seed)
    used = np.r_[0:256, 4096:4400, 12288:13000, 143360 : 143360 + 64 * 700]
    at = draw.choice(used, 200)
    data[at] = draw.integers(0, 256, len(at))
    data.tofile(ring.path)
    collect(tmp_path, (), None, "")


def _recording(tmp_path: Path, ring_file: Path, **damaged: tuple[int, int, int]) -> Path:
    """A recording of that ring, and of one for each (offset, bytes, value) that is written over it."""
    run = tmp_path / "run.kprof.unfinished"
    run.mkdir()
    begin_journal(run, Begun((), "", 1))
    shutil.copy(ring_file, run / "nccl-sound-1-0")
    for name, (offset, size, value) in damaged.items():
        data = bytearray(ring_file.read_bytes())
        data[offset : offset + size] = value.to_bytes(size, "little")
        (run / f"nccl-{name}-2-0").write_bytes(data)
    return run


FIELDS = {
    "version": (8, 4, 3),
    "pid": (16, 8, 1 << 40),
    "no_pid": (16, 8, 0),
    "records": (24, 8, 1 << 60),
    "no_records": (24, 8, 0),
    "comms": (40, 8, 1 << 40),
    "events": (64, 8, (1 << 64) - 1),
}


@pytest.mark.parametrize("name", FIELDS)
def test_a_ring_whose_header_makes_no_sense_is_left_out_by_name(tmp_path, ring_file, name):
    found = recover(_recording(tmp_path, ring_file, **{name: FIELDS[name]}))
    manifest = kprof.open(found.path).manifest
    assert [info.rank for info in manifest.ranks] == [0, 1, 2]
    (said,) = [each for each in manifest.messages if f"nccl-{name}-2-0" in each]
    assert "not in the capture: it" in said


@pytest.mark.parametrize("field", ["rank", "num_ranks"])
def test_communicators_out_of_range_are_counted(tmp_path, ring_file, field):
    """10^8 ranks were 8 GB of memory."""
    offset = {"rank": 12288 + 8, "num_ranks": 12288 + 12}[field]
    run = _recording(tmp_path, ring_file, damaged=(offset, 4, 100_000_000))
    manifest = kprof.open(recover(run).path).manifest
    assert manifest.world_size == 3
    assert "communicators of NCCL that make no sense are not in the capture: 1" in manifest.messages


def test_a_ring_that_is_nearly_all_hole_costs_what_it_holds(tmp_path, ring_file):
    """One of 4.3 GB of which nothing is written took 8 GB of memory."""
    size = 1 << 32
    run = _recording(tmp_path, ring_file, hollow=(24, 8, (size - 143360) // 64))
    with (run / "nccl-hollow-2-0").open("r+b") as file:
        file.seek(64)
        file.write(((size - 143360) // 64).to_bytes(8, "little"))
        file.truncate(size)
    before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = recover(run)
    assert kprof.open(found.path).manifest.world_size == 3
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < before_kb + 500_000


def test_ranks_that_no_run_has_are_numbered_by_their_communicator(tools, tmp_path):
    """RANK=2^40 left the events out, and said that nothing was lost."""
    output = tmp_path / "run.kprof"
    command = ["record", "--nccl", "-o", output, "--", tools[0], "7"]
    environment = os.environ | {"RANK": str(1 << 40)}
    ended = run_kprof([*command, "threads=1", "ranks=1", "calls=4"], environment=environment)
    assert ended.returncode == 0, ended.stderr
    (info,) = kprof.open(output).manifest.ranks
    assert info.rank == 0
    assert info.counts.recorded


def test_rings_without_channels_have_no_common_clock(tmp_path, ring_file):
    """An argmax of nothing."""
    run = _recording(tmp_path, ring_file)
    data = bytearray((run / "nccl-sound-1-0").read_bytes())
    # No record is a channel's any more.
    rows = np.frombuffer(data, RECORD, offset=143360)
    rows["kind"][rows["kind"] == 6] = 0
    (run / "nccl-sound-1-0").write_bytes(data)
    manifest = kprof.open(recover(run).path).manifest
    assert "no two ranks bound each other" in manifest.alignment_note


def test_the_table_of_collectives(tools, tmp_path):
    recorded(tools, tmp_path, "ranks=3 calls=7 channels=4 turns=1 delay=9000")
    from kprof.analysis.collectives import collectives
    from kprof.analysis.summary import Summary
    from kprof.trace import Trace

    rows = collectives(Summary.of(Trace.open(tmp_path / "run.kprof"))).to_dict("records")
    # Channel c takes 20 + c us, and rank r begins 10 r ns after rank 0.
    assert [(row["kernel"], row["last_rank"], row["calls"]) for row in rows] == [
        *(("AllReduce RING LL", 0, 3), ("AllReduce RING LL", 2, 2), ("AllReduce RING LL", 1, 2)),
    ]
    assert rows[0]["wait_ns"] == 3 * 4 * (8992 + 8982)
    assert [(row["transfer_ns"], row["slowest_block"], row["lag_ns"]) for row in rows] == [
        (21499, 3, 1501)
    ] * 3


def test_host_calls_and_steps_of_proxies_are_lines_of_the_trace(tools, tmp_path, monkeypatch):
    # Groups and launches are recorded for those who ask for them.
    monkeypatch.setenv("NCCL_PROFILE_EVENT_MASK", "0x7fff")
    recorded(tools, tmp_path, "ranks=2 calls=5")
    command = [*KPROF, "export", tmp_path / "run.kprof", "-o", tmp_path / "run.json"]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert "the host's clock is aligned" in run.stderr
    files = {path.name for path in (tmp_path / "run.kprof").iterdir()} - {"manifest.json"}
    manifest = kprof.open(tmp_path / "run.kprof").manifest
    assert "host-rank-00000.json.gz" in files
    assert {entry.name for entry in manifest.files} == files
    events = json.loads((tmp_path / "run.json").read_text())["traceEvents"]
    names = [event["name"] for event in events if event.get("ph") == "X"]
    assert sum(name.endswith(": 4,096 B") for name in names) == 2 * 5
    lines = {event["args"]["name"] for event in events if event.get("name") == "thread_name"}
    assert {
        "NCCL collectives",
        "NCCL proxy, channel 0, send to 0",
        "NCCL proxy, channel 0, send to 1",
    } <= lines
    assert [names.count(name) for name in ("AllReduce", "group", "launch")] == [10, 10, 10]


def test_collectives_outlive_kill_9_of_everything(tools, tmp_path):
    host, _ = tools
    output, unfinished = tmp_path / "run.kprof", tmp_path / "run.kprof.unfinished"
    command = [*KPROF, "record", "--nccl", "--arena-size", "1MiB", "-o", output, "--"]
    process = subprocess.Popen([*command, host, "7", "threads=1", "ranks=2", "calls=1000000000"])
    try:
        while not any(
            ring.num_lost
            for ring in rings_in(memory_of(unfinished) if unfinished.exists() else None)
        ):
            assert process.poll() is None
        (ring,) = rings_in(memory_of(unfinished))
    finally:
        process.kill()
        process.wait()
    os.kill(ring.pid, signal.SIGKILL)
    while (
        Path(f"/proc/{ring.pid}").exists()
        and "State:\tZ" not in Path(f"/proc/{ring.pid}/status").read_text()
    ):
        continue
    again = run_kprof([*command[len(KPROF) :], "true"])
    assert "holds events of a recording that was cut off" in again.stderr
    run = subprocess.run(
        [*KPROF, "recover", unfinished], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    counts = [info.counts for info in kprof.open(output).manifest.ranks]
    # The threads share a ring: how much of it each has is the scheduler's.
    assert sum(each.recorded for each in counts) > 1000
    assert counts[0].dropped > 0


def test_rccl_times_are_ticks_and_its_diagnostics_are_not_phases(tools, tmp_path):
    options = "ranks=2 calls=20 channels=100 rccl=1 late=1 delay=50000"
    driver = build_driver(tmp_path, "libamdhip64.so.7")
    run, _ = recorded(tools, tmp_path, options, abi=6, driver=driver)
    found = channels(run)
    # The GPU never ran every seventh channel.
    assert len(found) == 2 * 20 * (100 - 100 // 7)
    assert found["block"].max() == 99
    assert (found["wait"] + found["transfer"] == found["duration"]).all()
    assert found[found["rank"] == 0]["wait"].unique().tolist() == [50002]
    assert {info.clock.source for info in run.manifest.ranks} == {"s_memrealtime"}
    assert run.manifest.alignment.method == "one GPU"


def test_the_host_row_of_a_call_begins_before_its_kernel_was_launched(tools, tmp_path, monkeypatch):
    """NCCL tells of a call after it has launched the kernel."""
    monkeypatch.setenv("NCCL_PROFILE_EVENT_MASK", "0x7fff")
    recorded(tools, tmp_path, "ranks=2 calls=5 channels=1")
    path = tmp_path / "run.kprof" / host_trace_name(0)
    trace = json.loads(gzip.decompress(path.read_bytes()))
    rows = [(float(row["ts"]), row["name"]) for row in trace["traceEvents"]]
    begins = [at for at, name in rows if name == "AllReduce RING LL"]
    launches = [at for at, name in rows if name == "launch"]
    assert len(begins) == 5
    assert all(begin < launch for begin, launch in zip(begins, launches, strict=True))


def test_one_call_in_four_is_recorded_and_the_same_ones_on_all_ranks(tools, tmp_path):
    options = "ranks=3 calls=400 channels=2 p2p=1 late=1 delay=5000"
    run, _ = recorded(tools, tmp_path, options, "--sample", "1/4")
    found = channels(run)
    sampled = (
        found[found["kernel"].str.startswith("AllReduce")].groupby("rank")["ordinal"].nunique()
    )
    assert sampled.nunique() == 1
    assert 70 < sampled.iloc[0] < 130
    assert (found["wait"] + found["transfer"] == found["duration"]).all()
    waiting = found[(found["rank"] != 1) & found["kernel"].str.startswith("AllReduce")]
    assert (waiting["peer"] == 1).all()
    pairs = found[found["kernel"].str.startswith("SendRecv")]
    assert pairs.groupby("rank")["ordinal"].nunique().nunique() == 1


def test_sends_are_matched_with_their_receives_where_a_ring_has_lost_the_first_ones(
    tools, tmp_path
):
    """What it has lost is counted."""
    options = "ranks=2 calls=3000 channels=1 p2p=1"
    run, said = recorded(tools, tmp_path, options, "--arena-size", "1MiB")
    made = [line.split() for line in said.stdout.splitlines() if line.startswith("events ")]
    num_made = sum(int(words[1]) for words in made if len(words) == 2)
    assert sum(info.counts.dropped for info in run.manifest.ranks) == num_made - 2 * (1 << 14)
    assert "would have held all" in said.stderr
    pairs = channels(run)
    pairs = pairs[pairs["kernel"].str.startswith("SendRecv")]
    both = pairs.groupby("ordinal").filter(lambda rows: len(rows) == 2)
    assert len(both) > 100
    # Rank 1 receives, and has begun 3 us before rank 0 sends; mixed pairs would be 100 us apart.
    assert (both[both["rank"] == 1]["wait"] == 3002).all()


def test_a_ring_keeps_the_latest_events_and_loses_none(tools, tmp_path):
    options = "ranks=2 calls=5000 channels=1"
    run, _ = recorded(tools, tmp_path, options, "--ring", "1MiB", "--strict")
    assert all(info.counts.dropped == 0 for info in run.manifest.ranks)
    assert all("others were not to be kept" in info.notes[-1] for info in run.manifest.ranks)
    assert 100 < run.sql("SELECT count(*) AS n FROM launches").to_pylist()[0]["n"] < 10_000


def waits(run) -> set[tuple[str, int, int]]:
    """Kernel, rank and peer of the waits of 10 us and more."""
    rows = run.sql(
        "SELECT DISTINCT kernel, rank, peer FROM events WHERE region = 'nccl/wait' AND duration_ns > 10000"
    ).to_pylist()
    return {(row["kernel"], row["rank"], row["peer"]) for row in rows}


def test_an_nccl_without_the_interface_is_told_of_and_the_run_goes_on(tools, tmp_path):
    """The host asks for version 3, as NCCL did before 2.26."""
    run = record(tools[0], tmp_path / "run.kprof", "ranks=2", "calls=3", abi=3)
    assert (run.returncode, run.stdout) == (0, "events 0\nevents 0\n")
    assert "has loaded the plugin: that takes NCCL 2.26 or later" in run.stderr
    assert not (tmp_path / "run.kprof").exists()


def test_a_rank_that_cannot_load_the_plugin_is_told_of(tools, tmp_path):
    run, said = recorded(tools, tmp_path, "ranks=4 calls=6 without=2")
    assert "1 of 4 ranks of communicator world left nothing: their NCCL is older" in said.stderr
    assert run.manifest.missing_ranks == (2,)
    # Nobody can say who came last.
    assert waits(run) == set()


def test_a_plugin_of_the_user_that_does_not_exist_is_named(tools, tmp_path):
    environment = os.environ | {"NCCL_PROFILER_PLUGIN": "/nowhere/plugin.so"}
    command = ["record", "--nccl", "-o", tmp_path / "run.kprof", "--", tools[0], "7", "ranks=2"]
    run = run_kprof([*command, "calls=1"], environment=environment)
    assert run.returncode == 0
    assert "NCCL_PROFILER_PLUGIN=/nowhere/plugin.so is not used in this run" in run.stderr
    assert kprof.open(tmp_path / "run.kprof").manifest.world_size == 2


def test_ranks_of_split_communicators_are_those_of_the_run(tools, tmp_path):
    options = "ranks=4 calls=6 comms=2 split=1 late=2 delay=50000"
    run, _ = recorded(tools, tmp_path, options)
    found = waits(run)
    # Rank 2 of the run is rank 1 of the even ones; the odd ones wait for nobody. Both have the same name.
    assert {(rank, peer) for kernel, rank, peer in found if "world" in kernel} == {
        (0, 2),
        (1, 2),
        (3, 2),
    }
    assert {(rank, peer) for kernel, rank, peer in found if "world" not in kernel} == {(0, 2)}


def test_ranks_of_a_communicator_that_shrank_are_those_of_the_run(tools, tmp_path):
    options = "ranks=4 calls=12 shrink=1 late=2 delay=50000"
    run, said = recorded(tools, tmp_path, options)
    found = waits(run)
    assert {(rank, peer) for kernel, rank, peer in found if "shrunk" in kernel} == {(0, 2), (3, 2)}
    assert {rank for kernel, rank, _ in found if "world" in kernel} == {0, 1, 3}
    assert "never ended" not in said.stderr
    counts = run.sql(
        "SELECT rank, count(*) AS n FROM launches GROUP BY ALL ORDER BY ALL"
    ).to_pylist()
    assert [row["n"] for row in counts] == [12, 6, 12, 12]


def test_a_rank_that_dies_in_a_collective_leaves_it_open_on_all(tools, tmp_path):
    run, said = recorded(tools, tmp_path, "ranks=4 calls=6 die=1 inside=1")
    sentence = "AllReduce 5 of communicator world never ended: all of its ranks entered it"
    assert sentence in said.stderr
    assert sentence in run.manifest.messages
    assert [info.counts.open for info in run.manifest.ranks] == [4, 4, 4, 4]
    counts = run.sql("SELECT DISTINCT ordinal FROM events WHERE rank = 1").to_pylist()
    assert len(counts) == 6


def test_a_hang_is_said_beside_what_the_flight_recorder_has(tools, tmp_path, monkeypatch):
    """PyTorch dumps when its watchdog gives up; here that is when the run ends."""
    dumps = tmp_path / "trace_rank_"
    monkeypatch.setenv("TORCH_FR_DUMP_TEMP_FILE", str(dumps))
    make_pickle(tmp_path)
    (tmp_path / "trace_rank_9").write_bytes(b"of an earlier run")
    os.utime(tmp_path / "trace_rank_9", (0, 0))
    script = f"{tools[0]} 7 ranks=2 calls=4 stuck=1; for r in 0 1; do cat {tmp_path}/nccl_trace_rank_$r > {dumps}$r; done"
    run = run_kprof(["record", "--nccl", "-o", tmp_path / "run.kprof", "--", "sh", "-c", script])
    assert run.returncode == 0, run.stderr
    assert "AllReduce 3 of communicator world never ended: rank 0 entered it" in run.stderr
    assert (
        f"PyTorch's flight recorder has 2 dumps, {dumps}*: group default_pg: others have enqueued collective 4, "
        "rank 1 ends with 3"
    ) in run.stderr


def test_dumps_that_cannot_be_read_are_named(tmp_path):
    (tmp_path / "trace_rank_0").write_bytes(b"no dump")
    (said,) = found_since(0.0, {"TORCH_NCCL_DEBUG_INFO_TEMP_FILE": f"{tmp_path}/trace_rank_"})
    assert "cannot read" in said
    assert found_since(0.0, {"TORCH_NCCL_DEBUG_INFO_TEMP_FILE": f"{tmp_path}/others_"}) == []
