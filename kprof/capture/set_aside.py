"""Sets aside what a process of a rank has left, where another process has the rank now, or where
the disk refuses it.

    run.kprof.rank-3.attempt-1.unfinished/    a recording of its own, for `kprof recover`
      said                                    the request
      rank-00003.live, rank-00003.said        copies
      parts                                   moved here
    /dev/shm/kprof-1000-v2/51bc.../           its memory, to which the arenas move

The arenas move in one step: whoever is killed leaves them where all is that decodes them.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from kprof.capture.journal import Begun, begin_journal, said
from kprof.capture.names import finished_of, rank_file, unfinished_of
from kprof.capture.shared_memory import discard, find_folders, find_memory, make_memory
from kprof.private import copy_plain, move, opened, read_plain
from kprof.rank_memory import LEDGER_MAGIC, Live

_COPIED: Final = ("live", "said")
_WORD_BYTES: Final = 8


def set_aside(
    directory: Path, rank: int, parts: Iterable[Path] = (), saved: Iterable[Path] = ()
) -> Path | None:
    """Move the arenas of a rank whose process has ended, and these parts, to a new recording;
    `saved` are those whose events the arenas have, too.

    Returns its directory; None where there are neither arenas that can be decoded nor parts. Raises
    OSError, and then all is where it was.
    """
    parts, saved = list(parts), list(saved)
    if not parts and not saved and not _has_arenas(directory, rank):
        return None
    place = _make_place(directory, rank)
    moved: list[tuple[Path, Path]] = []
    try:
        for begun in said(directory, None, Begun):
            begin_journal(place, begun)
        make_memory(place)
        of_rank = [rank_file(directory, rank, kind) for kind in _COPIED]
        for path in filter(Path.exists, of_rank):
            copy_plain(path, place / path.name)
        if {*directory.glob(f"part-{rank:05d}-*.parquet")} - {*parts, *saved}:
            _forget_events(rank_file(place, rank, "live"))
        for path, goal in _moves(directory, rank, place, parts, saved):
            move(path, goal)
            moved.append((path, goal))
    except BaseException:
        for before, now in reversed(moved):
            with contextlib.suppress(OSError):
                move(now, before)
        discard(place)
        raise
    return place


def _forget_events(live: Path) -> None:
    """Nobody must miss the events there whose parts stay where they are."""
    with contextlib.suppress(FileNotFoundError), opened(live, os.O_RDWR) as file:
        os.pwrite(file, bytes(_WORD_BYTES), Live.EVENTS * _WORD_BYTES)


def _has_arenas(directory: Path, rank: int) -> bool:
    for folder in find_folders(directory):
        with contextlib.suppress(FileNotFoundError):
            begin = read_plain(rank_file(folder, rank, "arena"), _WORD_BYTES)
            return int.from_bytes(begin, "little") == LEDGER_MAGIC
    return False


def _make_place(directory: Path, rank: int) -> Path:
    """A new directory beside the recording."""
    output = finished_of(directory)
    for number in itertools.count(1):
        name = f"{output.name}.rank-{rank}.attempt-{number}"
        place = unfinished_of(output.with_name(name))
        if os.path.lexists(finished_of(place)):
            continue
        with contextlib.suppress(FileExistsError):
            place.mkdir(mode=0o700)
            break
    return place


def _moves(
    directory: Path, rank: int, place: Path, parts: Iterable[Path], saved: Iterable[Path]
) -> list[tuple[Path, Path]]:
    """What gets which name, in this order. Nobody takes what was saved for a part while the arenas
    are in the other recording."""
    hidden = [(path, place / f"{path.name}.tmp") for path in saved]
    memory = find_memory(place) or place
    arenas = [
        (rank_file(folder, rank, "arena"), place if folder == directory else memory)
        for folder in find_folders(directory)
    ]
    return [
        *((path, place / path.name) for path in parts),
        *hidden,
        *((path, folder / path.name) for path, folder in arenas if path.exists()),
        *((path, path.with_suffix("")) for _, path in hidden),
    ]
