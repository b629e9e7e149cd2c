"""Launches of kernels whose blocks have one event each, in as little of the host's time as Python
allows: `kprof record --inductor` makes them by the thousand.

A program that does more than launch finds little of the recorder in its caches. So what counts is
how much code and how many objects a launch touches.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import get_ident
from typing import TYPE_CHECKING

from kprof.recording.launches.launch_buffer import FIRST_RESERVED, NUM_RESERVING, NUM_WANTED
from kprof.recording.rank.null_recorder import AnyRecorder

if TYPE_CHECKING:
    from kprof.recording.arenas.turns import Turns
    from kprof.recording.launches.launch_log import LaunchLog, Plan
    from kprof.recording.launches.whole_launch import Whole, Words
    from kprof.recording.retention.drainer import Drainer


class WholeLaunches(AnyRecorder):
    """The part of a recorder that makes these launches."""

    # Side by side in memory.
    __slots__ = (
        "_drainer",
        "_is_capturing",
        "_is_plain",
        "_launcher",
        "_launches",
        "_num_calls",
        "_numbers",
        "_turns",
    )
    _turns: Turns
    _launches: LaunchLog
    _drainer: Drainer | None
    _plans: dict[tuple[str, int, int, int], Plan]
    _is_capturing: Callable[[], bool]
    _numbers: memoryview
    # Whether a launch is recorded, unless its call is left out, and nobody else hears of it.
    _is_plain: bool
    _num_calls: int
    # The thread that made the last launch.
    _launcher: int

    def launch_whole(self, whole: Whole, stream: int | None) -> Words | None:
        """The words of the next launch, which goes to `stream`; None where it is not recorded.

        Does the same as `launch`, in one piece where nothing but a reservation is due. Where a call
        begins, too: it finds even less in the caches than other launches.
        """
        turns, drainer, (limits, floor, words) = self._turns, self._drainer, whole.made
        arena = turns.active
        if limits is not arena.limits or not self._is_plain or self._is_capturing():
            return self._launch_slowly(whole)
        account = arena.account
        if drainer is not None:
            if stream is not None and stream not in turns.streams:
                turns.streams.add(stream)
            calls = drainer.calls_of_any
            is_due = drainer.is_due or account[NUM_WANTED] >= drainer.due_chunks
            if whole.name == calls.kernel or not calls.kernel or calls.num_more <= 0:
                if not drainer.note_quiet_launch(whole.name):
                    return self._launch_slowly(whole)
            elif is_due and turns.free and not turns.is_left_out:
                return self._launch_slowly(whole)
            else:
                calls.num_more -= 1
            if turns.is_left_out:
                self._num_calls = self._numbers[1] = self._num_calls + 1
                self._launches.leave_out(whole.plan)
                return None
        # Without a call before the stores: other threads launch, too.
        first = account[FIRST_RESERVED] - whole.num_chunks
        num_wanted = account[NUM_WANTED] + whole.num_chunks
        if first < floor or num_wanted >> 32:
            return self._launch_slowly(whole)
        account[FIRST_RESERVED] = first
        account[NUM_WANTED] = num_wanted
        account[NUM_RESERVING] += 1
        self._num_calls = self._numbers[1] = self._num_calls + 1
        self._launcher = get_ident()
        number = self._launches.add(whole.plan)
        self._numbers[0] = number + 1
        arena_word, launch_word, chunk_word, rest = words
        return arena_word, launch_word + 2 * number, chunk_word + 2 * first, rest

    def _launch_slowly(self, whole: Whole) -> Words | None:
        """The same where more is due."""
        words = super().launch_whole(whole, None)
        arena, plan = self._turns.active, self._plans.get((whole.name, whole.num_blocks, 0, 0))
        if plan is not None and plan.regions is whole.regions and whole.made[0] is not arena.limits:
            # One with a limit to store is more than a reservation.
            whole.make_for(plan, None if arena.has_raised_limit else (arena.address, arena.limits))
        return words
