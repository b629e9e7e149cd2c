"""Parts of a rank's events: a complete Parquet file per flush, so that a crash loses only what came
after the last.

    part-00003-00000.parquet      rank 3's first flush, with its RankInfo so far in the footer
    part-00003-00001.parquet      its second; `launches` are those since the first

A part gets its name when it is complete. A save (of a process that may soon be killed) writes the
next part; the next flush writes that part again, with more in it. So no event is ever in two parts.
What is salvaged of a rank that was killed has a number of its own, and never overwrites a part.
At its end the rank merges its parts into the one file of the capture, a rename when there is only
one. `recover_rank` does it for ranks that died. Parts stay until the capture is finished: whoever
finds the one file complete needs nothing else, and whoever does not merges them again.
"""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final

import msgspec

from kprof.capture.checks import are_events
from kprof.capture.claims import leave_message
from kprof.capture.directory import event_schema, writing_events
from kprof.capture.footers import footer_of, open_parquet
from kprof.capture.manifest import Launch, RankInfo
from kprof.capture.names import events_file_name
from kprof.capture.output import writing
from kprof.errors import CaptureError
from kprof.on_use import pa
from kprof.private import move, remove

# Why a part is cut short that the next one replaces.
SAVED: Final = "it was saved while it did not answer, so its last launch may lack events"
_INFO_KEY: Final = b"kprof_rank"
# The name that the file was written under: a copy of another part is damage.
_NAME_KEY: Final = b"kprof_part"
_PART_NAME: Final = re.compile(r"part-(\d+)-(\d+)\.parquet", re.ASCII)
# The last part of a rank; it has what a save before it has.
SALVAGED_PART: Final = 1_000_000_000
_MIN_ROWS_PER_GROUP: Final = 1 << 16
_MOST_NAMED: Final = 5


class PartWriter:
    """Writes one rank's events, part by part.

    `num_parts` counts the parts that were kept, those included that were taken out again, and those
    that another process wrote before.
    """

    def __init__(self, directory: Path, rank: int, num_parts: int = 0) -> None:
        self.num_parts = num_parts
        self._directory = directory
        self._rank = rank
        self._numbers: list[int] = []

    def save(self, tables: Iterable[pa.Table], info: Callable[[], RankInfo]) -> None:
        """Write the next part, or write it again; calls `info` after the last table.

        Raises CaptureError.
        """
        _write(self._directory / part_name(self._rank, self.num_parts), tables, info)

    def keep(self) -> None:
        """Keep the part that was saved last as it is."""
        self._numbers.append(self.num_parts)
        self.num_parts += 1

    def num_events(self, number: int) -> int:
        """How many events a part has; 0 for one that cannot be read."""
        return _num_events(self._directory / part_name(self._rank, number))

    def take(self, number: int) -> pa.Table:
        """Remove a part; returns its events. Raises CaptureError."""
        path = self._directory / part_name(self._rank, number)
        try:
            with writing(path):
                with open_parquet(path) as file:
                    table = file.read()
                remove(path)
        except pa.ArrowException as error:
            raise CaptureError(_unreadable(path)) from error
        self._numbers.remove(number)
        return table

    def _paths(self) -> list[Path]:
        return [self._directory / part_name(self._rank, idx) for idx in self._numbers]

    def launches(self) -> tuple[Launch, ...]:
        """The launches of all parts that stay; raises CaptureError."""
        paths = self._paths()
        infos = [read_info(path) for path in paths]
        for path, info in zip(paths, infos, strict=True):
            if info is None:
                raise CaptureError(_unreadable(path))
        return tuple(launch for info in infos if info for launch in info.launches)

    def finish(self, info: RankInfo) -> None:
        """Merge the parts into the rank's file.

        Raises CaptureError, and then the parts are still there.
        """
        _unite(self._directory / events_file_name(self._rank), self._paths(), lambda: info)


def part_name(rank: int, part_idx: int) -> str:
    """`part-00003-00001.parquet` for the second part of rank 3."""
    return f"part-{rank:05d}-{part_idx:05d}.parquet"


