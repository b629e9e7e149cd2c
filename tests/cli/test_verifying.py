"""`kprof verify`: runs a command again with delays in it, and says what that shows."""

from __future__ import annotations

import io
import json
import shutil
import sys
from collections.abc import Callable
from itertools import permutations
from pathlib import Path
from typing import Any

import msgspec
import pytest

from benchmarks.verified import workload
from benchmarks.verified.__main__ import Machine, finding_at
from in_process import run_kprof
from kprof import proof
from kprof.analysis import Summary
from kprof.analysis.findings import experiment
from kprof.capture.directory import Capture, read_manifest
from kprof.capture.verified import Verified, read_verified
from kprof.errors import CorruptCaptureError
from kprof.trace import Trace
from sealing import write_manifest
from synthetic import TraceBuilder

Kprof = Callable[..., Any]
WORKLOAD = Path(__file__).parent / "workloads" / "delayed.py"
FINDING = "Rank 1 runs pack 2.5x slower than the rest"


@pytest.fixture(autouse=True)
def few_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every run is a process, and these two sizes tell as much as three."""
    monkeypatch.setattr(proof, "MIN_ROUNDS", 2)
    monkeypatch.setattr(experiment, "_SIZES", (0.0, 0.8))


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("recorded") / "run.kprof"
    assert run_kprof(["record", "-o", path, "--", sys.executable, WORKLOAD]).returncode == 0
    return path


@pytest.fixture
def run(recorded: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(recorded, tmp_path / "run.kprof"))


def plain(kept: Verified) -> dict[str, Any]:
    decoded: dict[str, Any] = json.loads(msgspec.json.encode(kept))
    return decoded


def change_manifest(run: Path, **fields: Any) -> None:
    content = json.loads((run / "manifest.json").read_text())
    write_manifest(run, content | fields)


def test_a_cause_is_confirmed_and_kept(kprof: Kprof, run: Path) -> None:
    result = kprof("verify", run, "--yes", "--finding", "1", "--rounds", 2)
    assert result.code == 0, result.err
    lines = result.out.splitlines()
    assert lines[0] == f"finding    {FINDING}; fixing it would save up to 51 %"
    assert lines[1].startswith("delayed    each span of pack everywhere else, by 2.40 us; 2 rounds")
    assert lines[2].startswith("promised   0 % of a delay shows in a call, which grows from")
    assert lines[-1] == "verdict    confirmed"
    said = "Verified on the machine: confirmed; of delays of pack everywhere else, 0 % showed"
    (found,) = json.loads(kprof("explain", run, "--json").out)["findings"]
    assert found["details"][-1].startswith(said)
    (kept,) = read_verified(run).values()
    assert found["verified"] == plain(kept)
    assert (kept.finding, kept.num_calls, kept.num_rounds) == (found["id"], 6, 2)
    # Another one takes its place.
    again = kprof(
        "verify", run, "--rounds", 2, "--json", "--", sys.executable, WORKLOAD, "--chained"
    )
    assert again.code == 3
    assert json.loads(again.out)["verdict"] == "not confirmed"
    (kept,) = read_verified(run).values()
    assert kept.command[-1] == "--chained"
    assert kept.shown == pytest.approx(1.0, abs=0.01)


def test_kernels_run_with_delays_in_them(
    kprof: Kprof, tmp_path: Path, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Real ones; how long they take on this machine is nobody's promise."""
    monkeypatch.chdir(Path(workload.__file__).parents[2])
    command = sys.executable, "-m", "benchmarks.verified.workload", "--calls", 8
    result = kprof("verify", run, "--rounds", 2, "--json", "--", *command)
    assert result.code in (0, 3), result.err
    (kept,) = read_verified(run).values()
    assert json.loads(result.out) == {"schema_version": 2, **plain(kept)}
    assert (result.code == 0) == (kept.verdict.value == "confirmed")
    assert kept.num_calls == 6
    assert not list(tmp_path.glob("*.unfinished"))


