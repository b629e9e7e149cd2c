"""A thread that empties arenas while the workload runs; see kprof.recording.arenas.turns.

The thread looks how full the active arena is. When it is full enough, the thread asks for a switch.
The workload's own thread switches, during its next call of the recorder, or earlier when its
launches wanted to reserve enough. So neither waits for the other. A switch takes longer than a
launch, so a workload that tells of its steps switches between them, and within one only when the
arena could fill up.

Where events come faster than the thread may write them, no arena is free when a switch is due. Then
calls (see call_lengths) are left out whole until one is: their launches get null buffers, and
graphs write nothing. Only a call that is larger than what was left when it began has events that
find no room; those are counted as dropped.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from kprof.devices import gpu
from kprof.recording.endings import complaints
from kprof.recording.launches.launch_buffer import NUM_WANTED
from kprof.recording.retention.bell import Bell
from kprof.recording.retention.call_lengths import CallLengths, CallsOfAny
from kprof.recording.retention.keeping import Keeper
from kprof.recording.retention.retention import Retention

if TYPE_CHECKING:
    from kprof.recording.arenas.arena import Arena
    from kprof.recording.arenas.turns import Room

_LOOK_S: Final = 0.05
# After a switch, launches still come and run: a look would only take the interpreter from them.
_SETTLE_S: Final = 0.005
# A slow run, too, writes its events after this time: a process that is killed has lost no more.
_OLD_S: Final = 2.0


# Ends the recording.
Fail = Callable[[Exception], None]
# Takes a sentence for the capture.
Note = Callable[[str], None]


class Drainer:
    """Writes everything; `start` begins to look."""

    # Side by side in memory: what the beginning of a call needs.
    __slots__ = (
        "__dict__",
        "_num_at_call",
        "_num_of_call",
        "_quiet_chunks",
        "_turns",
        "calls_of_any",
        "due_chunks",
        "is_due",
    )

    # What wants to know of the workload's calls.
    calls: CallLengths | None = None

    # A switch is due when this share of the active arena is in use. The rest has to last until the
    # next look, and until the next call of the recorder after that.
    due_share = 0.25
    # Whether a switch that is due waits for the end of the step, until `urgent_share` is in use.
    waits_for_steps = True
    urgent_share = 0.5
    # Whether arenas switch only where a call ends. Otherwise they switch between any two launches.
    keeps_calls_whole = False
    # Whether there are no other ranks. Replays have no numbers before they are decoded, so those of
    # ranks that leave out different ones could not be told apart.
    is_alone = True

    def __init__(self, keeper: Keeper, retention: Retention, fail: Fail, note: Note) -> None:
        self.is_due = False
        self._is_urgent = False
        self._has_steps = False
        self._keeper, self._turns, self._retention = keeper, keeper.turns, retention
        self._fail, self._note = fail, note
        self._is_ending = False
        self._has_warned = self._has_switched = False
        # An arena, and the share of it that was in use at the last look.
        self._seen = keeper.turns.active, 0.0
        # Chunks of the active arena that are wanted: when the call began, and of the largest call.
        self._num_at_call = self._num_of_call = 0
        self._works_since = time.monotonic()
        self._num_chunks = keeper.turns.active.geometry.num_chunks
        self.due_chunks = self.due_share * self._num_chunks
        # Below it, a call that begins changes nothing.
        self._quiet_chunks = self.due_chunks if retention.drain else 0.0
        # Finds the calls that may be left out.
        self.calls_of_any = CallsOfAny()
        if retention.drain:
            self.calls = self.calls_of_any
            keeper.rest = self._rest
        self._wake = Bell()
        self._thread = threading.Thread(target=self._run, name="kprof drain", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def close(self) -> None:
        """Stop looking, after what is being written is written."""
        self._is_ending = True
        self._keeper.hurry()
        self._wake.ring()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()

    def note_launch(self, kernel: str, num_tracks: int, *, is_wanted: bool) -> None:
        """A launch with so many tracks is about to be made, that is not captured."""
        is_new_call = False
        if self.calls is not None and is_wanted:
            is_new_call = self.calls.note_launch(kernel)
        self.take_turns(is_new_call=is_new_call, may_move_graphs=False, num_tracks=num_tracks)
        self._check_room(kernel, num_tracks)

    def note_quiet_launch(self, kernel: str) -> bool:
        """The same in less time, for a launch of whole programs. Does nothing and returns False
        where an arena may take its turn, or where leaving out calls may begin or end."""
        if self._turns.has_captured or not self.is_quiet:
            return False
        if self.calls_of_any.note_launch(kernel):
            self._end_call()
        return True

    def note_replay(self, graph: int, room: Room | None = None) -> None:
        """A graph is about to be replayed on the current stream; arenas may take turns before."""
        if room is not None and self._turns.active.is_short_of(room.num_chunks):
            self.is_due = True
        is_new_call = not isinstance(self.calls, CallsOfAny) or self.calls.note_replay(graph)
        self.take_turns(is_new_call=is_new_call, may_move_graphs=True)

    @property
    def is_quiet(self) -> bool:
        """Whether a call that begins soon surely changes nothing: no arena takes its turn, and it
        is recorded or left out like the one before."""
        turns = self._turns
        num_wanted = turns.active.account[NUM_WANTED]
        if turns.is_left_out:
            # Within the call, an arena may have taken its turn.
            return not turns.free and num_wanted > 0
        return not self.is_due and num_wanted < self._quiet_chunks

    def note_replayed(self, graph: int, room: Room | None, *, was_ready: bool) -> None:
        """A graph was replayed on the current stream: get its room ready for the next time.

        With `was_ready` it was, so nobody called `note_replay`.
        """
        if was_ready:
            self._note_quiet_replay(graph)
        if room is not None and self.is_quiet and self._turns.prepare(room) and not was_ready:
            self._num_at_call += room.num_chunks

    def _note_quiet_replay(self, graph: int) -> None:
        self._has_steps = True
        if self.calls_of_any.note_replay(graph):
            self._end_call()
        if not self._turns.is_left_out and not self.is_quiet:
            # Launches since then have wanted much.
            self.take_turns(is_new_call=False, may_move_graphs=True)

    def note_step(self, *, is_captured: bool) -> None:
        """A step of the workload has ended; with `is_captured`, in the middle of a graph."""
        if self.calls is not None:
            self.calls.note_step()
        if not is_captured:
            self.take_turns(is_new_call=True, may_move_graphs=True)

    def take_turns(self, *, is_new_call: bool, may_move_graphs: bool, num_tracks: int = 0) -> None:
        """Let the next launches use another arena, if that is due; the launching thread calls this
        between two launches, the next of which has so many tracks.

        Only the end of a step may move graphs.
        """
        self._has_steps |= may_move_graphs
        self._turns.note_stream()
        may_move = may_move_graphs or not self._turns.has_captured
        if self._retention.drain and is_new_call and may_move:
            self._begin_call()
        may_wait = self.waits_for_steps and self._has_steps and not may_move_graphs
        if (
            not (self._must_switch(num_tracks) if may_wait else self._should_switch())
            or (self.keeps_calls_whole and not is_new_call)
            or not may_move
        ):
            return
        if self._turns.switch(self._keeper.launches.end):
            self.note_switch()

    def _end_call(self) -> int:
        """Another call begins; how many chunks of the active arena were wanted before."""
        self._count_left_out()
        num_wanted = self._turns.active.account[NUM_WANTED]
        if num_wanted - self._num_at_call > self._num_of_call:
            self._num_of_call = num_wanted - self._num_at_call
            # Until it begins, launches may want as much as those of a call.
            most = self.urgent_share * self._num_chunks - 2 * self._num_of_call
            self._quiet_chunks = min(self.due_chunks, most)
        self._num_at_call = num_wanted
        return num_wanted

    def _begin_call(self) -> None:
        """Leave out the call that begins, if it may find no room; else record again."""
        turns = self._turns
        num_wanted = self._end_call()
        seen, share = self._seen
        # Launches reserve up to a half.
        is_full = 0 < num_wanted > self.urgent_share * self._num_chunks - self._num_of_call
        is_full |= seen is turns.active and share >= self.urgent_share
        may_leave_out = self.is_alone or not turns.has_captured
        leaves_out = is_full and not turns.free and may_leave_out
        if leaves_out != turns.is_left_out:
            turns.leave_out(leaves_out)

    def _count_left_out(self) -> None:
        """A call has ended."""
        turns = self._turns
        if turns.is_left_out and not turns.is_off:
            self._keeper.launches.num_calls_left_out += 1

    def _should_switch(self) -> bool:
        return self.is_due or self._turns.active.share_wanted >= self.due_share

    def _must_switch(self, num_tracks: int) -> bool:
        """Whether the next launch may find no room, or the ones before it their further chunks."""
        active = self._turns.active
        share = active.share_wanted
        fits = share + num_tracks / active.geometry.num_chunks <= 1
        return self._is_urgent or share >= self.urgent_share or (share > 0 and not fits)

    def _check_room(self, kernel: str, num_tracks: int) -> None:
        """Say once which launch does not fit an arena, however empty that is."""
        num_chunks = self._turns.active.geometry.num_chunks
        if num_tracks <= num_chunks or self._has_warned:
            return
        self._has_warned = True
        text = self._retention.too_small(kernel, num_tracks, num_chunks)
        self._note(text)
        complaints.complain(f"rank {self._keeper.rank}: {text}")

    def note_switch(self) -> None:
        """The active arena was retired."""
        self.is_due = self._is_urgent = False
        self._seen, self._num_at_call = (self._turns.active, 0.0), 0
        self._has_switched = True
        self._wake.ring()

    def keep_all(self) -> None:
        """Write all that the arenas hold, and empty them; no kernel that records is running."""
        self._keeper.keep_all()

    def keep_rest(self) -> None:
        """The same when the recorder is closed, after `close`."""
        if self.calls is not None and not self.calls.has_steps:
            self._count_left_out()
        self._keeper.keep_all()

    def look(self, is_old: bool = False) -> bool:
        """Empty what can be emptied, and find out whether a switch is due.

        Where the last look with `is_old` is long ago, a single event is worth a switch. Returns
        whether an arena was emptied.
        """
        self._works_since = time.monotonic()
        has_emptied = self._empty_oldest()
        self._see(self._turns.active, self._keeper.share_in_use(), is_old=is_old)
        return has_emptied

    def _see(self, active: Arena, share: float, *, is_old: bool = False) -> None:
        self._seen = active, share
        self.is_due |= share >= (1e-9 if is_old else self.due_share)
        self._is_urgent |= share >= self.urgent_share

    def _rest(self) -> None:
        """Leave the interpreter to the workload, so long that this thread takes its share only.

        Looks at the active arena meanwhile. Nobody else who writes rests.
        """
        if threading.current_thread() is not self._thread:
            return
        worked_s = time.monotonic() - self._works_since
        end_s = time.monotonic() + worked_s * (1 / self._retention.drain_share - 1)
        while (left_s := end_s - time.monotonic()) > 0:
            if self._keeper.is_wanted(min(left_s, _LOOK_S)):
                break
            active = self._turns.active
            # This thread is the keeper's.
            self._see(active, active.snapshot_of_state().share_in_use)
        self._works_since = time.monotonic()

    def _empty_oldest(self) -> bool:
        return self._keeper.keep_ended() is not None

    def _run(self) -> None:
        if self._turns.device != "cpu":
            gpu.ignore_captures()
        old_s = time.monotonic() + _OLD_S
        while not self._is_ending:
            try:
                is_old = time.monotonic() >= old_s
                has_emptied = self.look(is_old)
                old_s = time.monotonic() + _OLD_S if is_old else old_s
            except Exception as error:
                self._fail(error)
                return
            if has_emptied:
                self._rest()
            elif self._wake.hear(_LOOK_S) and not self._is_ending and self._has_switched:
                self._has_switched = False
                self._wake.hear(_SETTLE_S)
