"""Launches that a graph captures, and replays of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kprof.capture.journal import Journal
    from kprof.recording.arenas.turns import Room, Turns
    from kprof.recording.launches.launch_buffer import LaunchBuffer
    from kprof.recording.launches.launch_log import Plan
    from kprof.recording.retention.drainer import Drainer
    from kprof.recording.retention.keeping import Keeper


def captured_buffer(
    keeper: Keeper, journal: Journal, plan: Plan, number: int, is_whole: bool
) -> LaunchBuffer:
    """The buffer of a launch that is replayed; a pause concerns its replays.

    `is_whole`: each of its programs has one span.
    """
    # A recorder that is off loads nothing for it.
    from kprof.capture.journal import Captured

    row = keeper.launches.row(number, plan)
    keeper.decoder.replays.add(row)
    journal.say(Captured(row, plan.table_idx))
    return keeper.turns.captured_buffer(number, plan.num_blocks * is_whole)


def prepare_replay(
    turns: Turns, drainer: Drainer | None, graph: int, room: Room | None, *, was_ready: bool
) -> None:
    """A graph was replayed on the current stream: what can be done now for its next replay delays
    nothing, because the GPU is busy."""
    if drainer is not None and was_ready:
        drainer.note_quiet_replay(graph)
    is_quiet = drainer is None or drainer.is_quiet
    if room is not None and is_quiet and not turns.active.is_short_of(room.num_chunks):
        turns.prepare(room)
        if drainer is not None and not was_ready:
            drainer.note_prepared(room.num_chunks)


def announce_replay(turns: Turns, drainer: Drainer | None, graph: int, room: Room | None) -> None:
    """A graph is about to be replayed on the current stream; arenas may take turns before it."""
    if drainer is not None:
        if room is not None and turns.active.is_short_of(room.num_chunks):
            drainer.is_due = True
        drainer.note_replay(graph)
    turns.announce(room)
