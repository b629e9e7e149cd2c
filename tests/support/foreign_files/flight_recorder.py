"""PyTorch's flight recorder: dumps as torch 2.13 writes them on a CPU, with the times that NCCL's watchdog adds."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

from foreign_files import Row


def dump(rank: int) -> dict[str, Any]:
    entries = []
    for number in range(1, 5 - rank):
        at = 1795493374775429863 + 1_000_000 * number
        has_ended = number < 3
        entries.append(
            {"collective_seq_id": number, "input_dtypes": ["Float"], "input_sizes": [[4]], "is_p2p": False, "op_id": number,
             "p2p_seq_id": 0, "pg_id": 0, "process_group": ["0", "default_pg"], "profiling_name": "nccl:all_reduce",
             "record_id": number - 1, "retired": has_ended, "state": "completed" if has_ended else "started",
             "time_created_ns": at, "time_discovered_started_ns": at + 5000 if has_ended else None,
             "time_discovered_completed_ns": at + 95_000 if has_ended else None, "timeout_ms": 600000, "frames": []}
        )  # fmt: skip
    return {
        "version": "2.10",
        "pg_config": {},
        "pg_status": {},
        "nccl_comm_state": {},
        "entries": entries,
    }


def make(folder: Path) -> list[Path]:
    files = [folder / f"nccl_trace_rank_{rank}.json" for rank in (0, 1)]
    for rank, path in enumerate(files):
        path.write_text(json.dumps(dump(rank)))
    return files


def make_pickle(folder: Path) -> list[Path]:
    files = [folder / f"nccl_trace_rank_{rank}" for rank in (0, 1)]
    for rank, path in enumerate(files):
        path.write_bytes(pickle.dumps(dump(rank), protocol=2 + rank))
    return files


def read(files: list[Path]) -> list[Row]:
    rows = []
    for rank, path in enumerate(files):
        data = path.read_bytes()
        for each in (json.loads(data) if data[:1] == b"{" else pickle.loads(data))["entries"]:
            name, end = each["profiling_name"], each["time_discovered_completed_ns"]
            start = each["time_discovered_started_ns"] or each["time_created_ns"]
            rows.append(
                Row(
                    rank,
                    0,
                    -1,
                    name if end else f"{name} {each['state']}",
                    start,
                    end - start if end else 0,
                )
            )
    return rows