def test_a_place_may_be_a_block(
    kprof: Kprof, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One rank, whose blocks send to each other: its own number is the peer."""
    monkeypatch.chdir(Path(workload.__file__).parents[2])
    run, num_calls = tmp_path / "blocks.kprof", 4
    one_rank = Machine("cpu", ranks=1, blocks=3)
    sizes = "--calls", str(num_calls), *one_rank.arguments
    command = sys.executable, "-m", "benchmarks.verified.workload", *sizes
    assert kprof("record", "-o", run, "--", *command).code == 0
    trace = Trace.open(run)
    _, sent = trace.rows("SELECT send_block, wait_block, count(*) FROM flows GROUP BY ALL")
    pairs = permutations(range(one_rank.blocks), 2)
    assert sorted(sent) == [(*pair, num_calls) for pair in pairs]
    summary = Summary.of(trace)
    finding = finding_at(summary, "pack", 0, 1, gain_ns=1e5)
    tried = experiment.experiment_of(summary, finding, least_effect=-10.0)
    assert tried.blocks == {0: ((0, 1), (2, 3))}
    kept = proof.verify(proof.Proof(finding, tried, command, None, 2), run)
    assert read_verified(run) == {finding.id: kept}
    assert 1 <= kept.num_calls <= num_calls


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_what_a_capture_names_is_not_run_unseen(
    kprof: Kprof, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = tmp_path / "ran"
    change_manifest(run, command=["touch", f"{ran}\x1b[2J"])
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    result = kprof("verify", run, "--rounds", 2)
    assert "names the command touch " in result.error_line
    assert result.error_line.endswith("give it after --, or --yes to run it as it is")
    assert result.code == 2
    monkeypatch.setattr(sys, "stdin", Terminal("n\n"))
    result = kprof("verify", run, "--rounds", 2)
    assert "Run it? [y/N]" in result.err
    assert result.code
    assert "\x1b" not in result.err
    assert not list(tmp_path.glob("ran*"))
    monkeypatch.setattr(sys, "stdin", Terminal("y\n"))
    assert "without creating a kprof recorder" in kprof("verify", run, "--rounds", 2).err
    assert list(tmp_path.glob("ran*"))


def test_unknown_findings_and_rounds(kprof: Kprof, run: Path) -> None:
    result = kprof("verify", run, "--finding", "7")
    assert "unknown finding '7'; known: slow/rank-1" in result.error_line
    assert result.code == 2
    for rounds in (1, 101):
        assert "give 2 to 100" in kprof("verify", run, "--rounds", rounds).error_line


def test_a_capture_without_a_command_asks_for_one(kprof: Kprof, run: Path) -> None:
    change_manifest(run, command=[])
    assert "give the command: kprof verify" in kprof("verify", run).error_line


def test_a_capture_without_findings(kprof: Kprof, run: Path) -> None:
    balanced = Path(str(run) + "2")
    source = WORKLOAD.read_text().replace("1: 5_000", "1: 2_000")
    other = run.parent / "balanced.py"
    other.write_text(source)
    kprof("record", "-o", balanced, "--", sys.executable, other)
    assert "has no finding to verify" in kprof("verify", balanced).error_line


def test_imports_cannot_be_delayed(kprof: Kprof, tmp_path: Path) -> None:
    build = TraceBuilder('REGION(R_COPY, "copy", compute)', 1)
    build.span(0, "copy", 0, 100)
    path = build.write(tmp_path / "imported.kprof").path
    assert (
        "was imported, so that kprof cannot delay its kernels" in kprof("verify", path).error_line
    )


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (("false",), "exited with 1"),
        (("true",), "without creating a kprof recorder"),
        (("no-such-command",), "no such command"),
        ((sys.executable, WORKLOAD, "--blind"), "with -DKPROF_DELAYS=1"),
        (
            (sys.executable, WORKLOAD, "--exit-if-delayed", 9),
            "exited with 9 with delays of 2.40 us",
        ),
        ((sys.executable, WORKLOAD.with_name("ranks.py"), "--started=0", "--finished=0"), "1 rank"),
        ((sys.executable, WORKLOAD, "--calls", 0), ""),
    ],
    ids=lambda value: "" if isinstance(value, str) else str(value[-1]),
)
def test_a_command_that_is_another_one_is_refused(
    kprof: Kprof, run: Path, command: tuple[object, ...], says: str
) -> None:
    result = kprof("verify", run, "--", *command)
    assert says in result.error_line
    assert result.code
    assert not read_verified(run)
    assert Capture.open(run).manifest.exit_code == 0


def test_how_many_ranks_torchrun_started_is_kept(run: Path) -> None:
    assert read_manifest(run).num_procs == 0


def test_damage_is_said(kprof: Kprof, run: Path) -> None:
    (run / "verified.json").write_text('[{"finding": "slow/rank-1"}]')
    with pytest.raises(CorruptCaptureError, match=r"verified\.json"):
        read_verified(run)
    assert "verified.json" in kprof("report", run).error_line
