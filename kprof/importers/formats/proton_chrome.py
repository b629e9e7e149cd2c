"""Chrome JSON that Triton's Proton writes with `data="trace"`.

`pid` is "<kernel> Core<SM> CTA<block>", `tid` is "warp <w> (line <l>)". A block's place in time is
in ns, but times within a block are cycles that are written as if each took 1 ns.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from kprof.errors import ForeignFormatError
from kprof.importers.collector import Collector, Place
from kprof.importers.foreign import ForeignEvents, Format, Guess, ReadOptions
from kprof.importers.formats.chrome import ChromeEvent, event_time, read_chrome

_PID: Final = re.compile(r"(.*) Core(\d{1,9}) CTA(\d{1,9})", re.DOTALL)
_TID: Final = re.compile(r"warp (\d{1,4}).*")


def _read(files: Sequence[Path], options: ReadOptions) -> ForeignEvents:
    """One file per rank. A launch begins where a warp appears again behind other warps."""
    if options.tick_ns is None:
        raise ForeignFormatError(
            f"{files[0]} gives times within blocks in cycles and does not say how long one is; "
            "give --tick-ns, such as 0.5 for 2 GHz (Proton's own 1000 MHz is a constant)"
        )
    found = Collector()
    for rank, path in enumerate(files):
        _collect(found, read_chrome(path, found).traceEvents, rank, options.tick_ns)
    return found.events(
        files[0],
        taken={
            "rank": "the order of the files",
            "block": "CTA in pid",
            "warp": "tid",
            "launch": Guess("a warp that appears again"),
            "processor": "Core in pid",
            "clock": f"ns of each block's start, then cycles of {options.tick_ns:g} ns",
        },
    )


def _collect(found: Collector, events: Sequence[ChromeEvent], rank: int, tick_ns: float) -> None:
    placed = []
    seen: dict[str, set[tuple[str, ...]]] = {}
    ordinals: dict[str, int] = {}
    latest: tuple[str, ...] = ()
    for event in events:
        pid, tid = _PID.fullmatch(str(event.pid)), _TID.fullmatch(str(event.tid))
        if event.ph != "X" or not pid or not tid:
            if event.ph != "M":
                found.left_out["events that are no spans of a warp"] += 1
            continue
        kernel, core, cta = pid.groups()
        track = (kernel, cta, tid[1])
        if track != latest and track in seen.setdefault(kernel, set()):
            ordinals[kernel] = ordinals.get(kernel, 0) + 1
            seen[kernel].clear()
        seen[kernel].add(track)
        latest = track
        launch = found.launch((kernel, ordinals.get(kernel, 0)), kernel)
        placed.append((Place(rank, int(cta), int(tid[1]), launch, int(core)), event))
    first: dict[tuple[int, int], float] = {}
    for place, event in placed:
        key = place.launch, place.block
        first[key] = min(first.get(key, float("inf")), event_time(event))
    for place, event in placed:
        begin_us = first[place.launch, place.block]
        start_ns = begin_us * 1000 + (event_time(event) - begin_us) * 1000 * tick_ns
        found.span(place, event.name, start_ns, (event.dur or 0.0) * 1000 * tick_ns)


FORMAT: Final = Format(
    _read,
    lambda sample: sample.is_json and bool(re.search(rb" Core\d+ CTA\d+\"", sample.head)),
    uses=("tick_ns",),
    takes_many=True,
)
