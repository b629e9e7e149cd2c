"""NCCL's example profiler: what it wrote on a real GPU."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from foreign_files import DATA, Row


def make(folder: Path) -> list[Path]:
    files = [folder / f"nccl_profiler_rank{rank}.json" for rank in (0, 1)]
    return [Path(shutil.copyfile(DATA / file.name, file)) for file in files]


def read(files: list[Path]) -> list[Row]:
    rows = []
    for path in files:
        call: dict = {}
        for line in path.read_text().splitlines()[1:]:
            event = json.loads(line.rstrip(","))
            arguments = event.get("args", {})
            if event["ph"] == "b" and event["cat"] == "COLL":
                call = event
            if event["ph"] != "b" or event["cat"] != "GPU":
                continue
            name = f"{call['name']} {call['args']['Algorithm']} {call['args']['Protocol']}"
            start, stop = arguments["StartGpuClk"], arguments["StopGpuClk"]
            what, spent = (name, stop - start) if stop else (f"{name} begins", 0)
            rows.append(Row(call["args"]["Rank"], arguments["Channel"], -1, what, start, spent))
    return rows
