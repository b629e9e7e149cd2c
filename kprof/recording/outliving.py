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
from kprof.recording import lifetime
from kprof.recording.launch_log import LaunchLog, LaunchRow
from kprof.recording.ledger import Captured, Facts, Ledger, Note, open_ledger
from kprof.recording.turns import Home, layout_of

if TYPE_CHECKING:
    from kprof.capture.manifest import RankInfo
    from kprof.devices.memory import Memory
    from kprof.recording.retention import Retention
    from kprof.recording.turns import Turns


class Outliving:
    """What of a rank outlives its process; `home` is None where the arenas do not."""

    def __init__(
        self,
        directory: Path,
        rank: int,
        device: str,
        retention: Retention,
        arena_bytes: int,
        note: Callable[[str], None],
    ) -> None:
        """Raises ArenaError where arenas of `arena_bytes` in total hold no chunk."""
        self.home: Home | None = None
        self._ledger: Ledger | None = None
        self._retention = retention
        self._directory, self._rank, self._device = directory, rank, device
        layout = layout_of(arena_bytes, retention.num_arenas)
        if device == "cpu":
            memory, reason = self._open(layout.size_bytes)
            if reason:
                note(f"what rank {rank} records is lost if it is killed: {reason}")
        elif retention.in_host_memory:
            memory, reason = self._open(layout.size_bytes)
            if memory is None:
                reason = reason or "this recording has no place for it"
                text = (
                    f"rank {rank} records into the memory of its GPU, not of the host, so what it "
                    f"records is lost if it is killed: {reason}"
                )
                note(text)
                lifetime.complain(text)
        else:
            return
        if memory is not None and self._ledger is not None:
            accounts = tuple(map(self._ledger.account, range(len(layout.ranges()))))
            self.home = Home(memory, accounts)

    def _open(self, size_bytes: int) -> tuple[Memory | None, str]:
        """Memory that outlives the process, or None and why not."""
        is_gpu = self._device != "cpu"
        self._ledger, reason = open_ledger(
            self._directory, self._rank, size_bytes, only_in_memory=is_gpu
        )
        if self._ledger is None:
            return None, reason
        content = self._ledger.content
        if not is_gpu:
            return HostMemory(content), ""
        try:
            return RegisteredMemory.of(content, self._device), ""
        except (KprofError, RuntimeError, OSError) as error:
            self.remove()
            self._ledger = None
            return None, f"{error}; give a smaller --ring or --arena-size"

    @property
    def is_kept(self) -> bool:
        """Whether the arenas can be read when the process has ended."""
        return self._ledger is not None

    def begin(self, info: RankInfo, turns: Turns, launches: LaunchLog) -> None:
        """The recorder is open: from here on everything is kept."""
        if self._ledger is None:
            return
        arena = turns.active
        handed = arena.handed()
        self._ledger.begin(
            Facts(
                info,
                arena.geometry.size_bytes,
                len(turns.arenas),
                bool(self._retention.ring_bytes),
                handed.switches,
                handed.lines,
            )
        )
        launches.ledger = self._ledger

    def note(self, text: str) -> None:
        """A sentence for the capture."""
        if self._ledger is not None:
            self._ledger.write(Note(text))

    def note_captured(self, row: LaunchRow, launches: LaunchLog) -> None:
        """A launch will be replayed."""
        if self._ledger is not None:
            table_idx = launches.region_ids.table_of_launch[row.launch]
            self._ledger.write(Captured(row, table_idx))

    def remove(self) -> None:
        """The rank ended by itself."""
        if self._ledger is not None:
            self._ledger.remove()

    def abandon(self) -> None:
        """This process is a forked child: the files are its parent's."""
        if self._ledger is not None:
            self._ledger.make_private()
            self._ledger = None
