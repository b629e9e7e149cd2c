"""Asks the ranks of this host what only they know: what they have recorded, and their stacks.

A rank answers in a thread of its own (kprof.recording.rank.saver) and by faulthandler, so also
while its main thread waits for a kernel. One that is stopped does not, and one that holds the
interpreter lock gives its stack alone.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from kprof.capture.claims import ranks_in_use
from kprof.capture.footers import footer_of
from kprof.capture.names import rank_files
from kprof.capture.parts import ranks_with_parts, state_of_parts
from kprof.capture.processes import SAVE_SIGNAL, STACKS_SIGNAL, signal_all, wait_until
from kprof.capture.started import pids_here
from kprof.errors import require
from kprof.hangs.lines import read_answer, read_waits
from kprof.hangs.stacks import parse_stack
from kprof.private import read_plain
from kprof.rank_memory import LIVE_BYTES

_TIMEOUT_S: Final = 2.0
_POLL_S: Final = 0.02


@dataclass(frozen=True)
class Answers:
    """What ranks said: the stack of their main thread, and how many events they have recorded.

    Ranks that did not answer are missing. `silent` are those that gave their stack and could not
    save their records: only that needs the interpreter lock.
    """

    stacks: dict[int, tuple[str, ...]] = field(default_factory=dict)
    num_events: dict[int, int] = field(default_factory=dict)
    silent: frozenset[int] = frozenset()
    # The announced spans that are open in every rank, as bytes.
    spans: dict[int, bytes] = field(default_factory=dict)


def moved(before: Answers, now: Answers) -> frozenset[int]:
    """The ranks that have recorded more since, or begun other spans."""
    recorded = {rank for rank, num in now.num_events.items() if before.num_events.get(rank) != num}
    begun = {rank for rank, spans in now.spans.items() if before.spans.get(rank, spans) != spans}
    return frozenset(recorded | begun)


def ask(directory: Path, *, for_records: bool) -> Answers:
    """Ask all ranks of this host that still record, and wait for their answers for a while."""
    require("pyarrow", "asking ranks for their records")
    here = pids_here(directory, ranks_in_use(directory))
    pids = {rank: pid for rank, pid in here.items() if pid}
    stacks = _ask_for_stacks(directory, pids)
    saving = _ask_to_save(directory, pids) if for_records else {}
    silent = _wait_for_parts(directory, saving)
    spans = {rank: read_answer(directory, rank).spans for rank in here}
    return Answers(stacks, count_saved(directory), silent & frozenset(stacks), spans)


def _ask_for_stacks(directory: Path, pids: dict[int, int]) -> dict[int, tuple[str, ...]]:
    paths = {rank: path for rank, path in rank_files(directory, "live").items() if rank in pids}
    before = {rank: path.stat().st_size for rank, path in paths.items()}
    # The others have no handler: the signal would end them.
    paths = {rank: path for rank, path in paths.items() if before[rank] > LIVE_BYTES}
    for rank in paths:
        signal_all([pids[rank]], STACKS_SIGNAL)
    answers: dict[int, tuple[str, ...]] = {}
    end_s = time.monotonic() + _TIMEOUT_S
    while len(answers) < len(paths) and time.monotonic() < end_s:
        # A stack that is being written is not looked at.
        time.sleep(_POLL_S)
        for rank, path in paths.items():
            stack = parse_stack(read_plain(path)[before[rank] :].decode(errors="replace"))
            if stack:
                answers[rank] = stack
    return answers


def _ask_to_save(directory: Path, pids: dict[int, int]) -> dict[int, list[tuple[str, int]]]:
    """The parts that ranks had when they were asked."""
    before: dict[int, list[tuple[str, int]]] = {}
    for rank, waits in read_waits(directory).items():
        if pids.get(rank) == waits.pid and waits.save_signal == SAVE_SIGNAL:
            before[rank] = state_of_parts(directory, rank)
            signal_all([waits.pid], SAVE_SIGNAL)
    return before


def _wait_for_parts(directory: Path, before: dict[int, list[tuple[str, int]]]) -> frozenset[int]:
    """Wait until all have saved; returns those that have not."""

    def silent() -> frozenset[int]:
        return frozenset(
            rank for rank, parts in before.items() if state_of_parts(directory, rank) == parts
        )

    wait_until(lambda: not silent(), _TIMEOUT_S)
    return silent()


def count_saved(directory: Path) -> dict[int, int]:
    """How many events every rank has written."""
    import pyarrow as pa

    counts = {}
    for rank, paths in ranks_with_parts(directory).items():
        with contextlib.suppress(pa.ArrowException, OSError):
            counts[rank] = sum(footer_of(path).num_rows for path in paths)
    return counts
