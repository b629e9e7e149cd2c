"""Chrome trace files of kernel events: process = rank, thread = block.

Such files are written by hand, often in the wrong unit: raw 10-ns ticks as if they were the
format's microseconds. So the unit of `ts` and `dur` is an argument. Some writers add the rank to
every thread id, so that the first thread has the id of its process; we recognise that. Files of
programs that were killed end without the brackets that close them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import msgspec

from kprof.capture.manifest import MAX_RANKS
from kprof.errors import ForeignFormatError
from kprof.importers.collector import Collector, Place, from_options, numbered
from kprof.importers.foreign import GENERIC, ForeignEvents, Format, Guess, ReadOptions
from kprof.importers.guesses import is_rank_in_ids
from kprof.importers.reading import parse_json, read_bytes
from kprof.importers.sample import Sample

_SHIFTED: Final = (
    "thread ids begin at the number of their rank, so kprof subtracts the rank to get the block"
)
_WHAT: Final = "a Chrome trace"
# How many ends of events are tried as the end of a file that was cut.
_MOST_CUTS: Final = 20
_OTHERS: Final = {
    "C": "counters", "s": "flow steps", "t": "flow steps", "f": "flow steps", "N": "objects",
    "O": "objects", "D": "objects", "P": "samples", "R": "marks of navigation",
}  # fmt: skip


class ChromeEvent(msgspec.Struct):
    """The parts of an event that are read."""

    ph: str = ""
    name: str = ""
    cat: str = ""
    pid: int | str = 0
    tid: int | str = 0
    ts: float | str = 0.0
    dur: float | None = None
    id: int | str | None = None
    id2: dict[str, Any] | None = None
    args: dict[str, Any] | None = None


class ChromeFile(msgspec.Struct):
    """A file that is an object; others are an array of events."""

    traceEvents: list[ChromeEvent]  # noqa: N815
    metadata: dict[str, Any] | None = None


def read_chrome(file: Path, found: Collector) -> ChromeFile:
    """A .json or .json.gz file, closed or not; raises ForeignFormatError.

    Events that the end of an unclosed file cuts are counted as left out.
    """
    data = read_bytes(file, _WHAT)
    try:
        return _parsed(data, file)
    except ForeignFormatError as error:
        if _is_json(data):
            raise
        for end in _ends(data):
            try:
                parsed = _parsed(data[:end] + _brackets(data), file)
            except ForeignFormatError:
                continue
            if num_cut := data.count(b'"ph"', end):
                found.left_out["events that the end of the file cuts"] += num_cut
            return parsed
        raise error


def _is_json(data: bytes) -> bool:
    try:
        msgspec.json.decode(data, type=msgspec.Raw)
    except (ValueError, RecursionError):
        return False
    return True


def _parsed(data: bytes, file: Path) -> ChromeFile:
    found = parse_json(data, list[ChromeEvent] | ChromeFile, file, _WHAT)  # type: ignore[arg-type]
    return found if isinstance(found, ChromeFile) else ChromeFile(found)


def _brackets(data: bytes) -> bytes:
    """What closes a file behind its last event."""
    return b"]" if data[:64].lstrip().startswith(b"[") else b"]}"


def _ends(data: bytes) -> Iterator[int]:
    """Where the last events may end, the last one first."""
    at = len(data)
    for _ in range(_MOST_CUTS):
        at = data.rfind(b"}", max(0, at - (1 << 16)), at)
        if at < 0:
            return
        yield at + 1


def _read(files: Sequence[Path], options: ReadOptions) -> ForeignEvents:
    """Spans ("X", pairs of "B" and "E", of "b" and "e") and instants of one file.

    `tick_ns` is the length of one unit of `ts`. The rank is subtracted from every thread id with
    `is_rank_in_tid`, or if the ids of every rank begin at its number. Arguments that are whole
    numbers in every event become payload fields.
    """
    (file,) = files
    found = Collector()
    events = read_chrome(file, found).traceEvents
    tick_ns, clock = from_options("microseconds, as the format says", options.tick_ns, 1000.0)
    return _without_rank(from_chrome(file, events, found, tick_ns, clock), options)


def from_chrome(
    file: Path, events: Sequence[ChromeEvent], found: Collector, tick_ns: float, clock: str
) -> ForeignEvents:
    """Events as captures have them: the process is the rank, the thread the block."""
    ranks, rank_source = _ids("pid", events, MAX_RANKS)
    blocks, block_source = _ids("tid", events, 1 << 31)
    for event in sorted(events, key=event_time):
        # Pairs are pairs in the order of time; a file may have any other.
        if event.ph != "M":
            _collect(found, event, Place(ranks[str(event.pid)], blocks[str(event.tid)]))
    if num_endless := sum(event.ph == "X" and event.dur is None for event in events):
        found.notices["spans without dur, imported as 0 ns"] += num_endless
    taken = {"rank": rank_source, "block": block_source, "clock": clock}
    foreign = found.events(file, tick_ns, taken)
    if len(foreign) == 0 and found.left_out:
        counts = ", ".join(f"{what}: {number:,}" for what, number in found.left_out.items())
        raise ForeignFormatError(f"{file} has no complete span and no instant ({counts})")
    return foreign


def _collect(found: Collector, event: ChromeEvent, place: Place) -> None:
    time, key = event_time(event), (event.cat, str(event.id), str(event.id2), event.name)
    if event.ph == "X":
        found.span(place, event.name, time, event.dur or 0.0, event.args)
    elif event.ph in ("i", "I", "n"):
        found.mark(place, event.name, time, event.args)
    elif event.ph in ("B", "b"):
        found.begin(place, event.name, time, None if event.ph == "B" else key, event.args)
    elif event.ph in ("E", "e"):
        found.end(place, time, None if event.ph == "E" else key)
    else:
        found.left_out[_OTHERS.get(event.ph, "events of unknown kinds")] += 1


def event_time(event: ChromeEvent) -> float:
    """`ts`, which some writers quote; raises ForeignFormatError."""
    try:
        return float(event.ts)
    except ValueError as error:
        raise ForeignFormatError(
            f"an event has the ts {event.ts[:20]!r}, not a number; fix or remove it"  # type: ignore[index]
        ) from error


def _ids(of: str, events: Sequence[ChromeEvent], limit: int) -> tuple[dict[str, int], str]:
    """The number of each pid (tid): itself, or one from its name if it is none or too large.

    Keys are texts: integers can be chosen so that all have one hash, and a file's author may be
    anybody.
    """
    ids = dict.fromkeys(str(getattr(event, of)) for event in events if event.ph != "M")
    try:
        numbers = {each: int(each) for each in ids}
        if max(numbers.values(), default=0) < limit:
            return numbers, of
    except ValueError:
        pass
    kind = "process_name" if of == "pid" else "thread_name"
    names = {
        str(getattr(event, of)): str((event.args or {}).get("name", ""))
        for event in events
        if event.ph == "M" and event.name == kind
    }
    labels = numbered(names.get(each) or each for each in ids)
    if max(labels.values(), default=0) >= limit:
        labels = {label: i for i, label in enumerate(labels)}
    shown = ", ".join(f"{label[:40]} is {labels[label]}" for label in list(labels)[:3])
    source = f"the names of {of}s ({shown}{', ...' if len(labels) > 3 else ''})"
    return {each: labels[names.get(each) or each] for each in ids}, Guess(source)


def _without_rank(events: ForeignEvents, options: ReadOptions) -> ForeignEvents:
    is_shifted = is_rank_in_ids(events.rank, events.block)
    if not options.is_rank_in_tid and not is_shifted:
        return events
    guesses = () if options.is_rank_in_tid else (_SHIFTED,)
    return replace(events, block=events.block - events.rank, guesses=guesses)


def _sniff(sample: Sample) -> float:
    return GENERIC if sample.is_json and b'"ph"' in sample.head else 0.0


FORMAT: Final = Format(_read, _sniff, uses=("tick_ns", "is_rank_in_tid"))
