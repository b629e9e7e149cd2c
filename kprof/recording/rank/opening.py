"""What a recorder is made of when it opens, and how others get to know of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from kprof.capture.journal import Opened
from kprof.capture.parts import remove_parts
from kprof.capture.started import announce_rank
from kprof.clocks.keeper import ClockKeeper
from kprof.devices.gpu import capture_reader
from kprof.recording.arenas.turns import Turns
from kprof.recording.decoding.decode import Decoder
from kprof.recording.endings import lifetime
from kprof.recording.launches.progress import Progress
from kprof.recording.rank.outliving import open_home
from kprof.recording.rank.rank_facts import RankFacts
from kprof.recording.rank.waits import Waits
from kprof.recording.retention.keeping import Keeper

if TYPE_CHECKING:
    from kprof.capture.claims import Claim
    from kprof.recording.arenas.ledger import Ledger
    from kprof.recording.launches.delays import Delays
    from kprof.recording.launches.launch_log import LaunchLog
    from kprof.recording.retention.retention import Retention


class Parts(NamedTuple):
    """The parts of an open recorder; `ledger` is None where nothing outlives the process."""

    facts: RankFacts
    clocks: ClockKeeper
    waits: Waits
    turns: Turns
    keeper: Keeper
    progress: Progress
    ledger: Ledger | None
    is_capturing: Callable[[], bool]


def open_parts(
    directory: Path,
    rank: int,
    world_size: int,
    device: str,
    kept: Retention,
    arena_bytes: int,
    launches: LaunchLog,
    claim: Claim,
    delays: Delays | None,
    *,
    has_schedule: bool,
) -> Parts:
    """Measure the device and allocate the arenas."""
    num_arenas, total_bytes = kept.num_arenas, kept.total_bytes(arena_bytes)
    place, wanted = (directory, rank), launches.wanted
    facts = RankFacts.measure(rank, device, wanted, has_schedule)
    note = facts.notes.append
    clocks = ClockKeeper(*place, device, facts.base.clock, launches)
    waits = Waits(*place, world_size, device, note)
    home = open_home(*place, device, kept, total_bytes, claim.journal, note)
    turns = Turns(total_bytes, device, wanted, num_arenas, waits.lines, home)
    is_ring = bool(kept.ring_bytes)
    decoder = Decoder(facts.base, launches.region_ids, num_arenas, is_ring=is_ring)
    progress = Progress(claim.progress, clocks.workload_s)
    keeper = Keeper(*place, turns, decoder, launches, facts.info, progress)
    ledger = None if home is None else home.ledger
    if ledger is not None:
        handed = turns.active.handed()
        sizes = handed.geometry.size_bytes, num_arenas
        known = Opened(facts.info(decoder), *sizes, is_ring, handed.switches, handed.lines)
        # From here on everything is kept.
        ledger.begin(known)
        launches.ledger = ledger
    launches.journal = claim.journal
    launches.recent = waits.recent_launches or launches.recent
    is_capturing = capture_reader(device)
    if delays is not None:
        delays.begin(rank, facts.base.clock, turns.delay, launches, note, is_capturing)
    return Parts(facts, clocks, waits, turns, keeper, progress, ledger, is_capturing)


def announce(
    directory: Path, rank: int, world_size: int, recorder: lifetime.Open, waits: Waits
) -> None:
    """Let others know of a recorder: from here on the process may be told to stop."""
    remove_parts(directory, rank)
    waits.open_stacks()
    lifetime.import_what_closing_needs()
    lifetime.add(directory, rank, recorder)
    announce_rank(directory, rank, world_size)
