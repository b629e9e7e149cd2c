"""Reads the rings that the plugin has written: see ring.h. Everything in them may be damaged."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from kprof.capture.manifest import MAX_COUNT, MAX_RANKS
from kprof.private import opened

if TYPE_CHECKING:
    from numpy.typing import NDArray

RING_NAMES: Final = "nccl-*"
# Beside a recording, before the name of a ring: a ring of the records that have been kept of it.
KEPT: Final = "kept-"
MAGIC: Final = int.from_bytes(b"PROFNCCL", "little")
VERSION: Final = 2
NUM_COMMS: Final = 1024
_TEXTS_OFFSET: Final = 4096
_COMMS_OFFSET: Final = 12288
_RECORDS_OFFSET: Final = 143360
_COMPLETE: Final = 2
# What Linux allows on any machine.
_MAX_PID: Final = 1 << 22
# Records that are read at a time.
_BLOCK: Final = 1 << 18
_MOST_TICKS_PER_SECOND: Final = 10**9

_HEADER: Final = np.dtype(
    {
        "names": [
            *("magic", "version", "abi", "pid", "num_records", "rank", "comms"),
            *("keeps_latest", "machine", "events", "keep_slowest"),
        ],
        "formats": ["<u8", "<u4", "<u4", *["<u8"] * 2, "<i8", *["<u8"] * 5],
        "offsets": [0, 8, 12, 16, 24, 32, 40, 48, 56, 64, 136],
        "itemsize": 192,
    }
)
_TEXT: Final = np.dtype([("state", "<u4"), ("text", "S28")])
_COMM: Final = np.dtype(
    [
        ("id", "<u8"),
        ("rank", "<i4"),
        ("num_ranks", "<i4"),
        ("num_nodes", "<i4"),
        ("device", "<i4"),
        ("begun_ns", "<u8"),
        ("ended_ns", "<u8"),
        ("uuid", "V16"),
        ("ticks_per_second", "<u8"),
        ("calls", "<u8"),
        ("name", "S52"),
        ("is_complete", "<u4"),
    ]
)
RECORD: Final = np.dtype(
    [
        ("handle", "<u8"),
        ("host_ns", "<i8"),
        ("subject", "<u8"),
        ("value", "<u8"),
        ("count", "<u8"),
        ("tag", "<u8"),
        ("kind", "<u2"),
        ("comm", "<u2"),
        ("peer", "<i4"),
        ("func", "u1"),
        ("datatype", "u1"),
        ("algorithm", "u1"),
        ("protocol", "u1"),
        ("channel", "<u2"),
        ("extra", "<u2"),
    ]
)


@dataclass(frozen=True)
class Communicator:
    """One rank of a communicator: `rank` is its number there, `uuid` names its GPU, empty where
    nobody knows, `ticks_per_second` is the rate of that GPU's times, and `num_calls` how many calls
    it has recorded."""

    id: int
    rank: int
    num_ranks: int
    name: str
    uuid: str
    ticks_per_second: int
    num_calls: int


@dataclass(frozen=True)
class Ring:
    """What one process has recorded.

    `records` have shape (n,) and are in the order of their numbers. `num_lost` more, of
    `num_events` in all, were overwritten (`num_overwritten`) or never finished. Where the latest
    ones were asked for, those before them are `num_before`, and no loss. `num_records` are as many
    as fit, and `keep_slowest` is how many of the slowest calls are to be kept of all (0: all).
    `rank` is that of the launcher's environment, None where there is none. Rings with the same
    `machine` have the same host's clock; 0 is one that nobody knows. `comms[i]` is None where
    nobody can say what it was; `num_strange` of those are damaged.
    """

    path: Path
    pid: int
    abi: int
    machine: int
    rank: int | None
    comms: tuple[Communicator | None, ...]
    texts: tuple[str, ...]
    records: NDArray[np.void]
    num_records: int
    num_events: int
    num_overwritten: int
    num_lost: int
    num_before: int
    keep_slowest: int
    num_strange: int = 0

    @property
    def host(self) -> str:
        """The name of the host, which is part of the file's: nccl-HOST-PID-NUMBER."""
        return self.path.name.removeprefix("nccl-").rsplit("-", 2)[0]


