"""How a workload ended, and what is said about it."""

from __future__ import annotations

import contextlib
import signal
from dataclasses import dataclass


@dataclass(frozen=True)
class Outcome:
    """How the workload ended."""

    exit_code: int
    was_interrupted: bool
    duration_s: float


def describe_exit(exit_code: int) -> str:
    """ "exited with 3", "was killed by SIGKILL", "ended well"."""
    if exit_code == 0:
        return "ended well"
    if exit_code > 128:
        with contextlib.suppress(ValueError):
            return f"was killed by {signal.Signals(exit_code - 128).name}"
    return f"exited with {exit_code}"
