"""`kprof record`: six lines at the end, the workload's own output and exit code."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from kprof.abi import MAX_REGION_ID
from kprof.capture.directory import Capture
from kprof.errors import BUG_SENTENCE

RANKS = str(Path(__file__).parent / "workloads" / "ranks.py")
TWO_RANKS = ("--started", "0,1", "--finished", "0,1")


def test_a_recording_ends_with_six_lines_and_the_next_command(kprof, tmp_path):
    run = tmp_path / "run.kprof"
    result = kprof("record", "-o", run, "--", "python", RANKS, *TWO_RANKS, "--aligned", "0,1")
    assert result.code == 0
    assert result.err == ""
    lines = result.out.splitlines()
    assert [line.split()[0] for line in lines] == [
        "capture",
        "events",
        "time",
        "lost",
        "finding",
        "next",
    ]
    assert lines[0].startswith(f"capture  {run} (")
    assert lines[1] == "events   4 of 2 ranks in 1 launch each"
    assert lines[2] == "time     600 ns on one clock, +-10 ns between ranks (test)"
    assert lines[3] == "lost     0 dropped, 0 open, 0 clamped, 0 ranks missing"
    assert lines[5] == f"next     kprof report {run}"


def test_ranks_with_unequal_numbers_of_launches_are_not_counted_as_equal(kprof, tmp_path):
    line = ("--", "python", RANKS, *TWO_RANKS, "--launches", "9,3")
    result = kprof("record", "-o", tmp_path / "run.kprof", *line)
    assert result.out.splitlines()[1] == "events   4 of 2 ranks in 3 to 9 launches each"


def test_what_a_process_says_it_lost_is_in_the_summary_and_the_report(kprof, tmp_path):
    run = tmp_path / "run.kprof"
    messages = ("--message", "rank 0: an earlier process of this rank lost 8 launches")
    line = ("--", "python", RANKS, *TWO_RANKS, *messages, "--message", "rank 1: another loss")
    result = kprof("record", "-o", run, *line)
    assert result.out.splitlines()[3] == (
        "lost     0 dropped, 0 open, 0 clamped, 0 ranks missing, "
        "rank 0: an earlier process of this rank lost 8 launches, 1 more loss above"
    )
    assert "kprof: rank 1: another loss" in result.err.splitlines()
    report = kprof("report", run).out
    assert "an earlier process of this rank lost 8 launches" in " ".join(report.split())


def test_a_failing_workload_is_named_and_its_output_and_events_are_kept(kprof, tmp_path):
    """Its command needs no dashes before it."""
    run = tmp_path / "run.kprof"
    line = ("python", RANKS, *TWO_RANKS, "--exit", "9", "--say", "hello")
    result = kprof("record", "-o", run, *line)
    assert result.code == 9
    assert result.err == "hello\nkprof: the workload exited with 9; what it recorded is kept\n"
    first, *others = result.out.splitlines()
    assert (first, len(others)) == ("hello", 6)
    assert Capture.open(run).manifest.exit_code == 9


def test_a_rank_that_died_is_named(kprof, tmp_path):
    line = ("--started", "0,1", "--finished", "1", "--exit", "1")
    result = kprof("record", "-o", tmp_path / "run.kprof", "--", "python", RANKS, *line)
    assert result.code == 1
    assert "kprof: rank 0 of 2 left no events" in result.err.splitlines()
    assert "1 rank missing" in result.out


def test_dropped_events_name_the_arena_that_would_do(kprof, tmp_path):
    line = (*TWO_RANKS, "--dropped", "6", "--needed-bytes", str(100 << 20))
    result = kprof("record", "-o", tmp_path / "run.kprof", "--", "python", RANKS, *line)
    assert result.code == 0
    assert "12 dropped" in result.out
    assert "--arena-size 100MiB would have held all" in result.out


def test_a_capture_that_cannot_be_summed_up_is_kept_with_the_workloads_exit_code(kprof, tmp_path):
    run = tmp_path / "run.kprof"
    many = ("--regions", str(MAX_REGION_ID // 2 + 1))
    result = kprof("record", "-o", run, "--", "python", RANKS, *TWO_RANKS, *many, "--exit", "6")
    assert result.code == 6
    assert f"kprof: wrote {run}, but {MAX_REGION_ID + 4} regions do not fit" in result.err
    assert Capture.open(run).manifest.exit_code == 6


def _fail(*_: object, **__: object) -> None:
    raise OverflowError("integer division result too large for a float")


def test_a_bug_in_the_summary_keeps_the_workloads_exit_code(kprof, tmp_path, monkeypatch):
    """A program that ended well had exit code 1, because a number was too large for a finding."""
    run = tmp_path / "run.kprof"
    monkeypatch.setattr("kprof.analysis.find", _fail)
    result = kprof("record", "-o", run, "--", "python", RANKS, *TWO_RANKS)
    assert result.code == 0
    assert f"kprof: wrote {run}, but {BUG_SENTENCE} (OverflowError);" in result.err
    assert len(Capture.open(run).manifest.ranks) == 2


def test_a_bug_in_finishing_keeps_the_exit_code_and_the_files(kprof, tmp_path, monkeypatch):
    run = tmp_path / "run.kprof"
    line = ("record", "-o", run, "--", "python", RANKS, *TWO_RANKS)
    with monkeypatch.context() as bug:
        bug.setattr("kprof.recording.launcher.record.make_manifest", _fail)
        result = kprof(*line, "--exit", "6")
    assert result.code == 6
    unfinished = f"{run}.unfinished"
    assert f"{BUG_SENTENCE} (OverflowError)" in result.error_line
    assert f"the ranks' files are kept in {unfinished}: kprof recover" in result.error_line
    assert kprof("recover", unfinished).code == 0


def test_strict_turns_losses_into_a_failure(kprof, tmp_path):
    line = ("--", "python", RANKS, *TWO_RANKS)
    assert kprof("record", "--strict", "-o", tmp_path / "a.kprof", *line).code == 0
    for loss in ("--dropped", "--open"):
        run = tmp_path / f"{loss}.kprof"
        assert kprof("record", "--strict", "-o", run, *line, loss, "1").code == 1
        assert Capture.open(run).manifest.exit_code == 0


@pytest.mark.parametrize(
    ("line", "code", "sentence"),
    [
        (["--", "true"], 1, "call kprof.recorder()"),
        (["--", "false"], 1, "exited with 1 before a kprof recorder had started"),
        (["--", "sh", "-c", "exit 77"], 77, "exited with 77"),
        (["--", "sh", "-c", "kill -9 $$"], 137, "was killed by SIGKILL"),
        (["--", "no-such-command"], 1, "cannot start no-such-command"),
        (["--nproc", "0", "--", "true"], 1, "give 1 to 255"),
        (["--nproc", "100000", "--", "true"], 1, "give 1 to 255"),
        (["--arena-size", "much", "--", "true"], 2, "is not a size"),
        (["--arena-size", "1KiB", "--", "true"], 1, "holds no chunk"),
        (["--arena-size", "20KiB", "--drain", "--", "true"], 1, "for each of 2 arenas"),
        (["--ring", "64KiB", "--", "true"], 2, "give at least 106496 bytes"),
        (["--ring", "0", "--", "true"], 2, "--ring 0 keeps no events"),
        (["--ring", "host:0", "--", "true"], 2, "--ring 0 keeps no events"),
        (["--ring", "", "--", "true"], 2, "is not a size"),
        (["--ring", "1MiB", "--slower-than", "inf", "--", "true"], 2, "give a number, like 3"),
        (["--ring", "1MiB", "--drain", "--", "true"], 2, "choose one of them"),
        (["--keep-slowest", "3", "--drain", "--", "true"], 2, "choose one of them"),
        (["--keep-slowest", "3", "--arena-size", "20KiB", "--", "true"], 1, "for each of 4 arenas"),
        (["--keep-slowest", "9999", "--", "true"], 2, "give 1 to 1000"),
        (["--keep-slowest", "0", "--", "true"], 2, "keeps no calls"),
        (["--keep-slowest", "-3", "--", "true"], 2, "give 1 to 1000"),
        (["--calls", "-1", "--", "true"], 2, "calls is -1: give 0 or more"),
        (["--every", "8", "--", "true"], 2, "give calls, too"),
        (["--sample", "64", "--", "true"], 2, "write it like 1/64"),
        (["--sample", "1/3", "--", "true"], 2, "give 1/2, 1/4, 1/8"),
    ],
)
def test_a_recording_that_cannot_be_is_one_line(kprof, tmp_path, line, code, sentence):
    result = kprof("record", "-o", tmp_path / "run.kprof", *line)
    assert result.code == code
    assert sentence in result.error_line
    assert list(tmp_path.iterdir()) == []


def test_the_help_says_that_tracks_of_blocks_have_no_warp(kprof):
    shown = kprof("record", "--help").out.replace("│", "")
    assert "Tracks of blocks are always recorded" in " ".join(shown.split())


def test_an_existing_output_needs_force(kprof, small):
    """With it the output is replaced: test_lifetimes.py."""
    assert "pass --force" in kprof("record", "-o", small, "--", "true").error_line
    assert Capture.open(small).manifest.world_size == 2


def test_an_output_that_cannot_be_written_is_one_line(kprof, tmp_path):
    (tmp_path / "file").write_text("")
    result = kprof("record", "-o", tmp_path / "file" / "run.kprof", "--", "true")
    assert result.code == 1
    assert "cannot write" in result.error_line


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk needs root")
def test_a_disk_that_is_too_small_is_one_line(kprof, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("this machine does not let root mount a tmpfs")
    try:
        (disk / "ballast").write_bytes(bytes(4096))
        line = ["python", RANKS, "--started", "0", "--finished", "0"]
        result = kprof("record", "-o", disk / "run.kprof", "--", *line)
        assert result.code == 1
        assert "No space left on device" in result.err
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_terminal_sees_what_is_being_recorded(tmp_path):
    controller, terminal = pty.openpty()
    line = ["record", "-o", str(tmp_path / "run.kprof"), "--", "python", RANKS, *TWO_RANKS]
    subprocess.run(
        [sys.executable, "-m", "kprof_cli", *line],
        stderr=terminal,
        stdout=subprocess.DEVNULL,
        check=True,
    )
    os.close(terminal)
    text = os.read(controller, 4096).decode()
    os.close(controller)
    assert text.startswith("kprof: recording python ")
    assert "Ctrl-C stops it and keeps what was recorded" in text
