"""The whole way with real ranks under torchrun: the demo, a rank that dies, an interrupt, ranks that are started again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from in_process import run_kprof
from kprof.capture.directory import Capture
from kprof.recording.finishing.recover import recover
from kprof.trace import Trace
from kprof_cli.demo import _num_ranks

pytest.importorskip("torch", reason="torchrun starts the ranks")


WORKLOAD = str(Path(__file__).parent / "workloads" / "under_torchrun.py")
NUM_RANKS = _num_ranks()


@pytest.fixture(scope="module")
def demo(tmp_path_factory) -> tuple[Path, str]:
    """The directory of `kprof demo`, and what it printed."""
    output = tmp_path_factory.mktemp("demo") / "results"
    line = ["demo", "-o", str(output), "--no-open"]
    run = run_kprof(line)
    assert run.returncode == 0, run.stderr
    return output, run.stdout


def test_the_demo_verifies_its_result_and_names_the_three_results(demo):
    output, text = demo
    assert "0 wrong values" in text
    assert sorted(path.name for path in output.iterdir()) == [
        "report.html",
        "run.kprof",
        "trace.pftrace",
    ]
    for name in ("run.kprof", "trace.pftrace", "report.html"):
        assert str(output / name) in text


def test_a_demo_of_a_kernel_for_one_gpu(tmp_path):
    line = ["demo", "--kernel", "skinny_gemm", "-o", str(tmp_path / "demo"), "--no-open"]
    run = run_kprof(line)
    assert run.returncode == 0, run.stderr
    assert "skinny_gemm on cpu: specialised, 8 x 64 x 4096, 3 calls" in run.stdout
    regions = Trace.open(tmp_path / "demo" / "run.kprof").frame(
        "SELECT DISTINCT region FROM events"
    )
    assert {"weight-producer/load", "consumer/wait-weights", "consumer/multiply"} <= set(
        regions["region"]
    )


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--kernel", "matmul"], "unknown kernel 'matmul'; choose one of all_to_all, all_reduce"),
        (["--kernel", "swiglu_fp8", "--nproc", "2"], "swiglu_fp8 runs on one GPU"),
    ],
)
def test_a_demo_that_cannot_be(arguments, sentence):
    run = run_kprof(["demo", *arguments], environment=os.environ | {"COLUMNS": "300"})
    assert run.returncode == 2
    assert sentence in run.stderr


def test_every_rank_is_there_on_one_clock_and_nothing_was_lost(demo):
    manifest = Capture.open(demo[0] / "run.kprof").manifest
    assert [info.rank for info in manifest.ranks] == list(range(NUM_RANKS))
    assert manifest.exit_code == 0
    assert manifest.alignment is not None
    assert max(entry.bound_ns for entry in manifest.alignment.ranks) > 0
    for info in manifest.ranks:
        assert info.counts.recorded > 0
        assert (info.counts.dropped, info.counts.open, info.counts.unknown_region) == (0, 0, 0)


def test_every_sent_token_is_a_flow_to_the_wait_that_it_released(demo):
    trace = Trace.open(demo[0] / "run.kprof")
    question = """
        SELECT f.send, count(*) AS sends,
            (SELECT count(*) FROM flows WHERE send_region = r.name) AS flows
        FROM events e JOIN regions r ON r.id = e.region_id JOIN flow_rules f ON f.send = r.id
        GROUP BY f.send, r.name"""
    rows = trace.sql(question).to_pylist()
    assert len(rows) >= 2
    for row in rows:
        assert row["sends"] == row["flows"] > 0


def test_the_report_names_the_source_that_sends_three_times_the_tokens(demo):
    run = run_kprof(["report", demo[0] / "run.kprof", "--json"])
    assert run.returncode == 0, run.stderr
    findings = json.loads(run.stdout)["findings"]
    heavy = [min(3, NUM_RANKS - 1)]
    assert any(finding["ranks"] == heavy and "3.0x" in finding["sentence"] for finding in findings)


def test_a_second_demo_does_not_replace_the_first_unasked(demo):
    line = ["demo", "-o", str(demo[0]), "--no-open"]
    run = run_kprof(line)
    assert run.returncode == 1
    assert "--force" in run.stderr


def test_a_rank_that_dies_half_way_loses_no_launch(tmp_path):
    run = run_kprof(record_arguments(tmp_path, "die"))
    assert run.returncode == 1
    text = (
        "ended without closing its recorder, so its last launch may lack events; no launch is lost"
    )
    assert f"kprof: rank 1 is cut short: it {text}" in run.stderr.splitlines()
    manifest = Capture.open(tmp_path / "run.kprof").manifest
    assert manifest.missing_ranks == ()
    assert [info.launches[0].kernel for info in manifest.ranks] == ["kernel"] * 2


def test_an_interrupt_keeps_what_every_rank_recorded(tmp_path):
    with subprocess.Popen(
        [sys.executable, "-m", "kprof_cli", *record_arguments(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(2)] == ["ready\n"] * 2
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate()
    assert process.returncode == 1
    assert "kprof: the workload was interrupted and exited with 1" in errors
    assert [info.rank for info in Capture.open(tmp_path / "run.kprof").manifest.ranks] == [0, 1]


def record_arguments(tmp_path: Path, *arguments: str) -> list[str]:
    line = ["record", "--nproc", "2", "-o", str(tmp_path / "run.kprof"), "--arena-size", "1MiB"]
    return [*line, "--", "python", WORKLOAD, *arguments]


@pytest.mark.parametrize(
    ("num_gpus", "num_cores", "num_ranks"),
    [(2, 64, 2), (5, 64, 4), (8, 64, 8), (16, 64, 8), (0, 1, 2), (0, 2, 2), (0, 7, 4), (1, 64, 8)],
)
def test_the_demo_takes_a_rank_for_every_gpu_or_core(monkeypatch, num_gpus, num_cores, num_ranks):
    from kprof.devices import targets

    monkeypatch.setattr(targets, "best_target", lambda: targets.Target.CUDA)
    monkeypatch.setattr(targets, "count_devices", lambda target: num_gpus)
    monkeypatch.setattr(targets, "count_cores", lambda: num_cores)
    assert _num_ranks() == num_ranks


RESTARTED = Path(__file__).parent / "workloads" / "restarted.py"
EVENTS_PER_LAUNCH = 100


@pytest.mark.slow
def test_the_last_attempt_is_the_capture_and_earlier_ones_can_be_recovered(tmp_path: Path) -> None:
    output = tmp_path / "run.kprof"
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
    command = [*launcher, "2", "--max-restarts", "1", str(RESTARTED)]
    done = run_kprof(["record", "-o", output, "--", *command])
    assert done.returncode == 0, done.stderr
    assert launches_of(output) == {0: 4, 1: 4}
    for rank in (0, 1):
        place = tmp_path / f"run.kprof.rank-{rank}.attempt-1.unfinished"
        assert f"made 3 launches that are not in this capture: kprof recover {place}" in done.stderr
        assert launches_of(recover(place).path) == {rank: 3}


def launches_of(run: Path) -> dict[int, int]:
    ranks = Capture.open(run).manifest.ranks
    assert all(info.counts.recorded == EVENTS_PER_LAUNCH * len(info.launches) for info in ranks)
    return {info.rank: len(info.launches) for info in ranks}
