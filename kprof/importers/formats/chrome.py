"""Chrome trace files of kernel events: process = rank, thread = block.

Such files are written by hand, often in the wrong unit: raw 10-ns ticks as if they were the
format's microseconds. So the unit of `ts` and `dur` is an argument. Some writers add the rank to
every thread id, so that the first thread has the id of its process; we recognise that.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from kprof.capture.files import read_maybe_gzipped
from kprof.errors import ForeignFormatError
from kprof.importers.foreign import ForeignEvents, Format, ReadOptions
from kprof.importers.guesses import is_rank_in_ids

_MICROSECOND_NS: Final = 1000.0
_SHIFTED: Final = (
    "thread ids begin at the number of their rank, so the rank is taken off to get the block"
)


class _Event(msgspec.Struct):
    """The parts of an event that are read."""

    ph: str = ""
    name: str = ""
    pid: int | str = 0
    tid: int | str = 0
    ts: float = 0.0
    dur: float = 0.0
    args: dict[str, Any] | None = None


class _File(msgspec.Struct):
    traceEvents: list[_Event]  # noqa: N815


def _read(files: Sequence[Path], options: ReadOptions) -> ForeignEvents:
    """The complete events ("X") and instants ("i") of a .json or .json.gz file.

    `tick_ns` is the length of one unit of `ts`. The rank is subtracted from every thread id with
    `is_rank_in_tid`, or if the ids of every rank begin at its number. Arguments that are whole
    numbers in every event become payload fields.
    """
    (file,) = files
    tick_ns = options.tick_ns or _MICROSECOND_NS
    spans, num_others = _read_events(file)
    rank = _ids(file, "pid", [event.pid for event in spans])
    thread = _ids(file, "tid", [event.tid for event in spans])
    is_shifted = is_rank_in_ids(rank, thread)
    block = thread - (rank if options.is_rank_in_tid or is_shifted else 0)
    labels = _labels(spans)
    names = tuple(dict.fromkeys(labels))
    place = {name: i for i, name in enumerate(names)}
    first = min((event.ts for event in spans), default=0.0)
    start_ns = _round((np.array([event.ts for event in spans]) - first) * tick_ns)
    left_out = "events that are neither complete spans nor instants were left out"
    return ForeignEvents(
        rank=rank,
        block=block,
        name=np.array([place[label] for label in labels], dtype=np.int64),
        start_ns=start_ns,
        duration_ns=_round(np.array([_duration(event) for event in spans]) * tick_ns),
        names=names,
        fields=_fields(spans),
        tick_ns=tick_ns,
        marks=frozenset(
            label for event, label in zip(spans, labels, strict=True) if _is_instant(event)
        ),
        guesses=(_SHIFTED,) if is_shifted and not options.is_rank_in_tid else (),
        notices=(f"{num_others:,} {left_out}",) if num_others else (),
    )


def _read_events(file: Path) -> tuple[list[_Event], int]:
    """Complete events and instants, and the number of others except metadata."""
    try:
        events = msgspec.json.decode(read_maybe_gzipped(file), type=list[_Event] | _File)
    except (OSError, EOFError, ValueError, RecursionError, zlib.error) as error:
        raise ForeignFormatError(f"cannot read {file} as a Chrome trace: {error}") from error
    found = events.traceEvents if isinstance(events, _File) else events
    spans = [event for event in found if event.ph == "X" or _is_instant(event)]
    return spans, sum(event.ph != "M" for event in found) - len(spans)


def _is_instant(event: _Event) -> bool:
    return event.ph in ("i", "I")


def _duration(event: _Event) -> float:
    return 0.0 if _is_instant(event) else event.dur


def _labels(events: list[_Event]) -> list[str]:
    """Names by which spans and instants differ."""
    of_spans = {event.name for event in events if event.ph == "X"}
    return [
        f"{event.name} (instant)" if _is_instant(event) and event.name in of_spans else event.name
        for event in events
    ]


def _ids(file: Path, what: str, values: list[int | str]) -> Any:
    try:
        return np.array([int(value) for value in values], dtype=np.int64)
    except ValueError as error:
        raise ForeignFormatError(
            f"{file}: a {what} is not a number ({error}); "
            "processes must be ranks and threads blocks"
        ) from error


def _round(values: Any) -> Any:
    return np.rint(values).astype(np.int64)


def _fields(spans: list[_Event]) -> dict[str, Any]:
    """Arguments that every event has as a whole number."""
    if not spans or not spans[0].args:
        return {}
    columns = {name: [(event.args or {}).get(name) for event in spans] for name in spans[0].args}
    return {
        name: np.array(values, dtype=np.int64)
        for name, values in columns.items()
        if name.isidentifier() and all(type(value) is int for value in values)
    }


FORMAT: Final = Format(_read, uses=("tick_ns", "is_rank_in_tid"))
