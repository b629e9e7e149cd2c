"""Perfetto protobuf, through Perfetto's own trace processor, which must be on this machine.

kprof never downloads it. Tracks are taken as in Chrome JSON: a process, or a track that has no
other above it, is a rank; a thread, or the names of the tracks below that, are a block.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from kprof.capture.files import begins_with_packets, refuse_special
from kprof.errors import ForeignFormatError
from kprof.importers.collector import Collector
from kprof.importers.foreign import ForeignEvents, Format, Guess, ReadOptions
from kprof.importers.formats.chrome import ChromeEvent, from_chrome
from kprof.importers.sample import Sample

_SHELL: Final = "trace_processor_shell"
_LIKELY: Final = 0.5
_DEEPEST: Final = 32
_START_S: Final = 120
_SLICES: Final = "SELECT ts, dur, name, track_id AS track FROM slice ORDER BY ts, id"
_TRACKS: Final = """
    SELECT tr.id, tr.name, tr.parent_id, t.tid, t.name AS thread, p.upid, p.pid, p.name AS process
    FROM track tr LEFT JOIN thread_track tt USING (id) LEFT JOIN thread t USING (utid)
        LEFT JOIN process_track pt ON pt.id = tr.id
        LEFT JOIN process p ON p.upid = coalesce(t.upid, pt.upid)"""
_LEFT_OUT: Final = {"flows": "flow", "values of counters": "counter"}
_LOST: Final = "SELECT name, value, severity FROM stats WHERE value > 0"


def _read(files: Sequence[Path], _: ReadOptions) -> ForeignEvents:
    """One file. Raises ForeignFormatError where the trace processor is missing or refuses it."""
    (file,) = files
    shell = shutil.which(_SHELL)
    if shell is None:
        raise ForeignFormatError(
            f"{file} is a Perfetto trace, which Perfetto's {_SHELL} must read, and that is not in "
            "PATH; put it there (it is part of Perfetto's releases), or export the trace as JSON"
        )
    from perfetto.trace_processor import TraceProcessor, TraceProcessorConfig

    found = Collector()
    try:
        refuse_special(file)
        config = TraceProcessorConfig(bin_path=shell, load_timeout=_START_S)
        with TraceProcessor(str(file), config=config) as processor:
            events = list(_events(processor))
            for what, table in _LEFT_OUT.items():
                (row,) = processor.query(f"SELECT count(*) AS number FROM {table}")
                found.left_out[what] += row.number
            for row in processor.query(_LOST):
                if row.severity in ("error", "data_loss"):
                    found.left_out[f"Perfetto's {row.name}"] += row.value
    except Exception as error:
        # The package raises bare Exceptions, its own, and those of connections.
        raise ForeignFormatError(f"{_SHELL} cannot read {file}: {error}") from error
    found.left_out = +found.left_out
    clock = Guess("ns from the first event; whose, is not known")
    return from_chrome(file, events, found, 1.0, clock)


def _events(processor: Any) -> Iterator[ChromeEvent]:
    slices = list(processor.query(_SLICES))
    labels = labels_of(list(processor.query(_TRACKS)), {row.track for row in slices})
    first_ns: int | None = None
    for row in slices:
        # Doubles hold ns for 104 days.
        first_ns = row.ts if first_ns is None else first_ns
        # -1 has no end; 0 is an instant.
        kind = "B" if row.dur < 0 else "X" if row.dur else "i"
        process, thread = labels[row.track]
        yield ChromeEvent(
            kind, row.name or "slice", pid=process, tid=thread, ts=row.ts - first_ns, dur=row.dur
        )


def labels_of(rows: Sequence[Any], used: Collection[int]) -> dict[int, tuple[str, str]]:
    """Names of the process and the thread of each track that is used, which differ where these do.

    A row is a track with its thread and process, if it has any: see `_TRACKS`.
    """
    tracks = {row.id: (row.name or "", row.parent_id) for row in rows}
    rows = [row for row in rows if row.id in used]
    paths = {row.id: _path(tracks, row.id) for row in rows}
    processes = {row.id: row.process or str(row.pid or paths[row.id][0]) for row in rows}
    num_of_name = Counter(name for name, _ in {(processes[row.id], row.upid) for row in rows})
    found = {}
    for row in rows:
        process, path = processes[row.id], paths[row.id]
        thread = row.thread or str(row.tid or " / ".join(path[1:] or path))
        found[row.id] = (f"{process} {row.pid}" if num_of_name[process] > 1 else process, thread)
    num_of_place = Counter(found.values())
    return {
        track: (process, f"{thread} {track}" if num_of_place[process, thread] > 1 else thread)
        for track, (process, thread) in found.items()
    }


def _path(tracks: dict[int, tuple[str, int | None]], track: int | None) -> list[str]:
    """The names of a track and of those above it, the topmost first."""
    names: list[str] = []
    while track in tracks and len(names) < _DEEPEST:
        name, track = tracks[track]
        names.append(name or f"track {len(names)}")
    return names[::-1]


def _sniff(sample: Sample) -> float:
    return _LIKELY if begins_with_packets(sample.head, is_cut=True) else 0.0


FORMAT: Final = Format(_read, _sniff)
