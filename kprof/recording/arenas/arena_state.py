"""What is in use in an arena, according to the host and to the counters in device memory.

The host allocated the arena and handed out every limit, so its account is right, and device memory
is checked against it. No value read from the device sizes anything: a damaged head only means that
every chunk is read.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from kprof import abi
from kprof.errors import ArenaError
from kprof.rank_memory import ACCOUNT_BYTES, Word

Bytes = np.ndarray
# What the host knows of an arena, in numbers of 32 bits: `ledger` says who reads it.
Account = memoryview


def new_account() -> Account:
    """The account of an arena that does not outlive its process."""
    return memoryview(bytearray(ACCOUNT_BYTES)).cast("I")


@dataclass(frozen=True)
class Handed:
    """What the host handed out since the arena was last empty.

    Launches could claim at least `least_limit` and at most `limit` chunks from each cursor; the
    control block holds `stored_limit` (0: `limit`). Chunks from `first_reserved` on are reserved;
    `num_reserved_wanted` were requested. `has_claiming_launches`: a launch reserved nothing
    although it could have. `num_reserving` launches have reserved chunks.
    """

    geometry: abi.ArenaGeometry
    least_limit: int
    limit: int
    first_reserved: int
    num_reserved_wanted: int = 0
    has_claiming_launches: bool = False
    stored_limit: int = 0
    switches: bytes = bytes(abi.SWITCHES.itemsize)
    lines: abi.Lines = abi.NO_LINES
    num_reserving: int = 0

    @staticmethod
    def of_new(geometry: abi.ArenaGeometry) -> Handed:
        """The account of an unused arena."""
        limit = geometry.chunks_per_cursor
        return Handed(geometry, limit, limit, geometry.num_chunks)

    @staticmethod
    def of_account(
        geometry: abi.ArenaGeometry, account: Account, switches: bytes, lines: abi.Lines
    ) -> Handed:
        """What an account says, within what the arena can hold."""
        most = geometry.num_chunks // geometry.num_cursors
        # None is 0: a damaged account.
        limit = min(account[Word.LIMIT] or most, most)
        first_reserved = min(account[Word.FIRST_RESERVED], geometry.num_chunks)
        return Handed(
            geometry,
            least_limit=min(account[Word.LEAST_LIMIT], limit),
            limit=limit,
            first_reserved=max(first_reserved, limit * geometry.num_cursors),
            num_reserved_wanted=account[Word.NUM_WANTED],
            has_claiming_launches=bool(account[Word.HAS_CLAIMING]),
            stored_limit=account[Word.STORED_LIMIT],
            switches=switches,
            lines=lines,
            num_reserving=account[Word.NUM_RESERVING],
        )

    @property
    def num_reserved(self) -> int:
        """The number of reserved chunks."""
        return self.geometry.num_chunks - self.first_reserved


@dataclass(frozen=True)
class ArenaState:
    """What the head of the arena says, and what the host knows.

    `num_claimed` counts by cursor. `dropped_of_region` counts by the id in the record; its last
    entry counts all higher ids too, and entry 0 (no region) the records of short tracks.
    `num_reserved_runs` counts the runs of launches that have reserved chunks.
    `is_damaged`: the head contradicts the host, so every chunk with contents may be in use.
    """

    handed: Handed
    num_claimed: tuple[int, ...]
    dropped_of_region: tuple[int, ...]
    num_tracks_without_chunk: int
    is_damaged: bool = False
    num_reserved_runs: int = 0

    @property
    def num_overwritten_runs(self) -> int:
        """At least so many runs were given a buffer that another run had, and one of the two wrote
        over the records of the other."""
        return max(0, self.num_reserved_runs - self.handed.num_reserving)

    @property
    def num_used_chunks(self) -> int:
        """The number of chunks that were reserved or claimed."""
        return self.handed.num_reserved + sum(self.num_claimed)

    @property
    def share_claimed(self) -> float:
        """How much was claimed of what can be claimed, 0 to 1."""
        return sum(self.num_claimed) / max(self.handed.limit * len(self.num_claimed), 1)

    @property
    def share_in_use(self) -> float:
        """How full the arena is, 0 to 1. Where tracks need further chunks, that is how much was
        claimed: what is kept for reservations is no room for them."""
        used = self.num_used_chunks / self.handed.geometry.num_chunks
        return max(used, self.share_claimed)

    def ranges(self) -> tuple[tuple[int, int], ...]:
        """The ranges of chunks to read, ascending: (first, last + 1).

        Includes one chunk beyond those of the cursor that handed out most: it should be empty.
        """
        handed, num_chunks = self.handed, self.handed.geometry.num_chunks
        if self.is_damaged:
            return ((0, num_chunks),)
        per_cursor = min(max(self.num_claimed) + 1, handed.limit)
        ranges = (0, per_cursor * len(self.num_claimed)), (handed.first_reserved, num_chunks)
        return tuple((begin, end) for begin, end in ranges if end > begin)

    def chunk_idxs(self) -> np.ndarray:
        """The index of every chunk in `ranges`."""
        return np.concatenate([np.arange(begin, end) for begin, end in self.ranges()])

    def is_used(self, chunk_idxs: np.ndarray) -> np.ndarray:
        """Whether these chunks were handed out, according to the host and the cursors."""
        num_cursors = self.handed.geometry.num_cursors
        place = chunk_idxs // num_cursors
        is_claimed = place < np.array(self.num_claimed)[chunk_idxs % num_cursors]
        return is_claimed | (chunk_idxs >= self.handed.first_reserved)

    def checked(self, chunks: Bytes) -> ArenaState:
        """This state, marked as damaged if the chunks of `ranges` prove a cursor wrong."""
        is_beyond = ~self.is_used(self.chunk_idxs())
        if self.is_damaged or not is_beyond.any():
            return self
        beyond = chunks.view("<u8").reshape(-1, abi.CHUNK_BYTES // 8)[is_beyond]
        return replace(self, is_damaged=bool(beyond.any()))


def read_arena(read: Callable[[int, int], Bytes], handed: Handed) -> tuple[ArenaState, Bytes]:
    """What is in use, and the bytes of all chunks in its `ranges`.

    `read(begin, end)` reads bytes of the arena.
    """

    def read_chunks(state: ArenaState) -> Bytes:
        parts = [read(*byte_range(used)) for used in state.ranges()]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    state = read_control(read(0, abi.CHUNKS_OFFSET), handed)
    chunks = read_chunks(state)
    checked = state.checked(chunks)
    return checked, chunks if checked is state else read_chunks(checked)


def byte_range(chunks: tuple[int, int]) -> tuple[int, int]:
    """The bytes of the arena that hold chunks begin .. end - 1."""
    begin, end = chunks
    return abi.CHUNKS_OFFSET + begin * abi.CHUNK_BYTES, abi.CHUNKS_OFFSET + end * abi.CHUNK_BYTES


def read_control(head: Bytes, handed: Handed) -> ArenaState:
    """Read the first CHUNKS_OFFSET bytes of an arena; raises ArenaError when there are fewer."""
    if len(head) < abi.CHUNKS_OFFSET:
        raise ArenaError(f"{len(head)} bytes are too few for an arena's head ({abi.CHUNKS_OFFSET})")
    head = head[: abi.CHUNKS_OFFSET]
    control = head[: abi.CONTROL_BYTES].view(abi.CONTROL)[0]
    cursors = control["cursors"][: handed.geometry.num_cursors]
    num_claimed = np.minimum(cursors["next_chunk"], handed.limit)
    dropped = head[abi.SINKS_OFFSET :].view(abi.SINK)["num_dropped_of_region"]
    without_chunk = cursors["num_tracks_without_chunk"]
    is_possible = all(counter.max() <= abi.MAX_DROPPED for counter in (dropped, without_chunk))
    return ArenaState(
        handed,
        tuple(num_claimed.tolist()),
        tuple(_possible(dropped).sum(axis=0).tolist()),
        int(_possible(without_chunk).sum()),
        not (is_possible and _is_as_written(head, handed)),
        int(cursors["num_reserved_runs"][0]),
    )


def _possible(counters: np.ndarray) -> np.ndarray:
    """The counters as int64, 0 in place of those that are damaged."""
    return np.where(counters <= abi.MAX_DROPPED, counters, 0).astype(np.int64)


def _is_as_written(head: Bytes, handed: Handed) -> bool:
    """Whether everything that kernels do not write is still as the host wrote it."""
    limit = handed.stored_limit or handed.limit
    switches = np.frombuffer(handed.switches, abi.SWITCHES)[0]
    read = head.copy()
    written = abi.initial_control(handed.geometry, limit, switches, handed.lines)
    num_cursors = handed.geometry.num_cursors
    for copy in (read, written):
        control = copy[: abi.CONTROL_BYTES].view(abi.CONTROL)[0]
        control["full_limit"] = max(int(control["full_limit"]) - handed.limit, 0)
        # The host's own stores of these words may still be under way.
        control["switches"]["is_off"] = max(int(control["switches"]["is_off"]) - 1, 0)
        control["switches"]["arena_kib"] = 0
        control["delays"] = np.zeros((), abi.DELAYS)
        control["rooms"] = np.zeros((), abi.ROOM)
        control["cursors"]["next_chunk"][:num_cursors] = 0
        control["cursors"]["num_tracks_without_chunk"][:num_cursors] = 0
        control["cursors"]["num_reserved_runs"][0] = 0
        copy[abi.SINKS_OFFSET :].view(abi.SINK)["num_dropped_of_region"] = 0
    return bool((read == written).all())
