"""Whether a rank's arenas outlive its process, and the recorder's side of that.

On the CPU target they do wherever there is a place. On a GPU the arenas are in its own memory, by
default: what they hold is lost with the process.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from kprof.devices.memory import HostMemory, RegisteredMemory
from kprof.errors import KprofError
from kprof.recording.arenas.ledger import open_ledger
from kprof.recording.arenas.turns import Home, Layout, geometry_of
from kprof.recording.endings import complaints

if TYPE_CHECKING:
    from kprof.capture.journal import Journal
    from kprof.recording.retention.retention import Retention


def open_home(
    directory: Path,
    rank: int,
    device: str,
    retention: Retention,
    arena_bytes: int,
    journal: Journal,
    note: Callable[[str], None],
) -> Home | None:
    """Memory for the arenas that outlives the process; None where there is none, and `note` gets a
    sentence if there should be.

    Raises ArenaError where arenas of `arena_bytes` in total hold no chunk.
    """
    is_gpu = device != "cpu"
    num_arenas = retention.num_arenas
    layout = Layout(geometry_of(arena_bytes, num_arenas).size_bytes, num_arenas)
    if is_gpu and not retention.in_host_memory:
        return None
    ledger, reason = open_ledger(directory, rank, layout.size_bytes, journal, only_in_memory=is_gpu)
    if ledger is not None:
        try:
            content = ledger.content
            memory = RegisteredMemory.of(content, device) if is_gpu else HostMemory(content)
            return Home(memory, ledger.accounts(len(layout.ranges())), ledger)
        except (KprofError, RuntimeError, OSError) as error:
            ledger.remove()
            reason = f"{error}; give a smaller --ring or --arena-size"
    if is_gpu:
        text = (
            f"rank {rank} records into the memory of its GPU, not of the host, so what it records "
            f"is lost if it is killed: {reason or 'this recording has no place for it'}"
        )
        note(text)
        complaints.complain(text)
    elif reason:
        note(f"what rank {rank} records is lost if it is killed: {reason}")
    return None
