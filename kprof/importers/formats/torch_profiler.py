"""Files of torch.profiler: kernels by stream, as context for what happens inside them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import msgspec

from kprof.importers.collector import Collector, Place
from kprof.importers.foreign import CERTAIN, ForeignEvents, Format, ReadOptions, Taken
from kprof.importers.reading import read_json
from kprof.importers.sample import Sample
from kprof.regions import Category

_KINDS: Final = ("kernel", "gpu_memcpy", "gpu_memset")


class _Event(msgspec.Struct):
    ph: str = ""
    cat: str = ""
    name: str = ""
    ts: float = 0.0
    dur: float = 0.0
    args: dict[str, Any] = {}


class _File(msgspec.Struct):
    traceEvents: list[_Event]  # noqa: N815
    distributedInfo: dict[str, Any] = {}  # noqa: N815
    baseTimeNanoseconds: int = 0  # noqa: N815


def _read(files: Sequence[Path], _: ReadOptions) -> ForeignEvents:
    """One file per rank."""
    found = Collector()
    for number, path in enumerate(files):
        file = read_json(path, _File, "a file of torch.profiler")
        said = file.distributedInfo.get("rank")
        rank = said if isinstance(said, int) else number
        for event in file.traceEvents:
            if event.ph == "X" and event.cat in _KINDS:
                stream = event.args.get("stream", 0)
                place = Place(rank, stream if isinstance(stream, int) else 0)
                start_ns = round(event.ts * 1000) + file.baseTimeNanoseconds
                found.span(place, event.name, start_ns, round(event.dur * 1000))
            elif event.ph != "M":
                found.left_out["events of the host"] += 1
    events = found.events(
        files[0],
        kernel="streams",
        taken=(
            Taken("rank", "distributedInfo, else the order of the files"),
            Taken("block", "the stream: these are whole kernels"),
            Taken("clock", "ns of the host since 1970"),
        ),
    )
    return replace(events, categories={name: _category(name) for name in events.names})


def _category(name: str) -> Category:
    if name.startswith("nccl"):
        return Category.SYNC
    return Category.SEND if name.startswith("Mem") else Category.COMPUTE


def _sniff(sample: Sample) -> float:
    is_ours = sample.has("baseTimeNanoseconds") or sample.has("deviceProperties", "traceEvents")
    return CERTAIN if is_ours or sample.has("correlation", "External id") else 0.0


FORMAT: Final = Format(
    _read,
    _sniff,
    takes_many=True,
    tool="torch.profiler (Kineto) traces",
    brings="kernels and copies by stream, as context: no blocks",
    lacks="events of the host, links between them",
    tested="the layout of torch 2.6 to 2.15",
)
