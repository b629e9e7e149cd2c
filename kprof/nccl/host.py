"""What NCCL does on the host, as a trace beside the events: calls, and steps of proxies.

The file is in the layout of the PyTorch profiler's, with each collective from its call until the
host has seen it end: these enclose what its channels recorded, which puts the host's clock onto
the GPU's (kprof.export.torch_clock).
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from kprof.capture.output import writing
from kprof.capture.torch_traces import HOST_CATEGORY, host_trace_name, torch_trace_name
from kprof.nccl.events import COLL, P2P
from kprof.nccl.ring import Ring
from kprof.on_use import pd

# Of events that a thread of the host begins and ends.
_NAMES: Final = {8: "group", 11: "launch", 12: "copy engine"}
_PROXY_OP, _PROXY_STEP = 3, 4


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
    rows = ring.records[np.isin(ring.records["comm"], comms)]
    ops = {int(row["handle"]): row for row in rows[rows["kind"] == _PROXY_OP]}
    for row in rows[np.isin(rows["kind"], (COLL, P2P, *_NAMES, _PROXY_OP, _PROXY_STEP))]:
        kind, begun_ns, ended_ns = (int(row[name]) for name in ("kind", "host_ns", "tag"))
        if kind in (COLL, P2P):
            # From the call of the API until the kernel was launched.
            begun_ns, ended_ns = int(row["subject"]), begun_ns
        if not 0 < begun_ns < ended_ns:
            continue
        if kind in (COLL, P2P):
            yield _slice(ring.texts[row["func"]], HOST_CATEGORY, "calls", begun_ns, ended_ns)
            continue
        if kind in _NAMES:
            yield _slice(_NAMES[kind], HOST_CATEGORY, _line(row), begun_ns, ended_ns)
            continue
        op = row if kind == _PROXY_OP else ops.get(int(row["subject"]))
        # Proxies also work for other processes, whose numbers mean nothing here.
        if op is None or op["value"] != ring.pid:
            continue
        way = "send to" if op["extra"] else "receive from"
        line = f"proxy, channel {op['channel']}, {way} {op['peer']}"
        name = f"{op['count']} steps"
        if kind == _PROXY_STEP:
            name = f"step {row['value']}: {row['count']:,} B"
        yield _slice(name, HOST_CATEGORY, line, begun_ns, ended_ns)


def _line(row: np.void) -> str:
    return "copy engine" if row["kind"] == 12 else f"thread {row['value']}"


def _slice(name: str, category: str, line: str, begun_ns: int, ended_ns: int) -> dict[str, Any]:
    # Text, because a double cannot hold us of a long uptime to the nanosecond.
    start, spent = (f"{ns // 1000}.{ns % 1000:03d}" for ns in (begun_ns, ended_ns - begun_ns))
    return {"ph": "X", "cat": category, "name": name, "tid": line, "ts": start, "dur": spent}
