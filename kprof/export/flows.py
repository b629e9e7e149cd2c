"""Flows: which send released which wait, looked up by event id while events are written.

Small traces are joined in memory. Of large ones all events are read once and never held in memory,
which depends on a piece of the export and not on the trace:

    events  --one scan-->  buckets of sends and waits  --pair-->  files by piece of the export

A send and its wait are in the same bucket: source, destination, epoch and slot choose it.
kprof.trace.flows decides what belongs together.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

import numpy as np
from numpy.typing import NDArray

from kprof.export.source import Piece, Source
from kprof.trace.flows.ends import FlowEnds
from kprof.trace.flows.pairing import Ends, Ints

_EVENTS_PER_JOIN: Final = 1 << 20
_DEPARTURE: Final = np.dtype([("send", "<i8"), ("arrival_ns", "<i8")])
_NO_ARROW: Final = -1
_ARRIVAL: Final = np.dtype([("wait", "<i8"), ("send", "<i8"), ("send_start_ns", "<i8")])


@dataclass(frozen=True)
class Flows:
    """The flows of some events: sorted event ids, and at the same index the flow id.

    A flow's id is the event id of its send plus one.
    """

    sends: NDArray[np.int64]
    arrivals_ns: NDArray[np.int64]
    waits: NDArray[np.int64]
    flow_of_wait: NDArray[np.int64]
    released_from_ns: NDArray[np.int64]

    @staticmethod
    def of(departures: NDArray[np.void], arrivals: NDArray[np.void]) -> Flows:
        """From rows of _DEPARTURE and _ARRIVAL.

        A send or a wait with several flows keeps the first.
        """
        sends, first_send = np.unique(departures["send"], return_index=True)
        waits, first_wait = np.unique(arrivals["wait"], return_index=True)
        return Flows(
            sends,
            departures["arrival_ns"][first_send],
            waits,
            arrivals["send"][first_wait] + 1,
            arrivals["send_start_ns"][first_wait],
        )

    def out_of(self, event_id: NDArray[np.int64]) -> NDArray[np.int64]:
        """For each event, the id of the flow that it starts, or 0."""
        return _looked_up(self.sends, event_id, self.sends + 1, 0)

    def into(self, event_id: NDArray[np.int64]) -> NDArray[np.int64]:
        """For each event, the id of the flow that ends in it, or 0."""
        return _looked_up(self.waits, event_id, self.flow_of_wait, 0)

    def late_ns(
        self, event_id: NDArray[np.int64], start_ns: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """For each event, how long after its start the send that released it began.

        0 if the send began first.
        """
        from_ns = _looked_up(self.waits, event_id, self.released_from_ns, start_ns)
        return (from_ns - start_ns).clip(min=0)

    def arrival_ns(
        self, event_id: NDArray[np.int64], otherwise_ns: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """For each event, when the wait that it released ended, or `otherwise_ns`."""
        return _looked_up(self.sends, event_id, self.arrivals_ns, otherwise_ns)


# The flows of a piece, and how many of the trace arrive before they leave: these cannot be drawn.
FlowLookup = tuple[Callable[[Piece], Flows], int]


@contextlib.contextmanager
def joined_flows(source: Source) -> Iterator[FlowLookup]:
    """The flows of everything that is exported. The lookup is valid within the context."""
    # PieceFiles look up blocks, and other groupings renumber them.
    is_large = source.grouping.is_by_block and source.num_events > _EVENTS_PER_JOIN
    ends = FlowEnds.of(source.trace, source.trace.flow_sides)
    if not is_large or not source.trace.regions.flows:
        # A few selected blocks still communicate with all others: pieces of the selection's size
        # would be thousands.
        sides = [ends.read(part) for part in ends.slices(max_ends=_EVENTS_PER_JOIN)]
        joined = [_Joined.of_ends(ends, *of_slice, source.origin_ns) for of_slice in sides]
        flows = Flows.of(
            np.concatenate([np.zeros(0, _DEPARTURE), *(part.departures for part in joined)]),
            np.concatenate([np.zeros(0, _ARRIVAL), *(part.arrivals for part in joined)]),
        )
        yield lambda _piece: flows, sum(part.num_backwards for part in joined)
        return
    with tempfile.TemporaryDirectory(prefix="kprof-flows-") as folder:
        pieces = PieceFiles.of(source, Path(folder))
        num_backwards = 0
        num_joins = -(-source.num_events // _EVENTS_PER_JOIN)
        for sends, waits in spooled_ends(ends, num_joins, Path(folder)):
            part = _Joined.of_ends(ends, sends, waits, source.origin_ns)
            num_backwards += part.num_backwards
            pieces.append("out", *part.senders, part.departures)
            pieces.append("in", *part.waiters, part.arrivals)
        yield (
            lambda piece: Flows.of(
                pieces.read("out", piece, _DEPARTURE), pieces.read("in", piece, _ARRIVAL)
            ),
            num_backwards,
        )


@dataclass(frozen=True)
class _Joined:
    """Flows that run forward in time, in file time: rows of _DEPARTURE and of _ARRIVAL, with the
    ranks and blocks that these are of."""

    senders: tuple[Ints, Ints]
    departures: NDArray[np.void]
    waiters: tuple[Ints, Ints]
    arrivals: NDArray[np.void]
    num_backwards: int

    @staticmethod
    def of_ends(ends: FlowEnds, sends: Ends, waits: Ends, origin_ns: int) -> _Joined:
        """Flows between sends and waits of whole slots.

        An arrow has one head: if several waits belong to a send, it points at the first.
        """
        s, w = ends.pair(sends, waits)
        is_forward = waits.end_ns[w] > sends.start_ns[s]
        num_backwards = int(np.count_nonzero(~is_forward))
        s, w = s[is_forward], w[is_forward]
        send = sends.event_id[s]
        drawn = np.full(len(s), _NO_ARROW)
        first = np.unique(send, return_index=True)[1]
        drawn[first] = send[first]
        arrivals = [waits.event_id[w], drawn, sends.start_ns[s] - origin_ns]
        return _Joined(
            (sends.src[s], sends.block[s]),
            np.rec.fromarrays([send, waits.end_ns[w] - origin_ns], dtype=_DEPARTURE),
            (waits.dst[w], waits.block[w]),
            np.rec.fromarrays(arrivals, dtype=_ARRIVAL),
            num_backwards,
        )


def _looked_up(
    sorted_ids: Ints, ids: Ints, values: Ints, otherwise: Ints | int
) -> NDArray[np.int64]:
    """For each id the value at its index in `sorted_ids`, or `otherwise` if it is not there."""
    if not len(sorted_ids):
        return np.zeros(len(ids), np.int64) + otherwise
    place = np.minimum(np.searchsorted(sorted_ids, ids), len(sorted_ids) - 1)
    return np.where(sorted_ids[place] == ids, values[place], otherwise)


# Every bucket has two open files; a process may open about a thousand.
_MAX_BUCKETS: Final = 200


def spooled_ends(ends: FlowEnds, num_buckets: int, folder: Path) -> Iterator[tuple[Ends, Ends]]:
    """Yields sends and waits bucket by bucket, after one scan of all events."""
    buckets = range(min(num_buckets, _MAX_BUCKETS))
    files = [[folder / f"{bucket}.{side}" for bucket in buckets] for side in ("sends", "waits")]
    row = np.dtype(np.void)
    with contextlib.ExitStack() as stack:
        opened = [[stack.enter_context(file.open("wb")) for file in side] for side in files]
        for batch in ends.batches():
            for of_side, of_buckets in zip(batch, opened, strict=True):
                columns = of_side.columns()
                row = np.dtype([(name, column.dtype) for name, column in columns.items()])
                _scatter(np.rec.fromarrays(list(columns.values()), dtype=row), of_buckets)
    for of_bucket in zip(*files, strict=True) if row.names else ():
        sends, waits = (_columns(np.fromfile(file, row)) for file in of_bucket)
        for file in of_bucket:
            file.unlink()
        yield sends, waits


def _columns(rows: NDArray[np.void]) -> Ends:
    return Ends(**{name: np.ascontiguousarray(rows[name]) for name in rows.dtype.names or ()})


def _scatter(rows: NDArray[np.void], files: Sequence[IO[bytes]]) -> None:
    """Append each row to the file of its bucket."""
    # Any hash will do, as long as both sides of a flow agree.
    place = rows["src"].astype(np.int64) * 131 + rows["dst"]
    mixed = rows["slot"] * 1_000_003 + rows["epoch"].astype(np.int64) * 8191 + place
    bucket = mixed % len(files)
    order = np.argsort(bucket, kind="stable")
    ends = np.cumsum(np.bincount(bucket, minlength=len(files)))
    for file, part in zip(files, np.split(order, ends[:-1]), strict=True):
        rows[part].tofile(file)


@dataclass(frozen=True)
class PieceFiles:
    """Temporary files: the departures and arrivals of each piece, by its rank and first block."""

    folder: Path
    first_blocks: dict[int, NDArray[np.int64]]

    @staticmethod
    def of(source: Source, folder: Path) -> PieceFiles:
        """No rows yet."""
        ranks = {key.rank for key in source.keys}
        first_blocks = {
            rank: np.array([piece.first_block for piece in source.pieces(rank)], dtype=np.int64)
            for rank in ranks
        }
        return PieceFiles(folder, first_blocks)

    def append(
        self,
        direction: str,
        rank: NDArray[np.generic],
        block: NDArray[np.generic],
        rows: NDArray[np.void],
    ) -> None:
        """Append rows to the files of the pieces that have their blocks."""
        for of_rank, first_blocks in self.first_blocks.items():
            own = np.flatnonzero(rank == of_rank)
            piece = np.searchsorted(first_blocks, block[own], side="right") - 1
            order = np.argsort(piece, kind="stable")
            ends = np.cumsum(np.bincount(piece, minlength=len(first_blocks)))
            for first_block, part in zip(
                first_blocks.tolist(), np.split(own[order], ends[:-1]), strict=True
            ):
                with self._file(direction, of_rank, first_block).open("ab") as file:
                    rows[part].tofile(file)

    def read(self, direction: str, piece: Piece, dtype: np.dtype[np.void]) -> NDArray[np.void]:
        """The rows that were appended for a piece."""
        file = self._file(direction, piece.rank, piece.first_block)
        return np.fromfile(file, dtype) if file.exists() else np.zeros(0, dtype)

    def _file(self, direction: str, rank: int, first_block: int) -> Path:
        return self.folder / f"{rank}.{first_block}.{direction}"
