"""Runs a program as it is and under `kprof record`, and compares what it prints and how it ends."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from in_process import run_kprof

PROGRAMS = Path(__file__).parent / "programs"
# For what never ends: on a busy machine a compiler takes many minutes.
ENDLESS_S = 3000.0


@dataclass(frozen=True)
class Ended:
    """How a program ended, and what it printed but times. `exit_code` is None for one that was ended because it
    took too long. `summary` is what kprof printed behind the program, `step_ms` what the program measured,
    `wall_s` the whole run."""

    exit_code: int | None
    lines: tuple[str, ...]
    error: str
    summary: tuple[str, ...]
    step_ms: float | None
    wall_s: float

    @staticmethod
    def of(command: Sequence[str], environment: dict[str, str], limit_s: float) -> Ended:
        begin = time.monotonic()
        with subprocess.Popen(
            command,
            env={**os.environ, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        ) as process:
            try:
                output, error = process.communicate(timeout=limit_s)
                exit_code = process.returncode
            except subprocess.TimeoutExpired:
                # What it started has its pipes, and the GPU.
                os.killpg(process.pid, signal.SIGKILL)
                output, error = process.communicate()
                exit_code = None
        return Ended.told(exit_code, output, error, time.monotonic() - begin)

    @staticmethod
    def told(exit_code: int | None, output: str, error: str, wall_s: float) -> Ended:
        """From what was printed."""
        found = re.search(r"^time ([\d.]+)", output, re.MULTILINE)
        lines = [line for line in output.splitlines() if not line.startswith("time ")]
        # The workload prints first: the summary begins with the capture's line.
        end = next((n for n, line in enumerate(lines) if line.startswith("capture ")), len(lines))
        return Ended(
            exit_code,
            tuple(lines[:end]),
            error,
            tuple(lines[end:]),
            float(found[1]) if found else None,
            wall_s,
        )


def plain(program: str, *arguments: str, limit_s: float = ENDLESS_S, **environment: str) -> Ended:
    """Without kprof."""
    command = [sys.executable, str(PROGRAMS / program), *arguments]
    return Ended.of(command, environment, limit_s)


def recorded(
    output: Path,
    options: Sequence[str],
    program: str,
    *arguments: str,
    limit_s: float = ENDLESS_S,
    **environment: str,
) -> Ended:
    """Under kprof, whose own lines are left out of what it printed."""
    kprof = [sys.executable, "-m", "kprof_cli", "record", "-o", str(output), *options, "--"]
    command = [*kprof, sys.executable, str(PROGRAMS / program), *arguments]
    return Ended.of(command, environment, limit_s)


def recorded_here(
    output: Path, options: Sequence[str], program: str, *arguments: str, **environment: str
) -> Ended:
    """The same with kprof in this process, and without a limit."""
    begin = time.monotonic()
    command = [sys.executable, PROGRAMS / program, *arguments]
    done = run_kprof(
        ["record", "-o", output, *options, "--", *command], environment=os.environ | environment
    )
    return Ended.told(done.returncode, done.stdout, done.stderr, time.monotonic() - begin)
