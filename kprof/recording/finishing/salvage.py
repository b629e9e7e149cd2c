"""Makes a part of what a rank held in its arenas when it was killed: see the ledger of arenas.

Everything in its files is data that may be damaged, and is checked like an arena's own contents.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np

from kprof import abi
from kprof.capture import journal
from kprof.capture.claims import launch_counts
from kprof.capture.files import reading
from kprof.capture.journal import Line, read_journal
from kprof.capture.losses import count_launches, launches_lost
from kprof.capture.manifest import Launch, RankInfo
from kprof.capture.names import events_file_name, rank_file
from kprof.capture.parts import (
    SALVAGED_PART,
    SAVED,
    PartWriter,
    damaged_parts,
    part_number,
    ranks_with_parts,
    read_info,
)
from kprof.capture.shared_memory import find_folders
from kprof.errors import ArenaError
from kprof.hangs.lines import read_waits
from kprof.on_use import pa
from kprof.private import open_plain, remove
from kprof.rank_memory import ARENAS_OFFSET, DISCARDED, LEDGER_HEADER, LEDGER_MAGIC, Word
from kprof.recording.arenas import ledger
from kprof.recording.arenas.arena_state import Handed, read_arena
from kprof.recording.arenas.turns import Layout
from kprof.recording.decoding.decode import Decoder
from kprof.recording.launches.region_ids import RegionIds
from kprof.recording.rank.rank_facts import info_of
from kprof.recording.retention.keeping import NEVER_CLOSED
from kprof.recording.retention.slowest import found_slowest

T = TypeVar("T")


def salvage(directory: Path, rank: int) -> bool:
    """Write what the arenas of a rank hold that has ended as one more part; False where nothing is
    there.

    It never overwrites a part, so an attempt that was interrupted can be repeated. Raises
    ArenaError where its files make no sense, or its kernels were built with other headers, and
    CaptureError.
    """
    if read_info(directory / events_file_name(rank)) is not None:
        # An earlier attempt has merged its parts, or the rank itself.
        return False
    with reading(directory):
        contents = (_read_arenas(folder, rank) for folder in find_folders(directory))
        content = next((each for each in contents if each is not None), None)
        lines, _ = read_journal(directory, rank)
    if content is None or not _of_kind(lines, journal.Opened):
        return False
    launches = ledger.launches_in(content)
    kept = _kept_parts(directory, rank)
    if not (kept or len(launches) or _of_kind(lines, journal.Captured)):
        return False
    waits = read_waits(directory).get(rank)
    num_unfinished = waits.num_launches - waits.num_finished if waits and waits.num_finished else 0
    slowest = found_slowest(directory, rank)
    salvaged = _Salvaged(rank, content, launches, lines, kept, num_unfinished, slowest)
    salvaged.has_damaged_parts = bool(damaged_parts(directory, rank))
    salvaged.num_launches = launch_counts(directory).get(rank)
    PartWriter(directory, rank, SALVAGED_PART).save(salvaged.tables(), salvaged.info)
    return True


def leave_to_another(directory: Path, rank: int) -> list[Path]:
    """Make the arenas of a rank decodable in another recording, without what the parts here hold.

    Returns the parts that go there as well: they hold what the arenas hold. Raises OSError.
    """
    paths = ranks_with_parts(directory).get(rank, [])
    kept = _kept_parts(directory, rank)
    for folder in find_folders(directory):
        with contextlib.suppress(FileNotFoundError):
            file = open_plain(rank_file(folder, rank, "arena"), os.O_RDWR)
            with os.fdopen(file, "r+b") as arena:
                content = np.memmap(arena, np.uint8, mode="r+")
            for account in ledger.accounts_in(content, len(content)):
                if account[Word.WRITTEN_TO] - 1 in kept:
                    account[Word.WRITTEN_TO] = DISCARDED
    for path in paths:
        if part_number(path) == SALVAGED_PART:
            remove(path)
    return [path for path in paths if (info := read_info(path)) and info.cut_short == SAVED]


def _read_arenas(folder: Path, rank: int) -> np.ndarray | None:
    """The file of the arenas; None where there is none that was begun."""
    try:
        with os.fdopen(open_plain(rank_file(folder, rank, "arena")), "rb") as file:
            data = np.memmap(file, np.uint8, mode="r")
    except (FileNotFoundError, ValueError):
        return None
    if len(data) < ARENAS_OFFSET:
        return None
    header = data[: LEDGER_HEADER.itemsize].view(LEDGER_HEADER)[0]
    return data if header["magic"] == LEDGER_MAGIC else None


def _of_kind(lines: Iterable[Line], kind: type[T]) -> list[T]:
    return [line for line in lines if isinstance(line, kind)]


def _kept_parts(directory: Path, rank: int) -> dict[int, RankInfo]:
    """What the parts that the rank has kept say, by number."""
    paths = ranks_with_parts(directory).get(rank, [])
    infos = {part_number(path): read_info(path) for path in paths}
    return {
        number: info
        for number, info in infos.items()
        if info and info.cut_short != SAVED and number != SALVAGED_PART
    }


class _Salvaged:
    """What is decoded of the arenas in `content`, and of the launches that are in no part.

    Its last `num_unfinished` launches may have been under way; 0: nobody knows how many. `slowest`
    names the slowest calls where only these were to be kept.
    """

    def __init__(
        self,
        rank: int,
        content: np.ndarray,
        launches: np.ndarray,
        lines: Sequence[Line],
        kept: dict[int, RankInfo],
        num_unfinished: int,
        slowest: str,
    ) -> None:
        self._launches, self._lines, self._kept = launches, lines, kept
        self._num_unfinished, self._slowest = num_unfinished, slowest
        self.has_damaged_parts = False
        # As the rank counted them; None: nobody knows.
        self.num_launches: int | None = None
        header = content[: LEDGER_HEADER.itemsize].view(LEDGER_HEADER)[0]
        self._num_forgotten = int(header["num_forgotten"])
        self._facts = _of_kind(lines, journal.Opened)[-1]
        # What the last part says: its counts are those of all.
        self._latest = kept[max(kept)] if kept else None
        layout = Layout(self._facts.arena_bytes, self._facts.num_arenas)
        self._content = content[ARENAS_OFFSET:][: max(layout.size_bytes, 0)]
        is_whole = (
            layout.arena_bytes >= abi.CHUNKS_OFFSET + abi.CHUNK_BYTES
            and layout.num_arenas >= 1
            and len(self._content) == layout.size_bytes
            and header["begin_of_rows"] >= ARENAS_OFFSET + layout.size_bytes
            and len(self._facts.switches) == abi.SWITCHES.itemsize
            and self._facts.info.rank == rank
        )
        if not is_whole:
            raise ArenaError(f"the arenas that rank {rank} has left are not whole")
        ranges = layout.ranges()
        accounts = ledger.accounts_in(content, len(ranges))
        self._arenas = sorted(
            zip(accounts, ranges, strict=False), key=lambda arena: arena[0][Word.TURN]
        )
        self._in_parts = {each.launch: each for info in kept.values() for each in info.launches}
        self._decoder = self._make_decoder()

    def _make_decoder(self) -> Decoder:
        facts, region_ids = self._facts, RegionIds()
        # In the order of the rank, so that regions have the ids that they have in its parts.
        tables = _of_kind(self._lines, journal.Table)
        # A damaged line may be equal to another one.
        idx_of = [region_ids.table_idx(table.regions) for table in tables] or [0]
        decoder = Decoder(facts.info, region_ids, facts.num_arenas, is_ring=facts.is_ring)
        if self._latest is not None:
            region_ids.table_idx(self._latest.regions)
            decoder.tally.restore(self._latest)
            decoder.cycle_clock = self._latest.cycle_clock
        numbers = self._launches["number_plus_1"] - 1
        idxs = np.array(idx_of)[np.minimum(self._launches["table"], len(idx_of) - 1)]
        region_ids.table_of_launch.update(zip(numbers.tolist(), idxs.tolist(), strict=True))
        latest = self._latest
        has_lost = facts.is_ring or bool(
            latest and (latest.counts.dropped or latest.counts.unsplit_launches)
        )
        for each in _of_kind(self._lines, journal.Captured):
            table_idx = idx_of[min(max(each.table, 0), len(idx_of) - 1)]
            region_ids.table_of_launch[each.row.launch] = table_idx
            decoder.replays.restore(each.row, self._in_parts.values(), has_lost=has_lost)
        known = [*region_ids.table_of_launch, *self._in_parts]
        region_ids.num_launches = max(known, default=-1) + 1
        return decoder

    def tables(self) -> Iterator[pa.Table]:
        """The events of the arenas that are in no part."""
        switches, lines = self._facts.switches, abi.Lines(*self._facts.lines)
        for account, (begin, end) in self._arenas:
            written_to = account[Word.WRITTEN_TO]
            is_written = written_to == DISCARDED or written_to - 1 in self._kept
            if not account[Word.TURN] or is_written:
                continue
            geometry = abi.ArenaGeometry.for_bytes(end - begin)
            handed = Handed.of_account(geometry, account, switches, lines)
            state, chunks = read_arena(_reader(self._content[begin:end]), handed)
            yield from self._decoder.decode(state, chunks, account[Word.END_LAUNCH] or None)

    def info(self) -> RankInfo:
        """What is known of the rank, once all tables were read."""
        facts = self._facts
        notes = [*facts.info.notes, *(note.text for note in _of_kind(self._lines, journal.Note))]
        if facts.is_ring:
            notes.append("the end of the run: what its ring held when it ended")
        rows = self._rows()
        if self._slowest:
            notes.append(self._slowest)
            if rows:
                launches = count_launches(len(rows))
                notes.append(f"also kept: what was in memory when it ended, {launches}")
        latest, counted = self._latest_launch(), self.num_launches
        # A row is there before its launch is counted.
        counted = latest + 1 if counted == latest else counted
        lost = launches_lost(counted, latest, is_whole=not self.has_damaged_parts)
        cut_short = f"{NEVER_CLOSED}, so {self._which()} may lack events; {lost}"
        return info_of(facts.info, self._decoder, rows, notes, cut_short)

    def _latest_launch(self) -> int:
        """The latest launch of which anything is known, or that nobody wanted."""
        known = [*(self._launches["number_plus_1"] - 1).tolist()]
        known += [each.row.launch for each in _of_kind(self._lines, journal.Captured)]
        known += [each.launch for each in self._in_parts.values() if each.captured < 0]
        if self._facts.is_ring or self._slowest:
            known.append(self._num_forgotten - 1)
        return max(known, default=-1)

    def _which(self) -> str:
        """Which launches may have been under way."""
        if self._num_unfinished > 1:
            return f"its last {self._num_unfinished} launches"
        # On the CPU target a launch returns when it has finished.
        if self._num_unfinished or self._facts.info.target == "cpu":
            return "its last launch"
        return "launches that had not finished"

    def _rows(self) -> list[Launch]:
        names = {each.number: each.name for each in _of_kind(self._lines, journal.Kernel)}
        rows = [
            Launch(number_plus_1 - 1, names.get(kernel, "an unknown kernel"), *fields)
            for kernel, _, *fields, number_plus_1 in self._launches.tolist()
        ]
        waiting = [row for row in rows if row.launch not in self._in_parts]
        return self._decoder.replays.merged(waiting)


def _reader(memory: np.ndarray) -> Callable[[int, int], np.ndarray]:
    return lambda begin, end: memory[begin:end]
