"""The flows of a trace as rows of the table behind the view `flows`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import pyarrow as pa

from kprof.trace.events import Events
from kprof.trace.flows.ends import FlowEnds
from kprof.trace.flows.launches import Side

_ENDS_PER_SLICE: Final = 2_000_000


def flow_pairs(trace: Events, sides: Iterable[Side]) -> Iterator[pa.Table]:
    """All flows of the selection, slice by slice."""
    ends = FlowEnds.of(trace, sides)
    for chosen in ends.slices(_ENDS_PER_SLICE):
        sends, waits = ends.read(chosen)
        s, w = ends.pair(sends, waits)
        columns = {
            name: getattr(waits, name)[w] for name in ("rule", "launch", "src", "dst", "slot")
        }
        for side, of_side, rows in (("send", sends, s), ("wait", waits, w)):
            for name in ("event_id", "block", "warp", "start_ns", "end_ns"):
                columns[f"{side}_{name}"] = getattr(of_side, name)[rows]
        yield pa.table(columns)
