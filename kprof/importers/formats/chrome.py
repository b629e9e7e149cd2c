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
    "thread ids begin at the number of their rank, so kprof subtracts the rank to get the block"
)


class _Event(msgspec.Struct):
    """The parts of an event that are read."""

    ph: str = ""
    name: str = ""
    pid: int | str = 0
    tid: int | str = 0
    ts: float = 0.0
    dur: float | None = None
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
    if num_others and not spans:
        raise ForeignFormatError(
            f"{file} holds {_name_others(num_others)}, and nothing else; "
            "write each pair of B and E as one X with its dur"
        )
    rank = _ids(file, "pid", [event.pid for event in spans])
    thread = _ids(file, "tid", [event.tid for event in spans])
    is_shifted = is_rank_in_ids(rank, thread)
    block = thread - (rank if options.is_rank_in_tid or is_shifted else 0)
    labels = _labels(spans)
    names = tuple(dict.fromkeys(labels))
    place = {name: i for i, name in enumerate(names)}
    first = min((event.ts for event in spans), default=0.0)
    starts = np.array([event.ts for event in spans])
    return ForeignEvents(
        rank=rank,
        block=block,
        name=np.array([place[label] for label in labels], dtype=np.int64),
        start_ns=_to_ns(file, "ts", starts, first, tick_ns),
        duration_ns=_to_ns(file, "dur", np.array([_duration(e) for e in spans]), 0.0, tick_ns),
        names=names,
        fields=_fields(file, spans),
        tick_ns=tick_ns,
        marks=frozenset(
            label for event, label in zip(spans, labels, strict=True) if _is_instant(event)
        ),
        guesses=(_SHIFTED,) if is_shifted and not options.is_rank_in_tid else (),
        notices=_notices(spans, num_others),
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


def _notices(spans: list[_Event], num_others: int) -> tuple[str, ...]:
    """What is said of events that are not imported as they stand."""
    num_endless = sum(event.ph == "X" and event.dur is None for event in spans)
    said = []
    if num_others:
        said.append(f"{_name_others(num_others)}: left out")
    if num_endless:
        said.append(f"{num_endless:,} span{'s'[num_endless == 1 :]} without dur: imported as 0 ns")
    return tuple(said)


def _name_others(number: int) -> str:
    if number == 1:
        return "1 event that is neither a complete span nor an instant"
    return f"{number:,} events that are neither complete spans nor instants"


def _is_instant(event: _Event) -> bool:
    return event.ph in ("i", "I")


def _duration(event: _Event) -> float:
    return 0.0 if _is_instant(event) else event.dur or 0.0


def _labels(events: list[_Event]) -> list[str]:
    """Names by which spans and instants differ."""
    of_spans = {event.name for event in events if event.ph == "X"}
    return [
        f"{event.name} (instant)" if _is_instant(event) and event.name in of_spans else event.name
        for event in events
    ]


def _ids(file: Path, what: str, values: list[int | str]) -> Any:
    try:
        numbers = [int(value) for value in values]
    except ValueError as error:
        raise ForeignFormatError(
            f"{file}: a {what} is not a number ({error}); "
            "processes must be ranks and threads blocks"
        ) from error
    return _to_int64(file, what, numbers)


def _to_int64(file: Path, what: str, numbers: list[Any]) -> Any:
    try:
        return np.array(numbers, dtype=np.int64)
    except OverflowError as error:
        digits = str(max(numbers, key=abs))
        strange = digits if len(digits) <= 20 else f"{digits[:20]}..."
        raise ForeignFormatError(
            f"{file}: the {what} {strange} does not fit into 64 bits; fix or remove the event"
        ) from error


def _to_ns(file: Path, what: str, ticks: Any, first: float, tick_ns: float) -> Any:
    with np.errstate(over="ignore", invalid="ignore"):
        ns = np.rint((ticks - first) * tick_ns)
    # Also false for what is not a number.
    is_possible = np.abs(ns) < 2.0**63
    if not is_possible.all():
        raise ForeignFormatError(
            f"{file}: the {what} {ticks[~is_possible][0]:g} is too large for 64 bits of ns; "
            "fix or remove the event, or check --tick-ns"
        )
    return ns.astype(np.int64)


def _fields(file: Path, spans: list[_Event]) -> dict[str, Any]:
    """Arguments that every event has as a whole number."""
    if not spans or not spans[0].args:
        return {}
    columns = {name: [(event.args or {}).get(name) for event in spans] for name in spans[0].args}
    return {
        name: _to_int64(file, f"argument {name}", values)
        for name, values in columns.items()
        if name.isidentifier() and all(type(value) is int for value in values)
    }


FORMAT: Final = Format(_read, uses=("tick_ns", "is_rank_in_tid"))
