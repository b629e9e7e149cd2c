"""JSON of the example plugin that comes with NCCL, one file per rank.

It is an array of Chrome events that may never be closed. A channel follows its collective. What the
plugin has not seen end has StopGpuClk 0: in 2.30 that is every channel but the first.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from kprof.errors import ForeignFormatError
from kprof.importers.collector import Collector, Place, file_per_rank
from kprof.importers.foreign import Format
from kprof.importers.reading import parse_json, read_bytes
from kprof.regions import Category

_WHAT: Final = "JSON of NCCL's example profiler"
_CALLS: Final = ("COLL", "P2P")


class _Arguments(msgspec.Struct, rename="pascal"):
    seq_num: int = 0
    comm_hash: int = 0
    rank: int = 0
    peer: int = -1
    algorithm: str = ""
    protocol: str = ""
    channel: int = -1
    start_gpu_clk: int = 0
    stop_gpu_clk: int = 0


class _Event(msgspec.Struct):
    name: str = ""
    cat: str = ""
    ph: str = ""
    args: _Arguments = msgspec.field(default_factory=_Arguments)


def _collect(found: Collector, path: Path, _: int) -> None:
    """Each collective names its rank."""
    call: _Event | None = None
    num_calls: dict[tuple[int, str, int], int] = {}
    for event in _events(path):
        if event.ph == "b" and event.cat in _CALLS:
            call = event
            # Sends and receives have no number of their own: they are counted.
            key = (event.args.comm_hash, event.name, event.args.peer)
            num_calls[key] = num_calls.get(key, -1) + 1
            number = event.args.seq_num if event.cat == "COLL" else num_calls[key]
            named = (event.name, event.args.algorithm, event.args.protocol)
            kernel = " ".join(filter(None, named))
            launch = found.launch((*key, number), kernel)
        elif event.ph == "b" and event.cat == "GPU" and call is not None:
            place = Place(call.args.rank, event.args.channel, launch=launch)
            _channel(found, place, kernel, event.args)


def _channel(found: Collector, place: Place, name: str, times: _Arguments) -> None:
    if times.start_gpu_clk and times.stop_gpu_clk >= times.start_gpu_clk:
        found.span(place, name, times.start_gpu_clk, times.stop_gpu_clk - times.start_gpu_clk)
        return
    if times.start_gpu_clk:
        found.mark(place, f"{name} begins", times.start_gpu_clk)
    found.left_out["channels without an end"] += 1
    found.num_dropped[place.rank] += 1


def _events(path: Path) -> list[_Event]:
    data = read_bytes(path, _WHAT).rstrip().removesuffix(b",")
    if not data.endswith(b"]"):
        data += b"]"
    events = parse_json(data, list[_Event], path, _WHAT)
    if not any(event.cat == "GPU" for event in events):
        raise ForeignFormatError(f"{path} has no channels: set NCCL_PROFILE_EVENT_MASK to 4095")
    return events


FORMAT: Final = Format(
    file_per_rank(
        _collect,
        # How much of it was waiting, nobody knows.
        category=Category.OTHER,
        rank="Rank of the collective",
        block="Channel",
        launch="CommHash and SeqNum",
        clock="%globaltimer of each GPU, ns",
    ),
    lambda sample: sample.has("StartGpuClk", "KernelCh"),
    takes_many=True,
)
