"""One look at a run: under way, or ended."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

import msgspec

from kprof.capture.claims import num_calls_of
from kprof.capture.files import check_recording
from kprof.capture.losses import name_ranks
from kprof.capture.names import unfinished_of
from kprof.capture.shared_memory import memory_of
from kprof.errors import NotACaptureError
from kprof.hangs.asking import ask, moved
from kprof.hangs.diagnosis import diagnose
from kprof.hangs.evidence import read_run, with_records
from kprof.hangs.hosts import diagnose_hosts
from kprof.hangs.lines import has_waits, signature_of
from kprof.hangs.report import HANG_NAME, Hang, make_report, read_hang, write_hang
from kprof.hangs.state import Condition, RunState

# Between two questions: who has recorded more meanwhile is at work.
_BETWEEN_S: Final = 1.0


def look_at(path: Path) -> Hang:
    """What keeps a run waiting: at this moment, or when it hung.

    Raises NotACaptureError where there is no run, or none that hung, and CorruptCaptureError.
    """
    unfinished = unfinished_of(path)
    for directory in (path, unfinished):
        if memory_of(directory):
            check_recording(directory)
            return look_now(directory)
    for directory in (path, unfinished):
        if found := read_hang(directory):
            return found
    if not path.is_dir() and not unfinished.is_dir():
        raise NotACaptureError(f"{path} is no run; give the directory that kprof record writes")
    raise NotACaptureError(
        f"{path} has ended and did not hang; kprof report {path} says who waited for whom"
    )


def explain_timeout(directory: Path, waited_s: float) -> str:
    """Why kernels of this process have given up after `waited_s`, in a sentence.

    Empty where nothing is known of their waits. Keeps the report as hang.json.
    """
    if not memory_of(directory):
        return ""
    run, hang = _look(directory, waited_s)
    if not run.waits:
        return ""
    write_hang(directory, hang)
    return hang.diagnosis


def note_hang(directory: Path) -> str:
    """What keeps a run waiting that is about to be killed, in a sentence.

    Keeps the report as hang.json. Does nothing, and returns nothing, where no kernel waits, where
    something moves while this looks, and where a report is there already.
    """
    if (directory / HANG_NAME).exists() or not has_waits(directory):
        return ""
    before = signature_of(directory)
    run, hang = _look(directory, _BETWEEN_S)
    if signature_of(directory) != before or not run.waits or diagnose(run).is_moving:
        return ""
    write_hang(directory, hang)
    return hang.diagnosis


def _look(directory: Path, idle_s: float) -> tuple[RunState, Hang]:
    """Asks twice, so that ranks that move are told from those that do not."""
    waits, calls = has_waits(directory), num_calls_of(directory)
    before = ask(directory, for_records=waits)
    time.sleep(_BETWEEN_S)
    now = ask(directory, for_records=waits)
    called = {rank for rank, num in num_calls_of(directory).items() if calls.get(rank) != num}
    run = read_run(directory, now, moving=moved(before, now) | called)
    return run, make_report(run, diagnose(run), idle_s)


def look_now(directory: Path) -> Hang:
    """What keeps a run waiting that is under way."""
    run, hang = _look(directory, 0.0)
    if run.waits:
        return hang
    running = [rank for rank in run.ranks.values() if rank.condition is not Condition.ENDED]
    if running and all(rank.is_moving for rank in running):
        moves = "moves" if len(running) == 1 else "move"
        who = name_ranks([rank.rank for rank in running])
        diagnosis = f"nothing hangs: {who} {moves}, and no kernel waits for long"
        return msgspec.structs.replace(hang, diagnosis=diagnosis)
    # Kernels do not say that they wait: what they have done last is all that is known.
    ask(directory, for_records=True)
    run = with_records(directory, run)
    diagnosis = f"no kernel says that it waits: {diagnose_hosts(run)}"
    hang = make_report(run, diagnose(run), 0.0)
    return msgspec.structs.replace(hang, diagnosis=diagnosis, kind="hosts")
