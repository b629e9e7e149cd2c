"""Flows: which send released which wait, looked up by event id while the events stream by.

The join comes from the trace's `flows` view. Small traces are joined at once. Large ones are joined slot range
by slot range, and what each rank needs is kept in temporary files until its turn, so that memory depends on a
rank and not on the trace.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kprof.export.source import Source
    from kprof.trace import Trace

_EVENTS_PER_JOIN: Final = 1 << 21
_DEPARTURE: Final = np.dtype([("send", "<i8"), ("arrival_ns", "<i8")])
_ARRIVAL: Final = np.dtype([("wait", "<i8"), ("send", "<i8"), ("send_start_ns", "<i8")])


@dataclass(frozen=True)
class Flows:
    """Who releases whom, for events of some ranks: sorted event ids with, at the same place, the flow id.

    The id of a flow is the id of the event that sends, plus one. Flows that arrive before they leave cannot be
    drawn; they are counted in `num_backwards`.
    """

    sends: NDArray[np.int64]
    arrivals_ns: NDArray[np.int64]
    waits: NDArray[np.int64]
    flow_of_wait: NDArray[np.int64]
    released_from_ns: NDArray[np.int64]
    num_backwards: int = 0

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


def flows_by_rank(source: Source, ranks: list[int]) -> Iterator[tuple[int, Flows]]:
    """The flows of each rank in turn; every flow that runs backwards is counted once."""
    num_joins = -(-source.num_events // _EVENTS_PER_JOIN)
    if not source.trace.regions.flows:
        nothing = Flows.of(np.zeros(0, _DEPARTURE), np.zeros(0, _ARRIVAL))
        yield from ((rank, nothing) for rank in ranks)
    elif num_joins <= 1:
        joined = _join(source, "true")
        flows = Flows.of(joined.departures(), joined.arrivals())
        for i, rank in enumerate(ranks):
            yield rank, replace(flows, num_backwards=joined.num_backwards if i == 0 else 0)
    else:
        with tempfile.TemporaryDirectory(prefix="kprof-flows-") as folder:
            num_backwards = _spool(source, ranks, num_joins, Path(folder))
            for i, rank in enumerate(ranks):
                flows = Flows.of(
                    np.fromfile(_file(Path(folder), "out", rank), _DEPARTURE),
                    np.fromfile(_file(Path(folder), "in", rank), _ARRIVAL),
                )
                yield rank, replace(flows, num_backwards=num_backwards if i == 0 else 0)


@dataclass(frozen=True)
class _Joined:
    """Flows of one query that run forward, times in file time; shapes (n,)."""

    src: NDArray[np.int32]
    dst: NDArray[np.int32]
    send: NDArray[np.int64]
    wait: NDArray[np.int64]
    send_start_ns: NDArray[np.int64]
    wait_end_ns: NDArray[np.int64]
    num_backwards: int

    def departures(self, rank: int | None = None) -> NDArray[np.void]:
        """Rows of _DEPARTURE that leave `rank`."""
        which = slice(None) if rank is None else self.src == rank
        rows = np.empty(len(self.send[which]), _DEPARTURE)
        rows["send"] = self.send[which]
        rows["arrival_ns"] = self.wait_end_ns[which]
        return rows

    def arrivals(self, rank: int | None = None) -> NDArray[np.void]:
        """Rows of _ARRIVAL that reach `rank`."""
        which = slice(None) if rank is None else self.dst == rank
        rows = np.empty(len(self.wait[which]), _ARRIVAL)
        rows["wait"] = self.wait[which]
        rows["send"] = self.send[which]
        rows["send_start_ns"] = self.send_start_ns[which]
        return rows


def _join(source: Source, where: str) -> _Joined:
    table = source.trace.sql(
        "SELECT src, dst, send_event_id, wait_event_id, send_start_ns, wait_end_ns "
        f"FROM flows WHERE {where}"
    )
    columns = {name: table[name].to_numpy() for name in table.column_names}
    is_forward = columns["wait_end_ns"] > columns["send_start_ns"]
    return _Joined(
        columns["src"][is_forward],
        columns["dst"][is_forward],
        columns["send_event_id"][is_forward],
        columns["wait_event_id"][is_forward],
        columns["send_start_ns"][is_forward] - source.origin_ns,
        columns["wait_end_ns"][is_forward] - source.origin_ns,
        int(np.count_nonzero(~is_forward)),
    )


def _spool(source: Source, ranks: list[int], num_joins: int, folder: Path) -> int:
    """Join in parts and append each rank's share to its files; returns how many flows run backwards."""
    num_backwards = 0
    for first, last in _slot_ranges(source.trace, num_joins):
        joined = _join(source, f"slot BETWEEN {first} AND {last}")
        num_backwards += joined.num_backwards
        for rank in ranks:
            with _file(folder, "out", rank).open("ab") as file:
                joined.departures(rank).tofile(file)
            with _file(folder, "in", rank).open("ab") as file:
                joined.arrivals(rank).tofile(file)
    return num_backwards


def _slot_ranges(trace: Trace, num_ranges: int) -> list[tuple[int, int]]:
    """Ranges that together hold all slots, about the same width each."""
    row = trace.sql("SELECT max(slot) AS last FROM events").to_pylist()[0]
    edges = np.linspace(0, (row["last"] or 0) + 1, num_ranges + 1).astype(np.int64).tolist()
    return [(first, last - 1) for first, last in pairwise(edges)]


def _file(folder: Path, direction: str, rank: int) -> Path:
    return folder / f"{rank}.{direction}"


def _find(sorted_ids: NDArray[np.int64], ids: NDArray[np.int64]) -> NDArray[np.intp]:
    """The place of each id among `sorted_ids`, or -1."""
    if not len(sorted_ids):
        return np.full(len(ids), -1, dtype=np.intp)
    place = np.minimum(np.searchsorted(sorted_ids, ids), len(sorted_ids) - 1)
    return np.where(sorted_ids[place] == ids, place, -1)
