"""Hand-written buffers, one per rank; the second did not hold everything."""

from __future__ import annotations

import struct
from pathlib import Path

from foreign_files import Row


def make(folder: Path) -> list[Path]:
    files = []
    for rank in range(2):
        words = [w for i in range(6) for w in (5000 + 90 * i + rank, 30 + i, i % 2, i % 3)]
        files.append(folder / f"rank{rank}.bin")
        files[-1].write_bytes(
            struct.pack("<25q", 6 + 100 * rank, *words) + bytes(0 if rank else 80)
        )
    return files


def read(files: list[Path]) -> list[Row]:
    rows = []
    for rank, path in enumerate(files):
        data = path.read_bytes()
        (count,) = struct.unpack_from("<q", data)
        for i in range(min(count, (len(data) - 8) // 32)):
            start, took, tag, block = struct.unpack_from("<4q", data, 8 + 32 * i)
            rows.append(Row(rank, block, -1, f"tag {tag}", 10 * start, 10 * took))
    return rows
