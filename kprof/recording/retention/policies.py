"""Which policy a retention asks for.

A policy is a Drainer: it hears of launches and steps, and empties arenas in its own thread.
"""

from __future__ import annotations

from kprof.recording.retention.drainer import Drainer, Fail, Note
from kprof.recording.retention.flight import FlightRecorder
from kprof.recording.retention.keeping import Keeper
from kprof.recording.retention.retention import Retention
from kprof.recording.retention.slowest import KeepSlowest


def start_drainer(
    keeper: Keeper, retention: Retention, fail: Fail, note: Note, num_ranks: int
) -> Drainer | None:
    """The drainer that `retention` asks for, started; None where arenas are emptied on request."""
    if retention.num_arenas == 1:
        return None
    kind = FlightRecorder if retention.ring_bytes else Drainer if retention.drain else KeepSlowest
    drainer = kind(keeper, retention, fail, note)
    drainer.is_alone = num_ranks == 1
    drainer.start()
    return drainer
