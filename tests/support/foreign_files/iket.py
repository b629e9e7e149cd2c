"""IKET: a real warp trace, and a small file with ranges and markers as documented."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path
from typing import Any

from foreign_files import DATA, Row

DOCUMENTED: dict[str, Any] = {
    "stringTable": ["load", "mma", "tile"],
    "locationTable": [
        {"smId": 7, "tpcId": 3, "gpcId": 0, "ctaId": [1, 2, 0], "warpId": 0},
        {"smId": 7, "tpcId": 3, "gpcId": 0, "ctaId": [1, 2, 0], "warpId": 5},
    ],
    "launches": [
        {
            "contextId": 1, "gridId": 1, "kernelName": "gemm", "gridDimX": 4, "gridDimY": 3, "gridDimZ": 1,
            "blockDimX": 256, "blockDimY": 1, "blockDimZ": 1,
            "ranges": [
                {"rangeId": 0, "rangeNameIdx": 0, "rangeColor": 0, "rangeScope": 0, "rangeType": 2, "startTs": 1024,
                 "endTs": 2048, "internalEvents": [], "warpLocIdxs": [0, 1]},
                {"rangeId": 1, "rangeNameIdx": 2, "rangeColor": 0, "rangeScope": 1, "rangeType": 1, "startTs": 1024,
                 "endTs": 4096, "internalEvents": [{"timestamp": 1536, "eventId": 4}], "warpLocIdxs": [0, 1]},
            ],
            "markers": [{"markerNameIdx": 1, "timestamp": 3072, "color": 0, "locIdx": 1, "payloadType": 6, "payloadVal": 9}],
            "warpLifetimes": [],
        }
    ],
    "graphLaunches": {},
}  # fmt: skip


def make(folder: Path) -> list[Path]:
    path = folder / "iket_pid_41.trace.json"
    path.write_text(json.dumps(DOCUMENTED))
    return [path]


def make_real(folder: Path) -> list[Path]:
    return [Path(shutil.copy(DATA / "iket_warp_trace.json.gz", folder))]


def read(files: list[Path]) -> list[Row]:
    rows = []
    for rank, path in enumerate(files):
        data = path.read_bytes()
        file = json.loads(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)
        for launch in file["launches"]:
            for life in launch["warpLifetimes"]:
                rows.append(
                    row(
                        rank,
                        file,
                        launch,
                        life["locIdx"],
                        f"warp of {launch['kernelName']}",
                        life["startTs"],
                        life["endTs"],
                    )
                )
            for mark in launch["markers"]:
                name = file["stringTable"][mark["markerNameIdx"]]
                rows.append(
                    row(
                        rank,
                        file,
                        launch,
                        mark["locIdx"],
                        name,
                        mark["timestamp"],
                        mark["timestamp"],
                    )
                )
            for each in launch["ranges"]:
                name = file["stringTable"][each["rangeNameIdx"]]
                for idx in each["warpLocIdxs"][: 1 if each["rangeScope"] else None]:
                    spans = [(name, each["startTs"], each["endTs"])]
                    spans += [
                        (f"{name}/{e['eventId']}", e["timestamp"], e["timestamp"])
                        for e in each["internalEvents"]
                    ]
                    for span in spans:
                        found = row(rank, file, launch, idx, *span)
                        rows.append(found._replace(warp=-1) if each["rangeScope"] else found)
    return rows


def row(rank: int, file: Any, launch: Any, idx: int, name: str, start: int, end: int) -> Row:
    where = file["locationTable"][idx]
    x, y, z = where["ctaId"]
    block = z * launch["gridDimX"] * launch["gridDimY"] + y * launch["gridDimX"] + x
    return Row(rank, block, where["warpId"], name, start, end - start)
