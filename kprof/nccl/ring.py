"""Reads the rings that the plugin has written: see ring.h. Everything in them may be damaged."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from kprof.private import open_plain

if TYPE_CHECKING:
    from numpy.typing import NDArray

RING_NAMES: Final = "nccl-*"
MAGIC: Final = int.from_bytes(b"PROFNCCL", "little")
VERSION: Final = 1
NUM_COMMS: Final = 1024
_TEXTS_OFFSET: Final = 4096
_COMMS_OFFSET: Final = 12288
_RECORDS_OFFSET: Final = 143360
_COMPLETE: Final = 2
START, STOP, STATE = 1, 2, 3

_HEADER: Final = np.dtype(
    {
        "names": ["magic", "version", "abi", "pid", "num_records", "rank", "comms", "events"],
        "formats": ["<u8", "<u4", "<u4", "<u8", "<u8", "<i8", "<u8", "<u8"],
        "offsets": [0, 8, 12, 16, 24, 32, 40, 64],
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
        ("name", "S68"),
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
        ("what", "u1"),
        ("kind", "u1"),
        ("comm", "<u2"),
        ("peer", "<i4"),
        ("func", "u1"),
        ("datatype", "u1"),
        ("algorithm", "u1"),
        ("protocol", "u1"),
        ("channel", "<u2"),
        ("extra", "u1"),
        ("flags", "u1"),
    ]
)


@dataclass(frozen=True)
class Communicator:
    """One rank of a communicator: `rank` is its number there, `uuid` names its GPU, empty where
    nobody knows."""

    id: int
    rank: int
    num_ranks: int
    name: str
    uuid: str


@dataclass(frozen=True)
class Ring:
    """What one process has recorded.

    `records` have shape (n,) and are in the order of their numbers; `num_lost` were overwritten, or
    never finished. `rank` is that of the launcher's environment, None where there is none.
    `comms[i]` is None where nobody can say what it was.
    """

    path: Path
    pid: int
    abi: int
    rank: int | None
    comms: tuple[Communicator | None, ...]
    texts: tuple[str, ...]
    records: NDArray[np.void]
    num_lost: int

    @property
    def host(self) -> str:
        """The name of the host, which is part of the file's: nccl-HOST-PID-NUMBER."""
        return self.path.name.removeprefix("nccl-").rsplit("-", 2)[0]


def rings_in(*folders: Path | None) -> list[Ring]:
    """All rings in these folders that make sense."""
    paths = [path for folder in folders if folder for path in sorted(folder.glob(RING_NAMES))]
    return [ring for ring in map(read_ring, dict.fromkeys(paths)) if ring is not None]


def read_ring(path: Path) -> Ring | None:
    """A copy of a ring, also of one that is being written; None where it is none of ours."""
    try:
        with os.fdopen(open_plain(path), "rb") as file:
            data = np.memmap(file, np.uint8, mode="r")
    except (OSError, ValueError):
        return None
    if len(data) < _RECORDS_OFFSET:
        return None
    header = data[: _HEADER.itemsize].view(_HEADER)[0]
    num_records = int(header["num_records"])
    is_whole = num_records > 0 and len(data) >= _RECORDS_OFFSET + num_records * RECORD.itemsize
    if header["magic"] != MAGIC or header["version"] != VERSION or not is_whole:
        return None
    records, num_events = _records(data, num_records, int(header["events"]))
    rank = int(header["rank"])
    return Ring(
        path,
        int(header["pid"]),
        int(header["abi"]),
        rank if rank >= 0 else None,
        _comms(data, min(int(header["comms"]), NUM_COMMS)),
        _texts(data),
        records,
        num_events - len(records),
    )


def _records(data: np.ndarray, num_records: int, num_events: int) -> tuple[np.ndarray, int]:
    """The records that were complete when they were copied, and how many events there were."""
    num_seen = min(num_events, num_records)
    end = _RECORDS_OFFSET + num_seen * RECORD.itemsize
    copy = np.array(data[_RECORDS_OFFSET:end]).view(RECORD)
    # A record that was written meanwhile is one of both, or neither.
    again = data[_RECORDS_OFFSET:end].view(RECORD)["handle"]
    numbers = copy["handle"].astype(np.int64) - 1
    places = np.arange(num_seen)
    is_there = (copy["handle"] == again) & (numbers >= 0) & (numbers % num_records == places)
    is_there &= numbers < num_events
    found = copy[is_there]
    return found[np.argsort(found["handle"])], num_events


def _texts(data: np.ndarray) -> tuple[str, ...]:
    """By number; 0 is the empty one."""
    rows = np.array(data[_TEXTS_OFFSET:_COMMS_OFFSET]).view(_TEXT)
    texts = [row["text"].decode(errors="replace") for row in rows if row["state"] == _COMPLETE]
    whole = [row["state"] == _COMPLETE for row in rows]
    numbered = iter(texts)
    return ("", *(next(numbered) if is_whole else "" for is_whole in whole))


def _comms(data: np.ndarray, count: int) -> tuple[Communicator | None, ...]:
    end = _COMMS_OFFSET + count * _COMM.itemsize
    rows = np.array(data[_COMMS_OFFSET:end]).view(_COMM)
    return tuple(_comm(row) if _makes_sense(row) else None for row in rows)


def _makes_sense(row: np.void) -> bool:
    return bool(row["is_complete"]) and 0 <= row["rank"] < row["num_ranks"]


def _comm(row: np.void) -> Communicator:
    uuid = row["uuid"].tobytes()
    name = row["name"].decode(errors="replace")
    named = uuid.hex() if any(uuid) else ""
    return Communicator(int(row["id"]), int(row["rank"]), int(row["num_ranks"]), name, named)
