"""`kprof record --any-kernel` with a stand-in for NVIDIA's run-iket, which no CPU can run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from foreign_files import DATA
from under_way import until

# Reads options as the real tool (4.8.1) does, runs the command, and writes a trace per process where that succeeds;
# of a command that fails it leaves its data, which `postprocess` makes a trace of.
RUN_IKET = f"""#!{sys.executable}
import argparse, gzip, os, pathlib, subprocess, sys
parser = argparse.ArgumentParser()
parser.add_argument("--output-dir", "-o", type=pathlib.Path)
ways = parser.add_subparsers(required=True, dest="way")
profile = ways.add_parser("profile")
profile.add_argument("--warp-trace", action="store_true", required=True)
profile.add_argument("--postprocess", choices=["json"], required=True)
after = ways.add_parser("postprocess")
after.add_argument("run_dir", type=pathlib.Path)
after.add_argument("--format", choices=["json"])
options, rest = parser.parse_known_args()

def write(folder):
    data = gzip.decompress(pathlib.Path({str(DATA / "iket_warp_trace.json.gz")!r}).read_bytes())
    if os.environ.get("STAND_IN") == "is cut":
        data = data[:1000]
    (folder / f"iket_pid_{{os.getpid()}}.trace.json").write_bytes(data)

if options.way == "postprocess":
    assert (options.run_dir / "iket" / "pid_1" / "iket.data.json").exists()
    write(options.run_dir)
    sys.exit()
assert rest[0] == "--", rest
options.output_dir.mkdir(parents=True)
code = subprocess.run(rest[1:]).returncode
if os.environ.get("STAND_IN") == "refuses":
    sys.exit("no GPU of SM90 or later")
if code == 0:
    write(options.output_dir)
else:
    (options.output_dir / "iket" / "pid_1").mkdir(parents=True)
    (options.output_dir / "iket" / "pid_1" / "iket.data.json").touch()
