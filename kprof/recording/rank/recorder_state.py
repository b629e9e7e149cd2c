"""What a recorder does with the next launch."""

from __future__ import annotations

from enum import Enum

from kprof.errors import RecorderError


class State(Enum):
    """The states of a recorder, each with what becomes of a launch.

    RECORDING <──> PAUSED          pause, resume, step with a schedule
    both ──> CLOSED                close
    both ──> OFF                   the process ends
    all  ──> FAILED                the disk or the device refuses
    all  ──> INHERITED ──> OFF     in a forked child, the second after its first launch
    """

    RECORDING = "it gets a buffer, if the window of calls has it"
    PAUSED = "a null buffer; one that a graph captures gets its buffer, for replays after the pause"
    CLOSED = "an error: the workload has closed the recorder"
    OFF = "a null buffer"
    FAILED = "a null buffer, and it is counted as lost"
    INHERITED = "a null buffer, and a message that the recorder is the parent's"

    def __init__(self, becomes: str) -> None:
        del becomes
        # Whether nothing is recorded any more.
        self.is_closed = self.name not in ("RECORDING", "PAUSED")


def check_rank(rank: int, world_size: int) -> None:
    """Raise RecorderError for a rank that is none of these."""
    if not 0 <= rank < world_size:
        raise RecorderError(
            f"rank {rank} is not one of {world_size} ranks; pass rank and world_size"
        )
