"""The analyses over a Dask cluster of two workers say what they say without it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kprof import analysis, report
from kprof.analysis import Summary
from kprof.analysis.cluster import summary_on
from kprof.capture.directory import Capture
from kprof.capture.rank_summary import write_summary
from kprof.errors import ClusterError
from kprof.trace import Trace
from kprof_cli.main import run
from planted import Plant, simulate
from synthetic import write_trace

# The cluster's own machinery warns about what it does at its end.
pytestmark = pytest.mark.filterwarnings("default")


@pytest.fixture(scope="module")
def capture(tmp_path_factory: pytest.TempPathFactory) -> Capture:
    trace = simulate(Plant(num_ranks=5, num_launches=3, tokens_of={3: 3.0}, seed=8))
    return write_trace(trace, tmp_path_factory.mktemp("cluster") / "run.kprof")


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    distributed = pytest.importorskip(
        "distributed", reason="Dask is not installed: pip install distributed"
    )
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, dashboard_address=":0", host="127.0.0.1"
    ) as cluster:
        yield cluster.scheduler_address


@pytest.mark.slow
def test_a_report_is_the_same_on_a_cluster(
    capture: Capture, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kprof.analysis.flow_sums.EVENTS_PER_SLICE", 700)
    expected = json.loads(report.to_json(report.build(Trace.open(capture))))
    trace = Trace.open(capture)
    said: list[str] = []
    summary = summary_on(trace, capture.path, address, lambda what, _share: said.append(what))
    assert said == [
        "5 ranks on the cluster",
        "flows of 3 sets of calls on the cluster",
    ]
    # Nothing is left to be made here.
    monkeypatch.setattr("kprof.analysis.summary._make_parts", None)
    monkeypatch.setattr("kprof.analysis.flow_sums.sums_of_slice", None)
    assert analysis.late_sender(summary)["flows"].sum() > 0
    monkeypatch.undo()
    assert json.loads(report.to_json(report.build_from(summary))) == expected


@pytest.mark.slow
def test_stored_summaries_and_selections_on_a_cluster(capture: Capture, address: str) -> None:
    world_size = capture.manifest.world_size
    paths = [write_summary(capture.path, info, world_size) for info in capture.manifest.ranks[:2]]
    for changes in ({}, {"ranks": (1, 3)}, {"launches": (1,)}, {"blocks": (0, 3, 5)}):
        selected: dict[str, Any] = changes
        whole = Trace.open(capture).select(**selected)
        trace = Trace.open(capture).select(**selected)
        summary = summary_on(trace, capture.path, address)
        assert analysis.late_sender(summary).equals(analysis.late_sender(Summary.of(whole)))
        by_block = analysis.imbalance(Summary.of(whole), "block")
        assert analysis.imbalance(summary, "block").equals(by_block)
    for path in paths:
        path.unlink()


@pytest.mark.slow
@pytest.mark.parametrize("command", ["stats", "waits", "report"])
def test_the_command_line_takes_a_cluster(
    command: str, capture: Capture, address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([command, str(capture.path), "--json"]) == 0
    expected = json.loads(capsys.readouterr().out)
    assert run([command, str(capture.path), "--json", "--dask", address]) == 0
    assert json.loads(capsys.readouterr().out) == expected


@pytest.mark.slow
def test_a_worker_that_cannot_read_the_capture_is_said_so(
    capture: Capture, address: str, tmp_path: Path
) -> None:
    trace = Trace.open(write_trace(Trace.open(capture), tmp_path / "gone.kprof"))
    for file in (tmp_path / "gone.kprof").iterdir():
        file.unlink()
    with pytest.raises(ClusterError, match="the capture under the same path"):
        summary_on(trace, tmp_path / "gone.kprof", address)


def test_no_scheduler_gets_a_sentence(capture: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kprof.analysis.cluster._TIMEOUT_S", 1)
    with pytest.raises(ClusterError, match=r"no Dask scheduler answers at tcp://127\.0\.0\.1:9"):
        summary_on(Trace.open(capture), capture.path, "tcp://127.0.0.1:9")


def test_without_dask_its_package_is_named(
    capture: Capture, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "distributed", None)
    assert run(["report", str(capture.path), "--dask", "tcp://127.0.0.1:9"]) == 1
    assert "pip install distributed" in capsys.readouterr().err
