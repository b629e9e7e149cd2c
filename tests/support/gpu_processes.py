"""Python programs that the tests of GPUs start."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from kprof.trace import Trace

ROOT = Path(__file__).parents[2]


def run(*command: str, folder: Path = ROOT, **environment: str) -> str:
    """What `python COMMAND` prints; it has to end well."""
    paths = [str(ROOT), str(ROOT / "tests/support"), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))} | environment,
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
