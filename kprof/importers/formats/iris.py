"""Chrome JSON of ROCm's iris: ticks of s_memrealtime where the format says microseconds.

`pid` is the rank, `tid` the XCC and CU; the program and the peer are arguments.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from kprof.importers.collector import Collector, Place, file_per_rank
from kprof.importers.foreign import Format
from kprof.importers.formats.chrome import ChromeEvent, event_time, read_chrome

_FIELDS: Final = {"target_rank": "peer", "payload_size": "bytes"}


def _collect(found: Collector, path: Path, _: int) -> None:
    """Each event names its rank."""
    for event in read_chrome(path, found).traceEvents:
        if event.ph == "X":
            args = event.args or {}
            fields = {to: args[of] for of, to in _FIELDS.items() if of in args}
            begin, duration = _ticks(event_time(event)), _ticks(event.dur or 0)
            found.span(_place(event), event.name, begin, duration, fields)
        elif event.ph != "M":
            found.left_out["events that are no spans"] += 1


def _place(event: ChromeEvent) -> Place:
    args: dict[str, Any] = event.args or {}
    numbers = [args.get(name, 0) for name in ("program_id", "xcc_id", "cu_id")]
    block, xcc, cu = (number if isinstance(number, int) else 0 for number in numbers)
    rank = int(event.pid) if str(event.pid).isdecimal() and len(str(event.pid)) < 9 else 0
    return Place(rank, block, hw_id=xcc << 16 | cu)


def _ticks(value: float) -> int | float:
    return int(value) if float(value).is_integer() else value


FORMAT: Final = Format(
    file_per_rank(
        _collect,
        ("s_memrealtime, 10 ns a tick", 10.0),
        rank="pid",
        block="program_id",
        processor="xcc_id and cu_id",
    ),
    lambda sample: sample.has("xcc_id", "program_id", "cu_id"),
    uses=("tick_ns",),
    takes_many=True,
)