def rings_in(*folders: Path | None, most: int | None = None) -> list[Ring]:
    """All rings in these folders that make sense; `most` as for read_ring."""
    return read_rings(*folders, most=most)[0]


def read_rings(*folders: Path | None, most: int | None = None) -> tuple[list[Ring], list[str]]:
    """The same, and a sentence about each that makes no sense. All that was kept of rings is in
    them, unless only the latest events are read."""
    paths = [path for folder in folders if folder for path in sorted(folder.glob(RING_NAMES))]
    found, refused = [], []
    for path in dict.fromkeys(paths):
        try:
            ring = read_ring(path, most)
            if ring is not None and most is None:
                ring = _with_kept(ring, [each / f"{KEPT}{path.name}" for each in folders if each])
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            refused.append(f"the collectives in {path} are not in the capture: {reason}")
        else:
            found += [ring] if ring is not None else []
    return found, refused


def read_ring(path: Path, most: int | None = None, since: int = 0) -> Ring | None:
    """A copy of a ring, also of one that is being written; None where nothing is in it yet.

    `most` is how many of the latest events are read, all unless given, and `since` how many of the
    first are not; they count as lost. Raises OSError, and ValueError for one that makes no sense.
    """
    with opened(path) as file:
        start = os.pread(file, _RECORDS_OFFSET, 0)
        if len(start) < _RECORDS_OFFSET or not any(start[:8]):
            return None
        header = np.frombuffer(start, _HEADER, 1)[0]
        num_records, num_events = int(header["num_records"]), int(header["events"])
        _check(header, (os.fstat(file).st_size - _RECORDS_OFFSET) // RECORD.itemsize)
        least = max(0 if most is None else num_events - most, since)
        is_kept = path.name.startswith(KEPT)
        records = _records(file, num_records, num_events, least, is_kept=is_kept)
    rank, num_comms = int(header["rank"]), min(int(header["comms"]), NUM_COMMS)
    comms = np.frombuffer(start, _COMM, num_comms, _COMMS_OFFSET)
    num_overwritten = max(num_events - num_records, 0)
    num_before = num_overwritten if header["keeps_latest"] else 0
    return Ring(
        path,
        int(header["pid"]),
        int(header["abi"]),
        int(header["machine"]),
        rank if 0 <= rank < MAX_RANKS else None,
        tuple(_comm(row) if _makes_sense(row) else None for row in comms),
        _texts(start),
        records,
        num_records,
        num_events,
        num_overwritten - num_before,
        num_events - len(records) - num_before,
        num_before,
        min(int(header["keep_slowest"]), MAX_COUNT),
        sum(bool(row["is_complete"]) and not _makes_sense(row) for row in comms),
    )


def write_kept(path: Path, ring: Ring) -> None:
    """Make a ring of the records that `ring` has here, without communicators and texts; raises
    OSError."""
    header = np.zeros(1, _HEADER)
    header["magic"], header["version"], header["pid"] = MAGIC, VERSION, ring.pid
    header["num_records"], header["events"] = len(ring.records), ring.num_events
    with path.open("wb") as file:
        file.write(header.tobytes())
        file.seek(_RECORDS_OFFSET)
        file.write(ring.records.tobytes())


def united(records: NDArray[np.void], others: NDArray[np.void]) -> NDArray[np.void]:
    """All of both in the order of their numbers; what is in both is as in the first."""
    new = others[~np.isin(others["handle"], records["handle"])]
    found = np.concatenate([records, new[np.unique(new["handle"], return_index=True)[1]]])
    return found[np.argsort(found["handle"])]


def _with_kept(ring: Ring, paths: list[Path]) -> Ring:
    """With what these rings have of it; what is damaged of them counts as lost."""
    for path in filter(Path.exists, paths):
        kept = None
        with contextlib.suppress(ValueError):
            kept = read_ring(path)
        if kept is None:
            continue
        of_it = kept.records[kept.records["handle"] <= ring.num_events]
        records = united(ring.records, of_it)
        num_old = len(records) - len(ring.records)
        is_loss = ring.num_before == 0
        ring = replace(
            ring,
            records=records,
            num_overwritten=max(ring.num_overwritten - num_old * is_loss, 0),
            num_lost=max(ring.num_lost - num_old * is_loss, 0),
            num_before=max(ring.num_before - num_old, 0),
        )
    return ring


def _check(header: np.void, most_records: int) -> None:
    """Raises ValueError for what no plugin writes; `most_records` fit into the file."""
    if header["magic"] != MAGIC or header["version"] != VERSION:
        raise ValueError(f"it is no ring of version {VERSION}")
    for name, least, most in (
        ("pid", 1, _MAX_PID),
        ("num_records", 1, most_records),
        ("events", 0, MAX_COUNT),
        # More than there are rows for.
        ("comms", 0, 1 << 32),
    ):
        if not least <= int(header[name]) <= most:
            raise ValueError(f"its {name} is {header[name]}, expected {least} to {most}")


def _records(
    file: int, num_records: int, num_events: int, least: int, *, is_kept: bool
) -> NDArray[np.void]:
    """The records from number `least` on that were complete when they were copied, in the order of
    their numbers, and maybe some before. Those that are kept lie in any places."""
    kept = [np.zeros(0, RECORD)]
    end = min(num_events, num_records)
    step = min(_BLOCK, max(num_events - least, 1))
    for first in _with_data(file, end, step):
        last = first + min(step, end - first) - 1
        # The latest event that the block may have.
        if last + (num_events - 1 - last) // num_records * num_records < least:
            continue
        num_bytes = (last + 1 - first) * RECORD.itemsize
        at = _RECORDS_OFFSET + first * RECORD.itemsize
        copy, again = (np.frombuffer(os.pread(file, num_bytes, at), RECORD) for _ in range(2))
        numbers = copy["handle"].astype(np.int64) - 1
        # A record that was written meanwhile is one of both, or neither.
        is_there = (copy["handle"] == again["handle"]) & (numbers >= 0) & (numbers < num_events)
        is_there &= is_kept | (numbers % num_records == np.arange(first, first + len(copy)))
        kept.append(copy[is_there])
    found = np.concatenate(kept)
    return found[np.argsort(found["handle"])]


def _with_data(file: int, end: int, step: int) -> Iterator[int]:
    """The first records of blocks of `step`, up to record `end`, without those that lie in a hole:
    a file of a few bytes may claim to have any size."""
    first = 0
    while first < end:
        try:
            at = os.lseek(file, _RECORDS_OFFSET + first * RECORD.itemsize, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return
            raise
        first = (at - _RECORDS_OFFSET) // RECORD.itemsize
        if first < end:
            yield first
        first += step


def _texts(start: bytes) -> tuple[str, ...]:
    """By number; 0 is the empty one."""
    rows = np.frombuffer(start[_TEXTS_OFFSET:_COMMS_OFFSET], _TEXT)
    whole = (row["text"] if row["state"] == _COMPLETE else b"" for row in rows)
    return ("", *(text.decode(errors="replace") for text in whole))


def _makes_sense(row: np.void) -> bool:
    is_known = bool(row["is_complete"]) and 0 <= row["rank"] < row["num_ranks"] <= MAX_RANKS
    return is_known and bool(0 < row["ticks_per_second"] <= _MOST_TICKS_PER_SECOND)


def _comm(row: np.void) -> Communicator:
    uuid = row["uuid"].tobytes()
    name = row["name"].decode(errors="replace")
    named = uuid.hex() if any(uuid) else ""
    number, rank, num_ranks = (int(row[field]) for field in ("id", "rank", "num_ranks"))
    rate, num_calls = int(row["ticks_per_second"]), min(int(row["calls"]), MAX_COUNT)
    return Communicator(number, rank, num_ranks, name, named, rate, num_calls)
