"""Logs of NCCL's Inspector: a JSON object per line and collective, one file per rank.

A line says how long the collective took. With NCCL_INSPECTOR_DUMP_VERBOSE=1 it has the times at
which the host saw its channels begin and end.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import ClassVar, Final

import msgspec

from kprof.errors import ForeignFormatError
from kprof.importers.collector import Collector, Place
from kprof.importers.foreign import ForeignEvents, Format, Guess, ReadOptions
from kprof.importers.reading import read_bytes
from kprof.regions import Category

_TICK_NS: Final = 1000.0


class _Header(msgspec.Struct):
    rank: int
    id: str = ""


class _Metadata(msgspec.Struct):
    dump_timestamp_us: int = 0


class _Channel(msgspec.Struct):
    channel_id: int = 0
    kernel_start_ts: int = 0
    kernel_stop_ts: int = 0


class _Times(msgspec.Struct):
    kernel_events: list[_Channel] = []


class _Collective(msgspec.Struct):
    name: str = msgspec.field(name="coll")
    number: int = msgspec.field(name="coll_sn")
    took_us: int = msgspec.field(name="coll_exec_time_us")
    event_trace_ts: _Times | None = None
    peer: ClassVar[int] = -1


class _Pair(msgspec.Struct):
    name: str = msgspec.field(name="p2p")
    number: int = msgspec.field(name="p2p_sn")
    took_us: int = msgspec.field(name="p2p_exec_time_us")
    event_trace_ts: _Times | None = None
    peer: int = msgspec.field(name="p2p_peer", default=-1)


class _Line(msgspec.Struct):
    header: _Header
    metadata: _Metadata
    coll_perf: _Collective | None = None
    p2p_perf: _Pair | None = None


def _read(files: Sequence[Path], _: ReadOptions) -> ForeignEvents:
    found = Collector()
    has_guess = False
    for path in files:
        for line in _lines(path, found):
            perf = line.coll_perf or line.p2p_perf
            if perf is None:
                found.left_out["lines without a collective"] += 1
                continue
            key = (line.header.id, perf.name, perf.peer, perf.number)
            place = Place(line.header.rank, launch=found.launch(key, perf.name))
            channels = [
                each
                for each in (perf.event_trace_ts.kernel_events if perf.event_trace_ts else ())
                if 0 < each.kernel_start_ts <= each.kernel_stop_ts
            ]
            for each in channels:
                at = place._replace(block=each.channel_id)
                span_us = each.kernel_stop_ts - each.kernel_start_ts
                found.span(at, perf.name, each.kernel_start_ts, span_us)
            if not channels:
                has_guess = True
                began_us = line.metadata.dump_timestamp_us - perf.took_us
                found.span(place, perf.name, began_us, perf.took_us)
    guess = Guess("us of the host; an end is when the line was written")
    return found.events(
        files[0],
        _TICK_NS,
        # How much of it was waiting, nobody knows.
        category=Category.OTHER,
        taken={
            "rank": "header.rank",
            "block": "channel_id, else 0",
            "launch": "id and number of the collective",
            "clock": guess if has_guess else "us of the host",
        },
    )


def _lines(path: Path, found: Collector) -> Iterator[_Line]:
    """The last line of a program that was killed may be cut short."""
    is_any = False
    for text in read_bytes(path, "a log of NCCL's Inspector").splitlines():
        if not text.strip():
            continue
        try:
            line = msgspec.json.decode(text, type=_Line)
        except (msgspec.DecodeError, UnicodeDecodeError):
            found.left_out["lines that are not whole"] += 1
            continue
        is_any = True
        yield line
    if not is_any:
        raise ForeignFormatError(f"{path} has no line of NCCL's Inspector; check the file")


FORMAT: Final = Format(
    _read,
    lambda sample: sample.has("header", "metadata", "dump_timestamp_us"),
    takes_many=True,
)
