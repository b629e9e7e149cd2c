"""Flows: which send released which wait, looked up by event id while the events stream by.

The join comes from the trace's `flows` view. Small traces are joined at once. Large ones are joined slot range
by slot range, and what each piece of the export needs is kept in a temporary file until its turn, so that
memory depends on a piece and not on the trace.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kprof.export.source import Piece, Source
    from kprof.trace import Trace

_EVENTS_PER_JOIN: Final = 1 << 21
_DEPARTURE: Final = np.dtype([("send", "<i8"), ("arrival_ns", "<i8")])
_ARRIVAL: Final = np.dtype([("wait", "<i8"), ("send", "<i8"), ("send_start_ns", "<i8")])


@dataclass(frozen=True)
class Flows:
    """Who releases whom, for some events: sorted event ids with, at the same place, the flow id.

    The id of a flow is the id of the event that sends, plus one.
    """

    sends: NDArray[np.int64]
    arrivals_ns: NDArray[np.int64]
    waits: NDArray[np.int64]
    flow_of_wait: NDArray[np.int64]
    released_from_ns: NDArray[np.int64]

    @staticmethod
    def of(departures: NDArray[np.void], arrivals: NDArray[np.void]) -> Flows:
        """From rows of _DEPARTURE and _ARRIVAL; a send or a wait of several flows keeps its first."""
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
        """Per event, the id of the flow that it starts, or 0."""
        return np.where(_find(self.sends, event_id) >= 0, event_id + 1, 0)

    def into(self, event_id: NDArray[np.int64]) -> NDArray[np.int64]:
        """Per event, the id of the flow that ends in it, or 0."""
        place = _find(self.waits, event_id)
        if not len(self.waits):
            return np.zeros(len(event_id), np.int64)
        return np.where(place >= 0, self.flow_of_wait[place], 0)

    def late_ns(
        self, event_id: NDArray[np.int64], start_ns: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Per event, how long after its start the send that released it began; 0 if that was before."""
        place = _find(self.waits, event_id)
        if not len(self.waits):
            return np.zeros(len(event_id), np.int64)
        return np.where(place >= 0, np.maximum(self.released_from_ns[place] - start_ns, 0), 0)

    def arrival_ns(
        self, event_id: NDArray[np.int64], otherwise_ns: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Per event, when the wait that it released ended, or `otherwise_ns`."""
        place = _find(self.sends, event_id)
        if not len(self.sends):
            return otherwise_ns
        return np.where(place >= 0, self.arrivals_ns[place], otherwise_ns)


@dataclass(frozen=True)
class FlowLookup:
    """The flows of a trace, piece by piece. Flows that arrive before they leave cannot be drawn: they are counted."""

    of: Callable[[Piece], Flows]
    num_backwards: int


@contextlib.contextmanager
def joined_flows(source: Source) -> Iterator[FlowLookup]:
    """The flows of everything that is exported; the lookup is good until the block ends."""
    num_joins = -(-source.num_events // _EVENTS_PER_JOIN)
    if not source.trace.regions.flows:
        nothing = Flows.of(np.zeros(0, _DEPARTURE), np.zeros(0, _ARRIVAL))
        yield FlowLookup(lambda _piece: nothing, 0)
    elif num_joins <= 1:
        joined = _join(source, "true")
        flows = Flows.of(joined.departures(), joined.arrivals())
        yield FlowLookup(lambda _piece: flows, joined.num_backwards)
    else:
        with tempfile.TemporaryDirectory(prefix="kprof-flows-") as folder:
            spool = _Spool.of(source, Path(folder))
            num_backwards = sum(
                spool.add(_join(source, f"slot BETWEEN {first} AND {last}"))
                for first, last in _slot_ranges(source.trace, num_joins)
            )
            yield FlowLookup(spool.of_piece, num_backwards)


@dataclass(frozen=True)
class _Joined:
    """Flows of one query that run forward, times in file time; shapes (n,)."""

    src: NDArray[np.int32]
    dst: NDArray[np.int32]
    send_block: NDArray[np.int32]
    wait_block: NDArray[np.int32]
    send: NDArray[np.int64]
    wait: NDArray[np.int64]
    send_start_ns: NDArray[np.int64]
    wait_end_ns: NDArray[np.int64]
    num_backwards: int

    def departures(self) -> NDArray[np.void]:
        """Rows of _DEPARTURE."""
        rows = np.empty(len(self.send), _DEPARTURE)
        rows["send"] = self.send
        rows["arrival_ns"] = self.wait_end_ns
        return rows

    def arrivals(self) -> NDArray[np.void]:
        """Rows of _ARRIVAL."""
        rows = np.empty(len(self.wait), _ARRIVAL)
        rows["wait"] = self.wait
        rows["send"] = self.send
        rows["send_start_ns"] = self.send_start_ns
        return rows


def _join(source: Source, where: str) -> _Joined:
    table = source.trace.sql(
        "SELECT src, dst, send_block, wait_block, send_event_id, wait_event_id, send_start_ns, wait_end_ns "
        f"FROM flows WHERE {where}"
    )
    columns = {name: table[name].to_numpy() for name in table.column_names}
    is_forward = columns["wait_end_ns"] > columns["send_start_ns"]
    return _Joined(
        columns["src"][is_forward],
        columns["dst"][is_forward],
        columns["send_block"][is_forward],
        columns["wait_block"][is_forward],
        columns["send_event_id"][is_forward],
        columns["wait_event_id"][is_forward],
        columns["send_start_ns"][is_forward] - source.origin_ns,
        columns["wait_end_ns"][is_forward] - source.origin_ns,
        int(np.count_nonzero(~is_forward)),
    )


@dataclass(frozen=True)
class _Spool:
    """Temporary files: what leaves and what reaches each piece, by rank and first block of the piece."""

    folder: Path
    first_blocks: dict[int, NDArray[np.int64]]

    @staticmethod
    def of(source: Source, folder: Path) -> _Spool:
        ranks = {key.rank for key in source.keys}
        return _Spool(
            folder,
            {
                rank: np.array([piece.first_block for piece in source.pieces(rank)], dtype=np.int64)
                for rank in ranks
            },
        )

    def add(self, joined: _Joined) -> int:
        """Append flows to the files of their pieces; returns how many run backwards."""
        self._append("out", joined.src, joined.send_block, joined.departures())
        self._append("in", joined.dst, joined.wait_block, joined.arrivals())
        return joined.num_backwards

    def of_piece(self, piece: Piece) -> Flows:
        """What was appended for a piece."""
        return Flows.of(
            self._read("out", piece.rank, piece.first_block, _DEPARTURE),
            self._read("in", piece.rank, piece.first_block, _ARRIVAL),
        )

    def _append(
        self,
        direction: str,
        rank: NDArray[np.int32],
        block: NDArray[np.int32],
        rows: NDArray[np.void],
    ) -> None:
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

    def _read(
        self, direction: str, rank: int, first_block: int, dtype: np.dtype[np.void]
    ) -> NDArray[np.void]:
        return np.fromfile(self._file(direction, rank, first_block), dtype)

    def _file(self, direction: str, rank: int, first_block: int) -> Path:
        return self.folder / f"{rank}.{first_block}.{direction}"


def _slot_ranges(trace: Trace, num_ranges: int) -> list[tuple[int, int]]:
    """Ranges that together hold all slots, about the same width each."""
    row = trace.sql("SELECT max(slot) AS last FROM events").to_pylist()[0]
    edges = np.linspace(0, (row["last"] or 0) + 1, num_ranges + 1).astype(np.int64).tolist()
    return [(first, last - 1) for first, last in pairwise(edges)]


def _find(sorted_ids: NDArray[np.int64], ids: NDArray[np.int64]) -> NDArray[np.intp]:
    """The place of each id among `sorted_ids`, or -1."""
    if not len(sorted_ids):
        return np.full(len(ids), -1, dtype=np.intp)
    place = np.minimum(np.searchsorted(sorted_ids, ids), len(sorted_ids) - 1)
    return np.where(sorted_ids[place] == ids, place, -1)
