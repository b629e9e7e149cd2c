"""ROCm iris."""

from __future__ import annotations

import json
from pathlib import Path

from foreign_files import Row


def make(folder: Path) -> list[Path]:
    files = []
    for rank in range(2):
        events = [
            {
                "name": name, "ph": "X", "pid": rank, "tid": f"XCC{i % 2}_CU{i}", "ts": 40_000_000 + 17 * i + rank, "dur": 5 + i,
                "args": {"program_id": i, "pid_m": 0, "pid_n": 0, "target_rank": 1 - rank, "address": "0x7f00",
                         "xcc_id": i % 2, "cu_id": i, "op_index": i, "payload_size": 4096},
            }
            for i, name in enumerate(("put", "wait", "load"))
        ]  # fmt: skip
        metadata = {"time_unit": "raw cycles (s_memrealtime @ 100MHz)", "schema_version": "1.1"}
        files.append(folder / f"trace_rank{rank}.json")
        files[-1].write_text(json.dumps({"traceEvents": events, "metadata": metadata}))
    return files


def read(files: list[Path]) -> list[Row]:
    events = [event for path in files for event in json.loads(path.read_text())["traceEvents"]]
    return [
        Row(e["pid"], e["args"]["program_id"], -1, e["name"], 10 * e["ts"], 10 * e["dur"])
        for e in events
    ]
