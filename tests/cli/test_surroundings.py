"""What a workload and kprof find around them: open files, closed ones, full ones, and an environment that is wrong."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kprof.capture.directory import Capture
from kprof.capture.processes import Condition, process_of, wait_until

WORKLOAD = str(Path(__file__).parent / "workloads" / "lifetimes.py")


def shell(tmp_path: Path, line: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a line in which KPROF is `kprof` and WORKLOAD a workload that records 3 launches."""
    command = line.replace("KPROF", f"{sys.executable} -m kprof_cli")
    command = command.replace("WORKLOAD", f"{sys.executable} {WORKLOAD} returns")
    return subprocess.run(
        ["sh", "-c", command],
        cwd=tmp_path,
        env=os.environ | environment,
        capture_output=True,
        text=True,
    )


def test_files_that_the_shell_opened_reach_the_workload(tmp_path):
    ended = shell(tmp_path, "KPROF record -- sh -c 'echo hello >&3; WORKLOAD' 3>log")
    assert ended.returncode == 0, ended.stderr
    assert (tmp_path / "log").read_text() == "hello\n"


def test_a_signal_of_the_workloads_own_reaches_it(tmp_path):
    """Sent to kprof, which stands where the workload stood."""
    loop = 'trap "exit 9" USR2; kill -USR2 $PPID; for i in $(seq 600); do sleep 0.1; done'
    ended = shell(tmp_path, f"KPROF record -- sh -c '{loop}'; echo $?")
    assert ended.stdout == "9\n", ended.stderr
    assert "interrupted" not in ended.stderr


def test_ctrl_z_stops_the_workload_until_kprof_goes_on(tmp_path):
    command = [sys.executable, "-m", "kprof_cli", "record", "--", "sh", "-c"]
    with subprocess.Popen(
        [*command, "echo $$; read line; exit 5"],
        cwd=tmp_path,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        # As a shell starts what it can continue.
        preexec_fn=os.setpgrp,
    ) as kprof:
        workload = process_of(int(kprof.stdout.readline()))
        kprof.send_signal(signal.SIGTSTP)
        _, status = os.waitpid(kprof.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        wait_until(lambda: workload.condition() is Condition.STOPPED, timeout_s=60)
        condition = workload.condition()
        kprof.send_signal(signal.SIGCONT)
        kprof.communicate(b"\n")
    assert (condition, kprof.returncode) == (Condition.STOPPED, 5)


def test_a_workload_that_removes_the_current_folder_keeps_its_exit_code(tmp_path):
    line = "mkdir gone; cd gone; KPROF record -- sh -c 'rm -r ../gone; exit 6'"
    ended = shell(tmp_path, line)
    assert ended.returncode == 6
    assert "was removed while the workload ran" in ended.stderr


@pytest.mark.parametrize("closed", ["<&-", "<&- >&-"])
def test_closed_standard_streams_lose_nothing(tmp_path, closed):
    ended = shell(tmp_path, f"KPROF record -- WORKLOAD {closed}")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert Capture.open(tmp_path / "run.kprof").manifest.ranks[0].counts.recorded == 300


def test_an_output_that_is_full_is_one_line(tmp_path):
    ended = shell(tmp_path, "KPROF doctor > /dev/full")
    assert ended.returncode == 1
    assert ended.stderr == "kprof: cannot use the output: No space left on device\n"


def test_a_full_output_does_not_change_the_workloads_exit_code(tmp_path):
    ended = shell(tmp_path, "KPROF record -- sh -c 'WORKLOAD; exit 6' > /dev/full")
    assert ended.returncode == 6
    assert "Traceback" not in ended.stderr
    assert Capture.open(tmp_path / "run.kprof").manifest.exit_code == 6


@pytest.mark.parametrize(
    ("environment", "sentence"),
    [
        ({"KPROF_ARENA_BYTES": "99999999999999"}, "an arena of 99999999999999 bytes is too large"),
        ({"KPROF_ARENA_BYTES": "3999999999999"}, "no room for an arena of 3,814,697 MiB"),
        ({"KPROF_ARENA_BYTES": "much"}, "KPROF_ARENA_BYTES='much' is not a number of bytes"),
        ({"KPROF_WANTED": "much"}, "rank 0 records nothing: JSON is malformed"),
        ({"KPROF_RETENTION": "[]"}, "rank 0 records nothing: Expected `object`, got `array`"),
        ({"KPROF_TIMINGS_DIR": "/no/such"}, "KPROF_TIMINGS_DIR=/no/such is not a directory"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_an_environment_that_is_wrong_is_one_line_and_the_workload_goes_on(
    tmp_path, environment, sentence
):
    (tmp_path / "run").mkdir()
    ended = shell(tmp_path, "WORKLOAD", KPROF_RECORD_DIR=str(tmp_path / "run"), **environment)
    assert ended.returncode == 0
    (line,) = ended.stderr.splitlines()
    assert sentence in line


def test_a_time_for_hangs_that_is_no_number_is_none(tmp_path):
    (tmp_path / "run").mkdir()
    variables = {"KPROF_RECORD_DIR": str(tmp_path / "run"), "KPROF_HANG_AFTER": "soon"}
    ended = shell(tmp_path, "WORKLOAD", **variables)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_a_device_that_is_not_there_is_one_line_and_the_workload_goes_on(tmp_path):
    pytest.importorskip("torch")
    program = "import kprof; print(kprof.recorder(device='cuda:99').is_recording)"
    ended = shell(tmp_path, f'{sys.executable} -c "{program}"', KPROF_RECORD_DIR=str(tmp_path))
    assert (ended.returncode, ended.stdout) == (0, "False\n")
    (line,) = ended.stderr.splitlines()
    assert "rank 0 records nothing: there is no device 'cuda:99' here" in line


def test_a_directory_that_cannot_be_written_is_one_line(tmp_path):
    ended = shell(tmp_path, "cd /proc && KPROF record -- true")
    assert ended.returncode == 1
    (line,) = ended.stderr.splitlines()
    assert line.startswith("kprof: cannot write run.kprof.unfinished")
