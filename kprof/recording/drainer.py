"""A thread that empties arenas while the workload runs; see kprof.recording.turns.

It looks how full the active arena is and says when a switch is due. The thread that launches
switches then, with its next call of the recorder, so nobody waits for anybody. Where the disk is
slower than the events, no arena is free when a switch is due: the active one fills up, and what it
cannot hold is counted as dropped.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

from kprof.devices import gpu
from kprof.recording.keeping import Keeper
from kprof.recording.turns import Used

# Of the active arena: what is left has to last until the next look and the next call.
_DUE_SHARE: Final = 0.25
_LOOK_S: Final = 0.05
# Of a slow run, too, the disk has what is older, should the process be killed.
_OLD_S: Final = 2.0


class Drainer:
    """Calls `fail` when it cannot go on."""

    def __init__(self, keeper: Keeper, device: str, fail: Callable[[Exception], None]) -> None:
        self.is_due = False
        self._keeper = keeper
        self._device = device
        self._fail = fail
        self._is_ending = False
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kprof drain", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def close(self) -> None:
        """Stop looking; what is being written is written."""
        self._is_ending = True
        self._wake.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()

    def note_switch(self) -> None:
        """The active arena was retired."""
        self.is_due = False
        self._wake.set()

    def note_end(self, used: Sequence[Used], num_launches: int) -> None:
        """The recorder was closed, and these arenas with so many launches were written."""

    def look(self, due_share: float = _DUE_SHARE) -> bool:
        """Empty what can be emptied, and say whether a switch is due; True where there was
        something."""
        has_kept = self._keeper.keep_ended() is not None
        if not self.is_due and self._keeper.share_in_use() >= due_share:
            self.is_due = True
        return has_kept

    def _run(self) -> None:
        if self._device != "cpu":
            gpu.ignore_captures()
        old_s = time.monotonic() + _OLD_S
        while not self._is_ending:
            try:
                is_old = time.monotonic() >= old_s
                # Anything at all is worth a switch when the last one is long ago.
                has_kept = self.look(1e-9 if is_old else _DUE_SHARE)
                old_s = time.monotonic() + _OLD_S if is_old else old_s
            except Exception as error:
                self._fail(error)
                return
            if not has_kept:
                self._wake.wait(_LOOK_S)
                self._wake.clear()