sys.exit(code)
"""


@pytest.fixture
def tool(tmp_path, monkeypatch):
    path = tmp_path / "bin" / "run-iket"
    path.parent.mkdir()
    path.write_text(RUN_IKET)
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{path.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_INJECTION64_PATH", raising=False)


def record(kprof, tmp_path, *options, command=("true",)):
    return kprof("record", "--any-kernel", "-o", tmp_path / "run.kprof", *options, "--", *command)


def test_the_slow_program_of_an_uninstrumented_kernel_is_named(kprof, tool, tmp_path):
    result = record(kprof, tmp_path)
    assert result.code == 0
    assert "6,112 events of 1 rank" in result.out
    report = kprof("report", tmp_path / "run.kprof").out
    assert "Block 77 of rank 0 runs warp of late 16.5x slower than the rest" in report
    assert "77 on processor 99 in 2 of 2, 16.4x the median" in report
    assert [path.name for path in tmp_path.iterdir() if "iket" in path.name] == []


def test_every_rank_has_its_file(kprof, tool, tmp_path):
    command = (sys.executable, "-c", "import os; print('rank', os.environ['RANK'])")
    result = record(kprof, tmp_path, "--nproc", 2, command=command)
    assert result.code == 0
    assert "12,224 events of 2 ranks" in result.out
    assert "not comparable between ranks" in result.out
    query = "SELECT rank, count(*) AS n FROM events GROUP BY rank ORDER BY rank"
    found = json.loads(kprof("query", tmp_path / "run.kprof", query, "--json").out)["rows"]
    assert [tuple(row.values()) for row in found] == [(0, 6112), (1, 6112)]


def test_kernels_and_calls_that_are_kept(kprof, tool, tmp_path):
    result = record(kprof, tmp_path, "--kernels", "la*", "--calls", 1, "--skip", 1)
    assert "1,056 events of 1 rank" in result.out
    assert "events of launches that were not asked for: 5,056" in result.out
    nothing = record(kprof, tmp_path, "--kernels", "gemm*", "--force")
    assert nothing.code == 1
    assert "kernels: _ZN2at6native43_GLOBAL__N__b6de9c8c_10_S, late" in nothing.error_line


def test_the_exit_code_is_the_commands(kprof, tool, tmp_path):
    result = record(kprof, tmp_path, command=("sh", "-c", "exit 7"))
    assert result.code == 7
    assert (tmp_path / "run.kprof").is_dir()


@pytest.mark.parametrize(
    ("stand_in", "said", "is_kept"),
    [("refuses", "wrote no trace", False), ("is cut", "are kept in", True)],
)
def test_a_refusal_is_one_line(kprof, tool, tmp_path, monkeypatch, stand_in, said, is_kept):
    monkeypatch.setenv("STAND_IN", stand_in)
    result = record(kprof, tmp_path)
    assert result.code == 1
    assert said in result.err.splitlines()[-1]
    assert any(".iket-" in path.name for path in tmp_path.iterdir()) == is_kept
    assert not (tmp_path / "run.kprof").exists()


def test_without_run_iket_one_line_says_how_to_get_it(kprof, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "/usr/bin")
    result = record(kprof, tmp_path)
    assert result.code == 1
    assert "pip install nvidia-cutlass-dsl-libs-base" in result.error_line


def test_run_iket_is_found_as_a_module(kprof, tmp_path, monkeypatch):
    path = tmp_path / "site" / "iket" / "cli" / "main.py"
    path.parent.mkdir(parents=True)
    path.write_text(RUN_IKET)
    monkeypatch.setenv("PATH", "/usr/bin")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    monkeypatch.syspath_prepend(tmp_path / "site")
    assert "6,112 events of 1 rank" in record(kprof, tmp_path).out


def test_another_injection_is_named(kprof, tool, tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_INJECTION64_PATH", "/opt/other.so")
    assert "CUDA_INJECTION64_PATH names /opt/other.so" in record(kprof, tmp_path).error_line


def test_options_without_effect_are_refused(kprof, tool, tmp_path):
    result = record(kprof, tmp_path, "--drain", "--ring", "1MiB")
    assert result.code == 2
    assert "--drain, --ring cannot be used with --any-kernel" in result.err
    alone = kprof("record", "--kernels", "x", "-o", tmp_path / "run.kprof", "--", "true")
    assert alone.code == 2
    assert "--kernels is for --any-kernel" in alone.err


@pytest.mark.parametrize("options", [["--any-kernel", "--nproc", "1"], ["--nproc", "1"]])
def test_modules_in_the_current_directory_are_not_run(kprof, tool, tmp_path, monkeypatch, options):
    """`python -m` looks there first, and anybody may write into /tmp."""
    ran = tmp_path / "ran"
    for name in ("torch", "kprof", "numpy"):
        (tmp_path / "here" / name).mkdir(parents=True)
        (tmp_path / "here" / name / "__init__.py").write_text(f"open({str(ran)!r}, 'w')")
    monkeypatch.chdir(tmp_path / "here")
    kprof("record", *options, "-o", tmp_path / "run.kprof", "--", "true")
    assert not ran.exists()


def test_a_signal_ends_the_command_too(tool, tmp_path):
    """SIGTERM ended kprof alone, and left the command and run-iket."""
    pipe, started = tmp_path / "pipe", tmp_path / "pid"
    os.mkfifo(pipe)
    command = (
        "sh",
        "-c",
        f"echo $$ > {started}.new; mv {started}.new {started}; read line < {pipe}",
    )
    output = tmp_path / "run.kprof"
    process = subprocess.Popen(
        [sys.executable, "-m", "kprof_cli", "record", "--any-kernel", "-o", output, "--", *command],
        stderr=subprocess.PIPE,
        text=True,
    )
    until(process, started.exists)
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate()
    assert process.returncode == 143
    assert "ended with code 143" in said
    status = Path(f"/proc/{started.read_text().strip()}/status")
    assert not status.exists() or "State:\tZ" in status.read_text()
    assert [path.name for path in tmp_path.iterdir() if "iket" in path.name] == []
