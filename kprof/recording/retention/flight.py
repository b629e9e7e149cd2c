"""A flight recorder: arenas form a ring that holds the latest events.

    launches ──> active ──switch──> retired ... retired ──> the oldest is emptied unread

Any rank, or kprof itself, may ask all ranks for a dump: it adds a line to the journal of the
recording, in which every rank looks for the next one. A rank that sees a request retires its active
arena in its next call of the recorder, and writes all retired ones. A rank that makes no call for
two seconds may hang. It saves a copy of what its arenas hold, as it does before it is killed.
"""

from __future__ import annotations

import functools
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import Final

from kprof.capture.journal import Dump, said, say
from kprof.errors import CaptureError
from kprof.recording.arenas.turns import Used
from kprof.recording.endings import complaints
from kprof.recording.retention.call_lengths import SlowCalls
from kprof.recording.retention.drainer import Drainer, Fail, Note
from kprof.recording.retention.keeping import Keeper
from kprof.recording.retention.retention import NUM_RETIRED_OF_RING, Retention

# Looks without a call of the recorder, at 20 a second.
_MAX_PATIENCE: Final = 40


def ask_for_dump(directory: Path, why: str, rank: int) -> None:
    """Ask all ranks for a dump; complains where the disk refuses."""
    try:
        say(directory, None, Dump(why, rank))
    except CaptureError as error:
        complaints.complain(f"rank {rank}: no dump ({why}): {error}")


class FlightRecorder(Drainer):
    """Empties what is older than the ring, and writes what a request asks for."""

    due_share = 0.75
    waits_for_steps = False

    def __init__(self, keeper: Keeper, retention: Retention, fail: Fail, note: Note) -> None:
        super().__init__(keeper, retention, fail, note)
        if retention.slower_than:
            ask = functools.partial(ask_for_dump, keeper.directory, rank=keeper.rank)
            self.calls = SlowCalls(retention.slower_than, ask, keeper.now_s)
        self._num_seen = 0
        self._wanted: Dump | None = None
        self._patience = _MAX_PATIENCE
        # The latest arena that belongs to the dump; None until it is retired.
        self._last: Used | None = None
        self._has_noted = False
        # Calls of the recorder since the last switch, and after how many of them to look.
        self._num_calls, self._look_at = 0, 1

    def take_turns(self, *, is_new_call: bool, may_move_graphs: bool, num_tracks: int = 0) -> None:
        """Let the next launches use another arena, if that is due.

        An arena is a small part of the ring, and launches may fill it between two looks of the
        thread: their number says when to look earlier.
        """
        super().take_turns(
            is_new_call=is_new_call, may_move_graphs=may_move_graphs, num_tracks=num_tracks
        )
        self._num_calls += 1
        if self._num_calls >= self._look_at:
            self._look_at = 2 * self._num_calls
            self._wake.ring()

    def note_switch(self) -> None:
        """The active arena was retired. The next one may fill up as fast."""
        self._num_calls, self._look_at = 0, max(1, self._num_calls // 2)
        if self._wanted is not None and self._last is None:
            self._last = self._turns.retired[-1]
        super().note_switch()

    def look(self, is_old: bool = False) -> bool:
        """Write what belongs to a dump, else empty what is too old.

        Returns whether an arena was emptied. A ring does not switch just because the last switch is
        long ago.
        """
        del is_old
        self._see_request()
        if self._last is not None:
            return self._write()
        if len(self._turns.retired) > NUM_RETIRED_OF_RING and self._keeper.keep_ended(()):
            return True
        if self._wanted is None and self._look_at_share() >= self.due_share:
            self.is_due = True
        return False

    def _look_at_share(self) -> float:
        """How full the active arena is. The next look comes when half of the calls were made for
        which it has room, going by those so far."""
        num_calls, share = self._num_calls, self._keeper.share_in_use()
        # Fewer calls: the arena was retired meanwhile.
        if 0 < share < self.due_share and self._num_calls >= num_calls:
            room = round(num_calls * (self.due_share - share) / share / 2)
            self._look_at = num_calls + max(1, num_calls // 8, room)
        return share

    def keep_rest(self) -> None:
        """Write what the ring holds when the recorder is closed."""
        self._note_late_requests()
        used = self._keeper.keep_all()
        before = "; what came before was overwritten" if self._keeper.has_discarded else ""
        stretch = describe_stretch(used[0].begin_s, used[-1].end_s)
        self._note(f"the end of the run: {stretch}{before}")
        if num_dropped := self._keeper.decoder.tally.counts.dropped:
            why = "came faster than the ring was emptied, or a launch needs more than 1/32 of it"
            if self._has_warned:
                why = "had no room in their part of the ring"
            self._note(
                f"{num_dropped:,} events {why}; a larger --ring has room for more of them at once"
            )

    def _note_late_requests(self) -> None:
        """Say which dumps were asked for so late that the end of the run has what they wanted."""
        while True:
            if self._wanted is not None and not self._has_noted:
                self._note(f"{self._name_dump(self._wanted)}: just before the end of the run")
            self._wanted = None
            self._see_request()
            if self._wanted is None:
                return

    def _see_request(self) -> None:
        if self._wanted is None:
            wanted = said(self._keeper.directory, None, Dump)
            if len(wanted) <= self._num_seen:
                return
            self._wanted = wanted[self._num_seen]
            self._num_seen += 1
            self._patience, self._has_noted = _MAX_PATIENCE, False
            self.is_due = True
        elif self._last is None:
            self._patience -= 1
            if self._patience == 0:
                self._note_dump(time.time())
                self._keeper.save()

    def _write(self) -> bool:
        """Write the next arena of the dump."""
        assert self._last is not None
        self._note_dump(self._last.end_s)
        kept = self._keeper.keep_ended()
        if kept is self._last:
            self._wanted = self._last = None
        return kept is not None

    def _note_dump(self, end_s: float) -> None:
        """Say what the dump has, before its first part is written: the rank may be killed then."""
        assert self._wanted is not None
        if not self._has_noted:
            self._has_noted = True
            stretch = describe_stretch(self._turns.begin_s, end_s)
            self._note(f"{self._name_dump(self._wanted)}: {stretch}")

    def _name_dump(self, wanted: Dump) -> str:
        """The request that was seen last, in words."""
        asked = "" if wanted.rank < 0 else f" of rank {wanted.rank}"
        return f"dump {self._num_seen - 1}{asked} ({wanted.why})"


def describe_stretch(begin_s: float, end_s: float) -> str:
    """`from 12:03:11.204 to 12:03:12.010 UTC`."""
    begin, end = (
        datetime.fromtimestamp(each, timezone.utc).strftime("%H:%M:%S.%f")[:-3]
        for each in (begin_s, end_s)
    )
    return f"from {begin} to {end} UTC"
