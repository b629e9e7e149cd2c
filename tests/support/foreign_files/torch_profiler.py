"""torch.profiler."""

from __future__ import annotations

import json
from pathlib import Path

from foreign_files import Row


def make(folder: Path) -> list[Path]:
    files = []
    for rank in range(2):
        events = [
            {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1234, "tid": 1234, "ts": 1000.5, "dur": 3, "args": {"External id": 1}},
            {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 2000.125 + rank, "dur": 4.5,
             "args": {"device": rank, "context": 1, "stream": 7, "correlation": 3, "grid": [4, 1, 1], "block": [128, 1, 1]}},
            {"ph": "X", "cat": "kernel", "name": "ncclDevKernel_AllReduce", "pid": 0, "tid": 20, "ts": 2001.0, "dur": 9.25,
             "args": {"device": rank, "context": 1, "stream": 20, "correlation": 4, "Collective name": "allreduce"}},
        ]  # fmt: skip
        files.append(folder / f"trace{rank}.json")
        document = {
            "schemaVersion": 1,
            "deviceProperties": [],
            "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": 2},
            "baseTimeNanoseconds": 1_700_000_000_000_000_000,
            "traceEvents": events,
        }
        files[-1].write_text(json.dumps(document))
    return files


def read(files: list[Path]) -> list[Row]:
    rows = []
    for path in files:
        file = json.loads(path.read_text())
        for e in file["traceEvents"]:
            if e["cat"] == "kernel":
                start, rank = round(e["ts"] * 1000), file["distributedInfo"]["rank"]
                rows.append(
                    Row(rank, e["args"]["stream"], -1, e["name"], start, round(e["dur"] * 1000))
                )
    return rows
