"""MORI-VIZ."""

from __future__ import annotations

import struct
from pathlib import Path

from foreign_files import Row

WORDS = 32768


def make(folder: Path) -> list[Path]:
    data = bytearray(8 * 2 * WORDS)
    for warp in range(2):
        events = [(100, 3, 0), (120, 4, 0), (150, 4, 1), (155, 5, 2), (170, 3, 1)]
        for i, (time, slot, kind) in enumerate(events):
            struct.pack_into(
                "<2q",
                data,
                8 * (warp * WORDS + 2 * i),
                10**9 + time + warp,
                warp << 16 | slot << 2 | kind,
            )
    path = folder / "rank0.bin"
    path.write_bytes(data)
    return [path]


def read(files: list[Path]) -> list[Row]:
    rows = []
    for rank, path in enumerate(files):
        data = path.read_bytes()
        opened: dict[tuple[int, int], int] = {}
        for at in range(0, len(data), 16):
            time, meta = struct.unpack_from("<2q", data, at)
            if time:
                warp, slot, kind = meta >> 16, meta >> 2 & 0x3FFF, meta & 3
                if kind == 0:
                    opened[warp, slot] = time
                else:
                    begin = opened[warp, slot] if kind == 1 else time
                    rows.append(Row(rank, 0, warp, f"slot {slot}", 10 * begin, 10 * (time - begin)))
    return rows
