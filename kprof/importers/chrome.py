"""Chrome trace files of kernel events: process = rank, thread = block.

Such files are written by hand, and often in the wrong unit: raw 10-ns ticks as if they were the format's
microseconds. So the unit of `ts` and `dur` is an argument. Some writers add the rank to every thread id, so
that no thread has the id of its process.
"""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from kprof.errors import ForeignFormatError
from kprof.importers.foreign import ForeignEvents, ImportSummary, write_foreign
from kprof.regions import RegionTable

MICROSECOND_NS: Final = 1000.0


class _Event(msgspec.Struct):
    """What is read of an event."""

    ph: str = ""
    name: str = ""
    pid: int | str = 0
    tid: int | str = 0
    ts: float = 0.0
    dur: float = 0.0
    args: dict[str, Any] | None = None


class _File(msgspec.Struct):
    traceEvents: list[_Event]  # noqa: N815


def import_chrome(
    file: Path,
    output: Path,
    *,
    tick_ns: float = MICROSECOND_NS,
    is_rank_in_tid: bool = False,
    regions: RegionTable | None = None,
    bound_ns: float | None = None,
    force: bool = False,
) -> ImportSummary:
    """Import the complete events ("X") of a .json or .json.gz file.

    `tick_ns` is the length of one unit of `ts`; `is_rank_in_tid` takes the rank off every thread id. Arguments
    that are whole numbers in every event become payload fields. Raises ForeignFormatError.
    """
    spans, num_others = _read(Path(file))
    rank = _ids(file, "pid", [event.pid for event in spans])
    block = _ids(file, "tid", [event.tid for event in spans]) - (rank if is_rank_in_tid else 0)
    names = tuple(dict.fromkeys(event.name for event in spans))
    place = {name: i for i, name in enumerate(names)}
    first = min((event.ts for event in spans), default=0.0)
    start_ns = _round((np.array([event.ts for event in spans]) - first) * tick_ns)
    events = ForeignEvents(
        rank=rank,
        block=block,
        name=np.array([place[event.name] for event in spans], dtype=np.int64),
        start_ns=start_ns,
        duration_ns=_round(np.array([event.dur for event in spans]) * tick_ns),
        names=names,
        fields=_fields(spans),
        tick_ns=tick_ns,
    )
    notices = (
        [f"{num_others:,} events that are not complete spans were left out"] if num_others else []
    )
    return write_foreign(
        events,
        output,
        origin=Path(file).name,
        regions=regions,
        bound_ns=bound_ns,
        force=force,
        notices=notices,
    )


def _read(file: Path) -> tuple[list[_Event], int]:
    """Complete events, and how many others there are beside metadata."""
    try:
        data = file.read_bytes()
        if data[:2] == b"\x1f\x8b":
            data = gzip.decompress(data)
        events = msgspec.json.decode(data, type=list[_Event] | _File)
    except (OSError, EOFError, gzip.BadGzipFile, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ForeignFormatError(f"cannot read {file} as a Chrome trace: {error}") from error
    found = events.traceEvents if isinstance(events, _File) else events
    spans = [event for event in found if event.ph == "X"]
    return spans, sum(event.ph not in ("X", "M") for event in found)


def _ids(file: Path, what: str, values: list[int | str]) -> Any:
    try:
        return np.array([int(value) for value in values], dtype=np.int64)
    except ValueError as error:
        raise ForeignFormatError(
            f"{file}: a {what} is not a number ({error}); processes must be ranks and threads blocks"
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
