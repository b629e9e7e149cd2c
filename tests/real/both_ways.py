"""Runs a program as it is and under `kprof record`, and compares what it prints and how it ends."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

PROGRAMS = Path(__file__).parent / "programs"


@dataclass(frozen=True)
class Ended:
    """How a program ended, and what it printed but times."""

    exit_code: int
    lines: tuple[str, ...]
    error: str

    @staticmethod
    def of(command: Sequence[str], environment: dict[str, str], limit_s: float) -> Ended:
        answer = subprocess.run(
            command,
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            timeout=limit_s,
            check=False,
        )
        lines = [line for line in answer.stdout.splitlines() if not line.startswith("time ")]
        return Ended(answer.returncode, tuple(lines), answer.stderr)


def plain(program: str, *arguments: str, limit_s: float = 300, **environment: str) -> Ended:
    """Without kprof."""
    command = [sys.executable, str(PROGRAMS / program), *arguments]
    return Ended.of(command, environment, limit_s)


def recorded(
    output: Path,
    options: Sequence[str],
    program: str,
    *arguments: str,
    limit_s: float = 300,
    **environment: str,
) -> Ended:
    """Under kprof, whose own lines are left out of what it printed."""
    kprof = [sys.executable, "-m", "kprof_cli", "record", "-o", str(output), *options, "--"]
    command = [*kprof, sys.executable, str(PROGRAMS / program), *arguments]
    ended = Ended.of(command, environment, limit_s)
    return Ended(ended.exit_code, _without_summary(ended.lines), ended.error)


def _without_summary(lines: tuple[str, ...]) -> tuple[str, ...]:
    """The workload prints first: the summary begins with the capture's line."""
    begin = next((n for n, line in enumerate(lines) if line.startswith("capture ")), len(lines))
    return lines[:begin]