def part_number(path: Path) -> int:
    """1 for the second part of a rank."""
    return int(path.stem.rpartition("-")[2])


def ranks_with_parts(directory: Path) -> dict[int, list[Path]]:
    """The parts of every rank that has any, in their order."""
    parts: dict[int, list[Path]] = {}
    found = [path for path in directory.glob("part-*.parquet") if _PART_NAME.fullmatch(path.name)]
    for path in sorted(found, key=part_number):
        parts.setdefault(int(path.name.split("-")[1]), []).append(path)
    return parts


def state_of_parts(directory: Path, rank: int) -> list[tuple[str, int]]:
    """Changes whenever the rank has saved something."""
    states = []
    for path in ranks_with_parts(directory).get(rank, []):
        with contextlib.suppress(OSError):
            state = path.stat()
            states.append((path.name, state.st_mtime_ns ^ state.st_ino))
    return states


def remove_parts(directory: Path, rank: int) -> None:
    """Remove what an earlier process of this rank has left; raises CaptureError."""
    final = directory / events_file_name(rank)
    for path in [final, *ranks_with_parts(directory).get(rank, [])]:
        with writing(path):
            remove(path)


def damaged_parts(directory: Path, rank: int) -> list[Path]:
    """The parts of a rank of which nothing can be read."""
    return [path for path in ranks_with_parts(directory).get(rank, []) if read_info(path) is None]


def num_kept_events(directory: Path, rank: int) -> int:
    """How many events the parts have that a rank has kept and that can be read."""
    # A rank's only part gets the name of its file; else parts stay until the capture is finished.
    paths = ranks_with_parts(directory).get(rank) or [directory / events_file_name(rank)]
    infos = {path: read_info(path) for path in paths}
    return sum(
        _num_events(path)
        for path, info in infos.items()
        if info and info.cut_short != SAVED and _number_when_written(path) != SALVAGED_PART
    )


def _number_when_written(path: Path) -> int:
    name = (footer_of(path).metadata or {}).get(_NAME_KEY, b"").decode(errors="replace")
    return part_number(Path(name)) if _PART_NAME.fullmatch(name) else -1


def _num_events(path: Path) -> int:
    return footer_of(path).num_rows if read_info(path) else 0


def recover_rank(directory: Path, rank: int) -> RankInfo | None:
    """Merge the parts that a rank left, and return what they say about it; None where there are
    none that can be read.

    A message names those that are damaged. Raises CaptureError when the disk refuses.
    """
    final = directory / events_file_name(rank)
    if (info := _info_of_all(final)) is not None:
        return info
    found = {path: read_info(path) for path in ranks_with_parts(directory).get(rank, [])}
    infos = _without_save({path: info for path, info in found.items() if info is not None})
    damaged = [path for path, info in found.items() if info is None]

    def united() -> RankInfo:
        # Before the file gets its name: a later attempt finds it complete.
        if damaged:
            leave_message(directory, f"rank {rank}: {_describe_damage(damaged)}")
        launches = tuple(launch for info in infos.values() for launch in info.launches)
        return msgspec.structs.replace(infos[max(infos, key=part_number)], launches=launches)

    if infos:
        _unite(final, list(infos), united, damaged)
    elif damaged:
        leave_message(directory, f"rank {rank}: {_describe_damage(damaged)}")
    return _info_of_all(final)


def _without_save(infos: dict[Path, RankInfo]) -> dict[Path, RankInfo]:
    """Without what a hanging rank saved, where that was salvaged as well: the one with more events
    stays."""

    saved = next((path for path, info in infos.items() if info.cut_short == SAVED), None)
    salvaged = next((path for path in infos if part_number(path) == SALVAGED_PART), None)
    if saved is None or salvaged is None:
        return infos
    has_more = footer_of(saved).num_rows > footer_of(salvaged).num_rows
    superseded = salvaged if has_more and _is_readable(saved) else saved
    return {path: info for path, info in infos.items() if path != superseded}


