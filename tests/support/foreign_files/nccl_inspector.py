"""NCCL's Inspector: a log as its source writes it, and one with the times of channels."""

from __future__ import annotations

import json
from pathlib import Path

from foreign_files import Row

METADATA = {"inspector_output_format_version": "v4.0", "git_rev": "", "rec_mechanism": "nccl_profiler_interface",
            "hostname": "a-host", "pid": 1639453}  # fmt: skip


def line(rank: int, number: int, channels: int = 0) -> str:
    at = 1748030377748202 + 1000 * number
    perf: dict = {"coll": "AllReduce", "coll_sn": number, "coll_msg_size_bytes": 1 << 20, "coll_exec_time_us": 61 + number,
                  "coll_timing_source": "kernel_gpu", "coll_algobw_gbs": 277.2, "coll_busbw_gbs": 485.1}  # fmt: skip
    if channels:
        events = [{"channel_id": c, "kernel_start_ts": at + 5 * c, "kernel_stop_ts": at + 60, "kernel_record_ts": at + 61}
                  for c in range(channels)]  # fmt: skip
        perf["event_trace_ts"] = {
            "coll_start_ts": at - 9,
            "coll_stop_ts": at - 4,
            "kernel_events": events,
        }
    header = {"id": "0x7f8c496ae9f661", "rank": rank, "n_ranks": 2, "nnodes": 1}
    return json.dumps(
        {
            "header": header,
            "metadata": {**METADATA, "dump_timestamp_us": at + 100},
            "coll_perf": perf,
        }
    )


def _make(folder: Path, channels: int) -> list[Path]:
    files = [folder / f"a-host-pid{rank}.log" for rank in (0, 1)]
    for rank, path in enumerate(files):
        # The last line was cut off.
        lines = [line(rank, number, channels) for number in range(40)]
        path.write_text("\n".join([*lines, lines[0][:77]]))
    return files


def make(folder: Path) -> list[Path]:
    return _make(folder, 0)


def make_verbose(folder: Path) -> list[Path]:
    return _make(folder, 3)


def read(files: list[Path]) -> list[Row]:
    rows = []
    for path in files:
        for text in path.read_text().splitlines():
            try:
                found = json.loads(text)
            except json.JSONDecodeError:
                continue
            rank, perf = found["header"]["rank"], found["coll_perf"]
            spans = [(c["channel_id"], c["kernel_start_ts"], c["kernel_stop_ts"])
                     for c in perf.get("event_trace_ts", {}).get("kernel_events", [])]  # fmt: skip
            end = found["metadata"]["dump_timestamp_us"]
            for block, start, stop in spans or [(0, end - perf["coll_exec_time_us"], end)]:
                rows.append(Row(rank, block, -1, perf["coll"], 1000 * start, 1000 * (stop - start)))
    return rows
