"""Files of torch.profiler: kernels by stream, as context for what happens inside them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import msgspec

from kprof.importers.collector import Collector, Place, file_per_rank
from kprof.importers.foreign import Format
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


def _collect(found: Collector, path: Path, number: int) -> None:
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


def _category(name: str) -> Category:
    if name.startswith("nccl"):
        return Category.SYNC
    return Category.SEND if name.startswith("Mem") else Category.COMPUTE


def _sniff(sample: Sample) -> bool:
    is_ours = sample.has("baseTimeNanoseconds") or sample.has("deviceProperties", "traceEvents")
    return is_ours or sample.has("correlation", "External id")


FORMAT: Final = Format(
    file_per_rank(
        _collect,
        category=_category,
        kernel="streams",
        rank="distributedInfo, else the order of the files",
        block="the stream: these are whole kernels",
        clock="ns of the host since 1970",
    ),
    _sniff,
    takes_many=True,
)
