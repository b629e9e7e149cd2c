"""Makes a part of what a rank held in its arenas when it was killed: see kprof.recording.ledger.

Everything in its files is data that may be damaged, and is checked like an arena's own contents.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np

from kprof import abi
from kprof.capture.manifest import ArenaUse, CycleClock, Launch, RankInfo, RegionLosses
from kprof.capture.parts import PartWriter, part_number, ranks_with_parts, read_info
from kprof.errors import ArenaError
from kprof.hangs.lines import WAITS_NAME, RankWaits, lines_path
from kprof.recording.arena_state import Handed, read_arena
from kprof.recording.decode import Decoder
from kprof.recording.keeping import NEVER_CLOSED, SAVED
from kprof.recording.launch_log import LaunchRow
from kprof.recording.ledger import (
    ACCOUNT,
    ACCOUNTS_OFFSET,
    ARENAS_OFFSET,
    DISCARDED,
    HEADER,
    LAUNCH,
    MAGIC,
    ROWS_PER_FILE,
    Captured,
    Facts,
    Kernel,
    Line,
    Note,
    Table,
    arena_path,
    launches_path,
    ledger_path,
)
from kprof.recording.region_ids import RegionIds
from kprof.recording.tally import sum_of
from kprof.recording.turns import Layout
from kprof.regions import RegionTable

if TYPE_CHECKING:
    import pyarrow as pa

_LINES: Final = msgspec.json.Decoder(Line)


def salvage(directory: Path, rank: int) -> bool:
    """Write what the arenas of a rank hold that has ended as one more part; False where nothing is
    there.

    It takes the place of a part that was saved while the rank hung. Raises ArenaError where its
    files make no sense, or its kernels were built with other headers, and CaptureError.
    """
    content = next(filter(None, map(_read_arenas, _places(directory, rank))), None)
    lines = _Lines.read(ledger_path(directory, rank))
    if content is None or lines.facts is None:
        return False
    parts, launches = _Parts.of(directory, rank), _read_rows(content)
    if not (parts.kept or len(launches) or lines.captured):
        return False
    waits = RankWaits.read(lines_path(directory, rank))
    num_unfinished = waits.num_launches - waits.num_finished if waits and waits.num_finished else 0
    salvaged = _Salvaged(content, lines, parts, launches, num_unfinished)
    salvaged.write(PartWriter(directory, rank))
    return True


@dataclass(frozen=True)
class _Content:
    """The file of the arenas; `number` is the rank, and launches are in `folder`, too."""

    folder: Path
    rank: int
    data: np.ndarray

    @property
    def num_forgotten(self) -> int:
        """The first so many launches are in parts, or nobody wants them."""
        return int(self.data[: HEADER.itemsize].view(HEADER)["num_forgotten"][0])


def ranks_with_arenas(directory: Path) -> set[int]:
    """The ranks whose arenas are still there."""
    return {int(path.stem[len("rank-") :]) for path in directory.glob("rank-?????.ledger")}


def _places(directory: Path, rank: int) -> list[tuple[Path, int]]:
    return [(directory / WAITS_NAME, rank), (directory, rank)]


def _read_arenas(place: tuple[Path, int]) -> _Content | None:
    """None where there is no file that was begun."""
    folder, rank = place
    try:
        data = np.memmap(arena_path(folder, rank), np.uint8, mode="r")
    except (OSError, ValueError):
        return None
    if len(data) < ARENAS_OFFSET or int(data[: HEADER.itemsize].view(HEADER)["magic"][0]) != MAGIC:
        return None
    return _Content(folder, rank, data)


@dataclass
class _Lines:
    """What the JSON lines say; those that were cut short are left out."""

    facts: Facts | None = None
    tables: list[RegionTable] = field(default_factory=list)
    kernels: dict[int, str] = field(default_factory=dict)
    captured: list[Captured] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @classmethod
    def read(cls, path: Path) -> _Lines:
        """Nothing where there is no file."""
        lines = cls()
        with contextlib.suppress(OSError):
            for text in path.read_bytes().splitlines():
                with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError):
                    lines._add(_LINES.decode(text))
        return lines

    def _add(self, line: Line) -> None:
        if isinstance(line, Facts):
            self.facts = line
        elif isinstance(line, Table):
            self.tables.append(line.regions)
        elif isinstance(line, Kernel):
            self.kernels[line.number] = line.name
        elif isinstance(line, Captured):
            self.captured.append(line)
        elif isinstance(line, Note):
            self.notes.append(line.text)


def _read_rows(content: _Content) -> np.ndarray:
    """The launches that are in no part yet."""
    first = content.num_forgotten // ROWS_PER_FILE
    files: list[np.ndarray] = []
    while (path := launches_path(content.folder, content.rank, first + len(files))).exists():
        files.append(np.fromfile(path, LAUNCH))
    rows = np.concatenate(files) if files else np.empty(0, LAUNCH)
    rows = rows[content.num_forgotten % ROWS_PER_FILE :]
    is_whole = (rows["number_plus_1"] > 0) & (rows["number_plus_1"] < abi.NO_CHUNK)
    whole: np.ndarray = rows[is_whole]
    return whole


@dataclass(frozen=True)
class _Parts:
    """The parts that a rank has kept, by number, and the number that the next one has."""

    kept: dict[int, RankInfo]
    next_number: int

    @staticmethod
    def of(directory: Path, rank: int) -> _Parts:
        """Of an unfinished capture."""
        infos = {
            part_number(path): info
            for path in ranks_with_parts(directory).get(rank, [])
            for info in [read_info(path)]
            if info is not None
        }
        kept = {number: info for number, info in infos.items() if info.cut_short != SAVED}
        return _Parts(kept, max(kept, default=-1) + 1)

    @property
    def latest(self) -> RankInfo | None:
        """What the last one says: its counts are those of all."""
        return self.kept[max(self.kept)] if self.kept else None

    def launches(self) -> Iterator[Launch]:
        """Of all parts."""
        for info in self.kept.values():
            yield from info.launches


class _Salvaged:
    """What is decoded of a rank's arenas.

    Its last `num_unfinished` launches may have been under way; 0: nobody knows how many.
    """

    def __init__(
        self,
        content: _Content,
        lines: _Lines,
        parts: _Parts,
        launches: np.ndarray,
        num_unfinished: int,
    ) -> None:
        self._num_unfinished = num_unfinished
        assert lines.facts is not None
        self._facts, self._lines, self._parts = lines.facts, lines, parts
        self._content = content.data[ARENAS_OFFSET:]
        self._accounts = content.data[ACCOUNTS_OFFSET:ARENAS_OFFSET]
        layout = Layout(self._facts.arena_bytes, self._facts.num_arenas)
        is_whole = (
            layout.arena_bytes >= abi.CHUNKS_OFFSET + abi.CHUNK_BYTES
            and layout.num_arenas >= 1
            and len(self._content) == layout.size_bytes
            and len(self._facts.switches) == abi.SWITCHES.itemsize
        )
        if not is_whole:
            raise ArenaError(f"the arenas that rank {content.rank} has left are not whole")
        self._ranges = layout.ranges()
        self._launches = launches
        self._in_parts = {each.launch: each for each in parts.launches()}
        self._decoder = self._make_decoder(content.rank)

    def write(self, writer: PartWriter) -> None:
        """Write the part; raises CaptureError."""
        writer.begin_at(self._parts.next_number)
        writer.save(self._tables(), self._info)

    def _make_decoder(self, rank: int) -> Decoder:
        facts = self._facts
        probe, clock = facts.info.probe, facts.info.clock
        region_ids = RegionIds()
        # In the order of the rank, so that regions have the ids that they have in its parts.
        for table in self._lines.tables:
            region_ids.table_idx(table)
        if self._parts.latest is not None:
            region_ids.table_idx(self._parts.latest.regions)
        rate = probe.cycles_per_second if probe else 1e9
        num_arenas, is_ring = facts.num_arenas, facts.is_ring
        decoder = Decoder(rank, clock, region_ids, rate, num_arenas, is_ring=is_ring)
        num_tables = max(len(self._lines.tables), 1)
        numbers = self._launches["number_plus_1"] - 1
        tables = np.minimum(self._launches["table"], num_tables - 1)
        region_ids.table_of_launch.update(zip(numbers.tolist(), tables.tolist(), strict=True))
        self._restore_replays(decoder)
        known = [*region_ids.table_of_launch, *self._in_parts]
        region_ids.num_launches = max(known, default=-1) + 1
        return decoder

    def _restore_replays(self, decoder: Decoder) -> None:
        latest = self._parts.latest
        has_lost = self._facts.is_ring or bool(
            latest and (latest.counts.dropped or latest.counts.unsplit_launches)
        )
        for each in self._lines.captured:
            row = each.row
            decoder.region_ids.table_of_launch[row.launch] = each.table
            decoder.replays.restore(row, self._in_parts.values(), has_lost=has_lost)

    def _tables(self) -> Iterator[pa.Table]:
        accounts = self._accounts[: len(self._ranges) * ACCOUNT.itemsize].view(ACCOUNT)
        for idx in np.argsort(accounts["turn"], kind="stable").tolist():
            account, (begin, end) = accounts[idx], self._ranges[idx]
            written_to = int(account["written_to"])
            is_written = written_to == DISCARDED or written_to - 1 in self._parts.kept
            if not account["turn"] or is_written:
                continue
            memory = self._content[begin:end]
            handed = self._handed(account, end - begin)
            state, chunks = read_arena(_reader(memory), handed)
            yield from self._decoder.decode(state, chunks, int(account["end_launch"]) or None)

    def _handed(self, account: np.void, size_bytes: int) -> Handed:
        """What the account says, within what the arena can hold."""
        geometry = abi.ArenaGeometry.for_bytes(size_bytes)
        most = geometry.num_chunks // geometry.num_cursors
        limit = min(int(account["limit"]), most)
        first_reserved = min(int(account["first_reserved"]), geometry.num_chunks)
        return Handed(
            geometry,
            least_limit=min(int(account["least_limit"]), limit),
            limit=limit,
            first_reserved=max(first_reserved, limit * geometry.num_cursors),
            num_reserved_wanted=int(account["num_reserved_wanted"]),
            has_claiming_launches=bool(account["has_claiming_launches"]),
            stored_limit=int(account["stored_limit"]),
            switches=self._facts.switches,
            lines=abi.Lines(*self._facts.lines),
        )

    def _info(self) -> RankInfo:
        tally = self._decoder.tally
        info = msgspec.structs.replace(
            self._facts.info,
            arena=tally.arena_use(),
            counts=tally.counts,
            regions=self._decoder.region_ids.merged(),
            launches=tuple(Launch(*row) for row in self._rows()),
            notes=(*self._facts.info.notes, *self._lines.notes, *self._note()),
            losses=tally.losses(),
            cycle_clock=self._decoder.cycle_clock,
            cut_short=f"{NEVER_CLOSED}, so {self._which()} may lack events; no launch is lost",
        )
        before = self._parts.latest
        return _after(before, info) if before else info

    def _which(self) -> str:
        """Which launches may have been under way."""
        if self._num_unfinished > 1:
            return f"its last {self._num_unfinished} launches"
        # On the CPU target a launch returns when it has finished.
        if self._num_unfinished or self._facts.info.target == "cpu":
            return "its last launch"
        return "launches that had not finished"

    def _note(self) -> list[str]:
        if self._facts.is_ring:
            return ["the end of the run: what its ring held when it ended"]
        return []

    def _rows(self) -> list[LaunchRow]:
        names = self._lines.kernels
        rows = [
            LaunchRow(number_plus_1 - 1, names.get(kernel, "an unknown kernel"), *fields)
            for kernel, _, *fields, number_plus_1 in self._launches.tolist()
        ]
        waiting = [row for row in rows if row.launch not in self._in_parts]
        return self._decoder.replays.merged(waiting)


def _reader(memory: np.ndarray) -> Callable[[int, int], np.ndarray]:
    return lambda begin, end: memory[begin:end]


def _after(before: RankInfo, info: RankInfo) -> RankInfo:
    """`info` with all that came before counted, too."""
    uses = before.arena, info.arena
    sizes = (max(getattr(use, name) for use in uses) for name in ArenaUse.__struct_fields__)
    clocks = [each.cycle_clock for each in (before, info) if each.cycle_clock]
    error_ns = max((each.error_ns for each in clocks), default=0.0)
    rate = clocks[-1].cycles_per_second if clocks else 0.0
    return msgspec.structs.replace(
        info,
        arena=ArenaUse(*sizes),
        counts=sum_of(before.counts, info.counts),
        losses=tuple(_sums_of([*before.losses, *info.losses])),
        cycle_clock=CycleClock(rate, error_ns) if clocks else None,
    )


def _sums_of(losses: Iterable[RegionLosses]) -> Iterator[RegionLosses]:
    """One for each region."""
    sums: dict[str, list[int]] = {}
    for name, *counts in map(msgspec.structs.astuple, losses):
        so_far = sums.get(name, [0] * len(counts))
        sums[name] = [a + b for a, b in zip(so_far, counts, strict=True)]
    return (RegionLosses(name, *counts) for name, counts in sums.items())