def _describe_damage(damaged: list[Path]) -> str:
    named = ", ".join(path.name for path in damaged[:_MOST_NAMED])
    more = f" and {len(damaged) - _MOST_NAMED} more" if len(damaged) > _MOST_NAMED else ""
    be = "is" if len(damaged) == 1 else "are"
    return f"{named}{more} {be} damaged, so launches or events are missing"


def _info_of_all(final: Path) -> RankInfo | None:
    """What the file of a rank says, with the number of events that it has: its recorder counted
    those of other parts, too."""

    info = read_info(final)
    if info is None:
        return None
    counts = msgspec.structs.replace(info.counts, recorded=footer_of(final).num_rows)
    return msgspec.structs.replace(info, counts=counts)


def append_events(directory: Path, info: RankInfo, events: pa.Table) -> None:
    """Add events to the file of a rank that has ended; raises CaptureError."""
    final = directory / events_file_name(info.rank)
    _write(final, itertools.chain(_tables([final]), [events]), lambda: info)


def _unite(
    final: Path,
    paths: list[Path],
    info: Callable[[], RankInfo],
    damaged: list[Path] | None = None,
) -> None:
    """Make one file of the parts; those that cannot be read to their ends are added to `damaged`
    where that is given. `info` is called when all were read."""
    if len(paths) == 1 and (damaged is None or _is_readable(paths[0])):
        info()
        with writing(final):
            move(paths[0], final)
        return
    _write(final, _tables(paths, damaged), info)


def _is_readable(path: Path) -> bool:
    damaged: list[Path] = []
    for _ in _tables([path], damaged):
        pass
    return not damaged


def _tables(paths: Iterable[Path], damaged: list[Path] | None = None) -> Iterator[pa.Table]:
    for path in paths:
        try:
            with open_parquet(path) as file:
                for idx in range(file.num_row_groups):
                    group = file.read_row_group(idx)
                    if damaged is not None and not are_events(group, event_schema()):
                        raise pa.ArrowInvalid("no events")
                    yield group
        except (pa.ArrowException, OSError) as error:
            if damaged is None:
                raise CaptureError(_unreadable(path)) from error
            damaged.append(path)


def _unreadable(path: Path) -> str:
    return f"{path} was written, but cannot be read any more"


def _gathered(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """The same rows in larger tables: a run that is flushed often has many small row groups."""
    waiting: list[pa.Table] = []
    num_rows = 0
    for table in tables:
        waiting.append(table)
        num_rows += len(table)
        if num_rows >= _MIN_ROWS_PER_GROUP:
            yield pa.concat_tables(waiting)
            waiting, num_rows = [], 0
    if num_rows:
        yield pa.concat_tables(waiting)


def _write(final: Path, tables: Iterable[pa.Table], info: Callable[[], RankInfo]) -> None:
    """Write a Parquet file with `info` in its footer; it gets its name when it is complete."""
    with writing_events(final) as writer:
        for table in _gathered(tables):
            writer.write_table(table)
        footer = {_INFO_KEY: msgspec.json.encode(info()), _NAME_KEY: final.name.encode()}
        writer.add_key_value_metadata(footer)


def read_info(path: Path) -> RankInfo | None:
    """What a part says about its rank so far; None for one that is not whole, or is another one."""
    try:
        metadata = footer_of(path).metadata or {}
        info = msgspec.json.decode(metadata[_INFO_KEY], type=RankInfo)
    except (pa.ArrowException, OSError, msgspec.DecodeError, KeyError):
        return None
    return info if _is_named(path, info.rank, metadata.get(_NAME_KEY)) else None


def _is_named(path: Path, rank: int, written_as: bytes | None) -> bool:
    """Whether a file is the one that its name says. A rank's file may be its only part, renamed."""
    if found := _PART_NAME.fullmatch(path.name):
        # Older recordings do not have the name.
        return int(found[1]) == rank and written_as in (None, path.name.encode())
    return path.name == events_file_name(rank)
