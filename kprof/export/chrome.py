"""The Chrome JSON writer, for tools that do not read pftrace.

`ts` and `dur` are microseconds with three decimals; times in the file are small enough for doubles.
A rank is a process, a block or warp is a thread. Thread ids are the file's track ids. They are
higher than all process ids, because viewers treat a thread whose id equals its process id as the
main thread. Overlapping spans get their own threads. A flow ends in the last nanosecond of the
wait, because the wait often began before the send.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import IO, Final

import msgspec

from kprof.export.model import (
    Batch,
    CounterPoints,
    Header,
    OverlaySlice,
    Track,
    TrackKind,
)
from kprof.export.packets import (
    ARG_BUSY,
    ARG_LATE,
    ARG_MERGED,
    FLAG_ARGS,
    RELEASED,
)
from kprof.regions import Kind, Region

_ROWS_PER_CHUNK: Final = 1 << 14
_THREADS: Final = (TrackKind.BLOCK, TrackKind.WARP, TrackKind.LAUNCHES, TrackKind.OVERLAY)


class _Event(msgspec.Struct, omit_defaults=True):
    """One object of the traceEvents array."""

    ph: str
    pid: int
    tid: int
    name: str
    ts: float | None = None
    dur: float | None = None
    cat: str | None = None
    s: str | None = None
    id: int | None = None
    bp: str | None = None
    args: Mapping[str, object] | None = None


class ChromeWriter:
    """Writes one JSON file (see model.Writer for the order of calls)."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._encode = msgspec.json.Encoder().encode
        self._names: tuple[Region, ...] = ()
        self._tracks: dict[int, Track] = {}
        self._first_of: dict[tuple[int, str], int] = {}
        self._first_tid = 0
        self._is_first = True

    def begin(self, header: Header) -> None:
        """Open the array and name the processes."""
        self._names = header.names
        self._first_tid = max((rank.rank for rank in header.ranks), default=0)
        self._file.write(b'{"displayTimeUnit":"ns","traceEvents":[')
        for order, rank in enumerate(header.ranks):
            # Viewers append the process id, which is the rank: `host0, NVIDIA H200, rank`.
            name = f"{rank.place}, rank" if rank.place else "Rank"
            self._write(
                [
                    _metadata(rank.rank, 0, "process_name", {"name": name}),
                    _metadata(rank.rank, 0, "process_sort_index", {"sort_index": order}),
                    _metadata(rank.rank, 0, "process_labels", {"labels": ", ".join(rank.labels)}),
                ]
            )

    def tracks(self, tracks: list[Track]) -> None:
        """Name the threads and give them the order of the track ids."""
        self._tracks |= {track.id: track for track in tracks}
        for track in tracks:
            if track.kind in _THREADS:
                self._write(self._thread(track))

    def launches(self, launches: list[OverlaySlice]) -> None:
        """Write kernel launches."""
        self._write(
            [
                self._span(s.track, s.name, s.category, s.start_ns, s.end_ns, s.args)
                for s in launches
            ]
        )

    def events(self, batch: Batch) -> None:
        """Write spans, marks, values and the ends of flows."""
        for chunk in batch.chunks(_ROWS_PER_CHUNK):
            self._write(list(self._rows(chunk)))

    def counter(self, points: CounterPoints) -> None:
        """Write one counter."""
        track = self._tracks[points.track]
        pairs = zip(points.start_ns.tolist(), points.values.tolist(), strict=True)
        self._write([_counter(track.rank, track.name, *pair) for pair in pairs])

    def end(self) -> None:
        """Close the array."""
        self._file.write(b"\n]}\n")

    def _rows(self, batch: Batch) -> Iterator[_Event]:
        columns = {name: column.tolist() for name, column in batch.columns().items()}
        for track, name, flags, start, end, payload, out, into, late, num_merged, busy in zip(
            *columns.values(), strict=True
        ):
            region = self._names[name]
            if region.kind is Kind.VALUE:
                yield self._value(track, start, payload)
                continue
            if num_merged > 1:
                args: dict[str, object] = {ARG_MERGED: num_merged, ARG_BUSY: busy}
            else:
                args = {of.name: payload >> of.shift & of.mask for of in region.fields}
            args |= {text: True for flag, text in FLAG_ARGS.items() if flags & flag}
            if region.kind is Kind.MARK:
                pid, tid = self._place(track)
                ts, cat = _us(start), region.category.value
                yield _Event("i", pid, tid, region.name, ts, cat=cat, s="t", args=args)
                continue
            yield self._span(track, region.name, region.category.value, start, end, args)
            if out:
                yield self._flow("s", track, out, start)
            if into:
                yield from self._arrival(track, region, into, max(start, end - 1), late)

    def _span(
        self,
        track: int,
        name: str,
        category: str,
        start_ns: int,
        end_ns: int,
        args: Mapping[str, object],
    ) -> _Event:
        pid, tid = self._place(track)
        return _Event(
            "X", pid, tid, name, _us(start_ns), _us(end_ns - start_ns), cat=category, args=args
        )

    def _arrival(
        self, track: int, region: Region, flow_id: int, time_ns: int, late_ns: int
    ) -> Iterator[_Event]:
        """The head of an arrow: in the wait, or in a slice at the end of a wait that began before
        the send."""
        if late_ns > 0:
            args = {ARG_LATE: late_ns}
            yield self._span(track, RELEASED, region.category.value, time_ns, time_ns, args)
        yield self._flow("f", track, flow_id, time_ns)

    def _flow(self, phase: str, track: int, flow_id: int, start_ns: int) -> _Event:
        pid, tid = self._place(track)
        bind = "e" if phase == "f" else None
        return _Event(phase, pid, tid, "flow", _us(start_ns), cat="flow", id=flow_id, bp=bind)

    def _value(self, track: int, start_ns: int, value: int) -> _Event:
        """A counter of a block or warp.

        Chrome only has counters of processes, so the name says which block or warp it belongs to.
        """
        counter = self._tracks[track]
        owner = self._path(self._tracks[counter.parent])
        return _counter(counter.rank, f"{owner} {counter.name}", start_ns, value)

    def _place(self, track: int) -> tuple[int, int]:
        return self._tracks[track].rank, self._first_tid + track

    def _thread(self, track: Track) -> list[_Event]:
        pid, tid = self._place(track.id)
        # Lanes, which are allocated late, are sorted next to their track.
        first = self._first_of.setdefault((track.parent, track.name), track.id)
        lane = f" (lane {track.lane})" if track.lane else ""
        return [
            _metadata(pid, tid, "thread_name", {"name": self._path(track) + lane}),
            _metadata(pid, tid, "thread_sort_index", {"sort_index": first}),
        ]

    def _path(self, track: Track) -> str:
        if track.kind is TrackKind.WARP:
            return f"{self._tracks[track.parent].name} {track.name}"
        return track.name

    def _write(self, events: list[_Event]) -> None:
        if not events:
            return
        lead = b"\n" if self._is_first else b",\n"
        self._is_first = False
        self._file.write(lead + b",\n".join([self._encode(event) for event in events]))


def _metadata(pid: int, tid: int, name: str, args: Mapping[str, object]) -> _Event:
    return _Event("M", pid, tid, name, args=args)


def _counter(rank: int, name: str, start_ns: int, value: int) -> _Event:
    return _Event("C", rank, 0, name, _us(start_ns), args={"value": value})


def _us(time_ns: int) -> float:
    return time_ns / 1000
