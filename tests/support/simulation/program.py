"""The program of one call: tracks of operations, in the order in which a track runs them.

program = ProgramWriter()
track = program.track(stage=0, rank=2, block=5)
track.work("prepare")
track.send(dst=3, slot=5)
track.wait(src=1, slot=5)
track.barrier("grid")
track.locked("sum", "add")
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

REGIONS_TEXT: Final = """
REGION(R_PREPARE, "prepare",      compute)
REGION(R_SEND,    "send",         send,    peer:8, slot:24)
REGION(R_WAIT,    "wait",         wait,    peer:8, slot:24)
REGION(R_COPY,    "copy",         recv)
REGION(R_WORK,    "work",         compute)
REGION(R_REDUCE,  "reduce",       compute)
REGION(R_RETURN,  "return",       send,    peer:8, slot:24)
REGION(R_WAIT_RETURN, "wait-return", wait, peer:8, slot:24)
REGION(R_FINISH,  "finish",       compute)
REGION(R_LOAD,    "load",         compute)
REGION(R_PUT,     "put",          send,    peer:8, slot:24)
REGION(R_TAKE,    "take",         wait,    peer:8, slot:24)
REGION(R_FREE,    "free",         send,    peer:8, slot:24)
REGION(R_ROOM,    "wait-room",    wait,    peer:8, slot:24)
REGION(R_BARRIER, "barrier",      sync)
REGION(R_LOCK,    "lock",         sync)
REGION(R_ADD,     "add",          compute)
FLOW(R_SEND, R_WAIT)
FLOW(R_RETURN, R_WAIT_RETURN)
FLOW(R_PUT, R_TAKE)
FLOW(R_FREE, R_ROOM)
"""

# The usual duration of an operation by region. For waits, the time of one poll.
MEAN_NS: Final = {
    "prepare": 1500, "send": 400, "wait": 40, "copy": 700, "work": 3000, "reduce": 900,
    "return": 450, "wait-return": 40, "finish": 2000, "load": 800, "put": 120, "take": 40,
    "free": 60, "wait-room": 40, "barrier": 200, "lock": 40, "add": 300,
}  # fmt: skip
_WAIT_OF: Final = {"send": "wait", "return": "wait-return", "put": "take", "free": "wait-room"}


class Op(IntEnum):
    """What an operation does."""

    WORK = 0
    SEND = 1
    WAIT = 2
    BARRIER = 3
    LOCK = 4


@dataclass(frozen=True)
class Program:
    """Columns over the operations of a call, track by track. `partner` is the send that releases a wait, or the
    wait that a send releases (-1: none), `group` the number of a barrier or lock, `key` a number that stays
    with the operation whatever else the program holds, `turn` its position among those of its region on its
    track. `track_*` are columns over tracks; `first` has one more."""

    op: Ints
    region: NDArray[np.str_]
    mean_ns: Floats
    peer: Ints
    slot: Ints
    partner: Ints
    group: Ints
    key: NDArray[np.uint64]
    turn: Ints
    track: Ints
    first: Ints
    track_stage: Ints
    track_rank: Ints
    track_block: Ints
    track_warp: Ints
    num_stages: int
    num_ranks: int

    def __len__(self) -> int:
        """The number of operations."""
        return len(self.op)

    def of_ops(self, column: Ints) -> Ints:
        """Expand a column over tracks to operations."""
        spread: Ints = column[self.track]
        return spread


class TrackWriter:
    """One track of a program; see the module."""

    def __init__(self, stage: int, rank: int, block: int, warp: int) -> None:
        self.place = (stage, rank, block, warp)
        self.rows: list[tuple[int, str, float, int, int, object]] = []

    def work(self, region: str, mean_ns: float | None = None) -> None:
        """Add work."""
        self.rows.append((Op.WORK, region, mean_ns or MEAN_NS[region], -1, -1, None))

    def send(self, dst: int, slot: int, region: str = "send") -> None:
        """Send to a rank. The wait with the same slot there ends when the data arrives."""
        self.rows.append((Op.SEND, region, MEAN_NS[region], dst, slot, None))

    def wait(self, src: int, slot: int, region: str = "wait") -> None:
        """Wait for a rank's send with this slot."""
        self.rows.append((Op.WAIT, region, MEAN_NS[region], src, slot, None))

    def barrier(self, name: object) -> None:
        """Wait for all tracks with a barrier of this name."""
        self.rows.append((Op.BARRIER, "barrier", MEAN_NS["barrier"], -1, -1, name))

    def locked(self, name: object, region: str, mean_ns: float | None = None) -> None:
        """Take a lock, work, and release it."""
        self.rows.append((Op.LOCK, "lock", MEAN_NS["lock"], -1, -1, name))
        self.rows.append((Op.WORK, region, mean_ns or MEAN_NS[region], -1, -1, None))


