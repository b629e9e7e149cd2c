"""`kprof record --nccl` of runs that are not as they should be: each is recorded as far as it can be, and a sentence says
what is not."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

import kprof
from foreign_files.flight_recorder import make_pickle
from in_process import run_kprof
from kprof.importers.formats.flight_recorder import found_since

sys.path.append(str(Path(__file__).parents[1] / "native"))
from nccl_host import record, tools

__all__ = ["tools"]
pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler, cc")


def recorded(tools, output: Path, *options: str, abi: int = 7):
    host, driver = tools
    run = record(host, output, *options, abi=abi, driver=driver)
    assert run.returncode == 0, run.stderr
    return kprof.open(output), run


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
    run, said = recorded(tools, tmp_path / "run.kprof", "ranks=4", "calls=6", "without=2")
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
    options = ("ranks=4", "calls=6", "comms=2", "split=1", "late=2", "delay=50000")
    run, _ = recorded(tools, tmp_path / "run.kprof", *options)
    found = waits(run)
    # Rank 2 of the run is rank 1 of the even ones; the odd ones wait for nobody. Both have the same name.
    assert {(rank, peer) for kernel, rank, peer in found if "world" in kernel} == {
        (0, 2),
        (1, 2),
        (3, 2),
    }
    assert {(rank, peer) for kernel, rank, peer in found if "world" not in kernel} == {(0, 2)}


def test_ranks_of_a_communicator_that_shrank_are_those_of_the_run(tools, tmp_path):
    options = ("ranks=4", "calls=12", "shrink=1", "late=2", "delay=50000")
    run, said = recorded(tools, tmp_path / "run.kprof", *options)
    found = waits(run)
    assert {(rank, peer) for kernel, rank, peer in found if "shrunk" in kernel} == {(0, 2), (3, 2)}
    assert {rank for kernel, rank, _ in found if "world" in kernel} == {0, 1, 3}
    assert "never ended" not in said.stderr
    counts = run.sql(
        "SELECT rank, count(*) AS n FROM launches GROUP BY ALL ORDER BY ALL"
    ).to_pylist()
    assert [row["n"] for row in counts] == [12, 6, 12, 12]


def test_a_rank_that_dies_in_a_collective_leaves_it_open_on_all(tools, tmp_path):
    run, said = recorded(tools, tmp_path / "run.kprof", "ranks=4", "calls=6", "die=1", "inside=1")
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
