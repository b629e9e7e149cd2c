"""What NCCL does on the host, as a trace beside the events: calls, launches, steps of proxies.

The file is in the layout of the PyTorch profiler's, with each collective from its call until the
host has seen it end: these enclose what its channels recorded, which puts the host's clock onto
the GPU's (kprof.export.torch_clock).
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

from kprof.capture.directory import writing
from kprof.capture.torch_traces import HOST_CATEGORY, host_trace_name, torch_trace_name
from kprof.nccl.events import told
from kprof.nccl.ring import START, STOP, Ring

if TYPE_CHECKING:
    import pandas as pd

_NAMES: Final = {8: "group", 9: "", 10: "", 11: "launch", 12: "copy engine"}
_PROXY_OP, _PROXY_STEP = 3, 4
# States whose value is the number of bytes so far: from SendGPUWait to RecvGPUWait, SendPeerWait.
_MOVED: Final = (8, 9, 10, 11, 12, 20)


def write_host_trace(
    directory: Path, rank: int, calls: pd.DataFrame, rings: Sequence[tuple[Ring, Sequence[int]]]
) -> None:
    """Write it, unless the PyTorch profiler has one of this rank; raises CaptureError.

    `calls` have columns kernel, begun_ns and ended_ns of the host; `rings` come with the numbers of
    the rank's communicators.
    """
    if calls.empty or (directory / torch_trace_name(rank)).exists():
        return
    rows: list[dict[str, Any]] = [
        _slice(kernel, "kernel", "collectives", int(begun), int(ended))
        for kernel, begun, ended in calls.to_numpy().tolist()
    ]
    for ring, comms in rings:
        rows += _on_host(ring, comms)
    path = directory / host_trace_name(rank)
    with writing(path):
        path.write_bytes(gzip.compress(msgspec.json.encode({"traceEvents": rows}), 1))


def _on_host(ring: Ring, comms: Sequence[int]) -> Iterator[dict[str, Any]]:
    rows = ring.records
    starts = rows[(rows["what"] == START) & np.isin(rows["comm"], comms)]
    stops = rows[rows["what"] == STOP]
    ends = dict(zip(stops["subject"].tolist(), stops["host_ns"].tolist(), strict=True))
    moved = [told(rows, state).to_dict() for state in _MOVED]
    ops = {int(row["handle"]): row for row in starts[starts["kind"] == _PROXY_OP]}
    for row in starts[np.isin(starts["kind"], (*_NAMES, _PROXY_OP, _PROXY_STEP))]:
        handle, kind, begun_ns = int(row["handle"]), int(row["kind"]), int(row["host_ns"])
        if (ended_ns := ends.get(handle, -1)) < begun_ns:
            continue
        if kind in _NAMES:
            name = _NAMES[kind] or ring.texts[int(row["func"])]
            yield _slice(name, HOST_CATEGORY, f"thread {row['tag']}", begun_ns, ended_ns)
            continue
        op = row if kind == _PROXY_OP else ops.get(int(row["subject"]))
        if op is None:
            continue
        way = "send to" if op["extra"] else "receive from"
        line = f"proxy, channel {op['channel']}, {way} {op['peer']}"
        name = f"{op['count']} steps"
        if kind == _PROXY_STEP:
            num_bytes = max(int(values.get(handle, 0)) for values in moved)
            name = f"step {row['value']}: {num_bytes:,} B"
        yield _slice(name, HOST_CATEGORY, line, begun_ns, ended_ns)


def _slice(name: str, category: str, line: str, begun_ns: int, ended_ns: int) -> dict[str, Any]:
    # Text, because a double cannot hold us of a long uptime to the nanosecond.
    start, spent = (f"{ns // 1000}.{ns % 1000:03d}" for ns in (begun_ns, ended_ns - begun_ns))
    return {"ph": "X", "cat": category, "name": name, "tid": line, "ts": start, "dur": spent}
