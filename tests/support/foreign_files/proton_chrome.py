"""Proton's Chrome JSON: a real file of two launches."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path

from foreign_files import DATA, Row


def make(folder: Path) -> list[Path]:
    return [Path(shutil.copy(DATA / "proton_rows.chrome_trace.gz", folder))]


def read(files: list[Path], tick_ns: float = 0.5) -> list[Row]:
    rows = []
    for rank, path in enumerate(files):
        events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
        # The two launches of the file are 36 ms apart.
        for is_second in (False, True):
            launch = [event for event in events if (event["ts"] > 1000) == is_second]
            for event in launch:
                _, core, cta = event["pid"].split(" ")
                assert core.startswith("Core")
                begin = min(e["ts"] for e in launch if e["pid"].endswith(" " + cta))
                start = begin * 1000 + (event["ts"] - begin) * 1000 * tick_ns
                warp = int(event["tid"].split(" ")[1])
                took = round(event["dur"] * 1000 * tick_ns)
                rows.append(Row(rank, int(cta[3:]), warp, event["name"], round(start), took))
    return rows
