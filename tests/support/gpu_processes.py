"""Python programs that the tests of GPUs start."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from benchmarks.runs import ROOT, environment
from kprof.trace import Trace


def run(*command: str, folder: Path = ROOT, **variables: str) -> str:
    """What `python COMMAND` prints; it has to end well."""
    done = subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env=environment(ROOT / "tests/support", **variables),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-5000:]
    return done.stdout


def record(output: Path, *arguments: str, folder: Path = ROOT) -> Trace:
    """What `kprof record -o OUTPUT ARGUMENTS` leaves."""
    run("-m", "kprof_cli", "record", "-o", str(output), *arguments, folder=folder)
    return Trace.open(output)
