"""Logs with the lines of torchcomms' PipesTrace, of one rank or of all."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from kprof.importers.collector import Collector, Place, file_per_rank
from kprof.importers.foreign import Format
from kprof.importers.reading import read_bytes
from kprof.importers.sample import Sample

_LINE: Final = re.compile(
    rb"^(?:\[1,(\d{1,5})\]<\w+>:|\[(\d{1,5})\]:)?.*?Prims (?:fine )?trace (lost|\w+=)(.*)$"
)
_PAIR: Final = re.compile(r"(\w+)=(\S*)")
_BEGINS: Final = ("_begin", "_start", "_enter")
_ENDS: Final = ("_end", "_done", "_complete", "_exit")


def _collect(found: Collector, path: Path, number: int) -> None:
    """A log of several ranks. A line names its rank, or else the order of the files gives it."""
    for line in read_bytes(path, "a log of PipesTrace").splitlines():
        match = _LINE.match(line)
        if not match:
            # A log has lines of others, too; these words are in damaged ones of ours alone.
            if b"event=" in line and b"wall_time_ns=" in line:
                found.left_out["lines without an event or a time"] += 1
            continue
        prefix = match[1] or match[2]
        text = (match[3] + match[4]).decode("utf-8", "replace")
        values = dict(_PAIR.findall(text))
        # Without a prefix the line's own rank is all there is; with one it is the peer.
        own = int(prefix) if prefix else _int(values.get("rank"), number)
        if text.startswith("lost"):
            found.num_dropped[own] += _int(re.sub(r"\D+", " ", text).strip().split(" ")[0])
        else:
            _event(found, own, values)


def _event(found: Collector, rank: int, values: dict[str, str]) -> None:
    if "event" not in values or not values.get("wall_time_ns", "").isdecimal():
        found.left_out["lines without an event or a time"] += 1
        return
    name, time = values["event"], _int(values["wall_time_ns"])
    rank = _int(values["rank"]) if "schema_version" in values and "rank" in values else rank
    place = Place(rank, _int(values.get("block")), _int(values.get("lane"), -1))
    peer = values.get("peer", values.get("rank"))
    args = {"peer": _int(peer), "slot": _int(values.get("slot"))}
    lower = name.lower()
    stem = next((lower.removesuffix(end) for end in (*_BEGINS, *_ENDS) if lower.endswith(end)), "")
    key = stem, args["peer"], values.get("step"), values.get("chunk_tag")
    if lower.endswith(_BEGINS):
        found.begin(place, stem, time, key, args)
    elif lower.endswith(_ENDS) and found.is_open(place, key):
        found.end(place, time, key)
    else:
        found.mark(place, name, time, args)


def _int(text: str | None, default: int = 0) -> int:
    return int(text) if text and text.isdecimal() and len(text) < 20 else default


def _sniff(sample: Sample) -> bool:
    return b"Prims trace event=" in sample.head or b"Prims fine trace " in sample.head


FORMAT: Final = Format(
    file_per_rank(
        _collect,
        rank="the prefix of the line, else rank=",
        block="block=, else 0",
        warp="lane=",
        clock="wall_time_ns of the host, in steps of 1024 ns",
    ),
    _sniff,
    takes_many=True,
)