class ProgramWriter:
    """Collects the tracks of a call."""

    def __init__(self, num_ranks: int, num_stages: int = 1) -> None:
        self.num_ranks = num_ranks
        self.num_stages = num_stages
        self.tracks: list[TrackWriter] = []

    def track(self, rank: int, block: int, warp: int = -1, stage: int = 0) -> TrackWriter:
        """Begin a track. Blocks that must wait for room start in the order of these calls."""
        self.tracks.append(TrackWriter(stage, rank, block, warp))
        return self.tracks[-1]

    def program(self) -> Program:
        """The columns."""
        rows = [row for track in self.tracks for row in track.rows]
        places = np.array([track.place for track in self.tracks], dtype=np.int64).reshape(-1, 4)
        lengths = np.array([len(track.rows) for track in self.tracks], dtype=np.int64)
        track = np.repeat(np.arange(len(self.tracks)), lengths)
        region = np.array([row[1] for row in rows])
        turn = _turns(track, region)
        peer = np.array([row[3] for row in rows], dtype=np.int64)
        slot = np.array([row[4] for row in rows], dtype=np.int64)
        groups: dict[object, int] = {}
        return Program(
            op=np.array([row[0] for row in rows], dtype=np.int64),
            region=region,
            mean_ns=np.array([row[2] for row in rows], dtype=float),
            peer=peer,
            slot=slot,
            partner=_partners(rows, places[track, 1]),
            group=np.array([_number(groups, row[5]) for row in rows], dtype=np.int64),
            key=_keys(places[track], region, turn, peer, slot),
            turn=turn,
            track=track,
            first=np.r_[0, np.cumsum(lengths)].astype(np.int64),
            track_stage=places[:, 0],
            track_rank=places[:, 1],
            track_block=places[:, 2],
            track_warp=places[:, 3],
            num_stages=self.num_stages,
            num_ranks=self.num_ranks,
        )


def _number(groups: dict[object, int], name: object) -> int:
    return -1 if name is None else groups.setdefault(name, len(groups))


def _partners(rows: list[tuple[int, str, float, int, int, object]], ranks: Ints) -> Ints:
    partner = np.full(len(rows), -1, dtype=np.int64)
    sends = {
        (_WAIT_OF[row[1]], rank, row[3], row[4]): i
        for i, (row, rank) in enumerate(zip(rows, ranks.tolist(), strict=True))
        if row[0] == Op.SEND
    }
    for i, (row, rank) in enumerate(zip(rows, ranks.tolist(), strict=True)):
        if row[0] == Op.WAIT:
            send = sends[row[1], row[3], rank, row[4]]
            partner[i], partner[send] = send, i
    return partner


def _turns(track: Ints, region: NDArray[np.str_]) -> Ints:
    """The index of every operation among those of its region on its track."""
    _, number = np.unique(region, return_inverse=True)
    order = np.lexsort((np.arange(len(track)), number, track))
    same = (track[order][1:] == track[order][:-1]) & (number[order][1:] == number[order][:-1])
    position = np.arange(len(track))
    starts = (
        np.maximum.accumulate(np.where(np.r_[True, ~same], position, 0)) if len(track) else position
    )
    turn = np.empty(len(track), dtype=np.int64)
    turn[order] = position - starts
    return turn


def _keys(
    places: Ints, region: NDArray[np.str_], turn: Ints, peer: Ints, slot: Ints
) -> NDArray[np.uint64]:
    """Keys of messages by their contents, so that an operation that moves to another block keeps
    its noise."""
    names = sorted(MEAN_NS)
    number = np.searchsorted(np.array(names), region)
    is_message = slot >= 0
    where = np.where(is_message, peer + (slot << 9), places[:, 2] + ((places[:, 3] + 1) << 20))
    key = mixed(number.astype(np.uint64))
    for part in ((places[:, 0] << 20) + places[:, 1], where, np.where(is_message, 0, turn)):
        key = mixed(np.bitwise_xor(key, part.astype(np.uint64)))
    return key


def mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Hash numbers (splitmix64)."""
    with np.errstate(over="ignore"):
        values = values + np.uint64(0x9E3779B97F4A7C15)
        values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return values ^ (values >> np.uint64(31))
