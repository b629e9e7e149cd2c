"""FlyDSL KTRACE: two partitions, three regions, one of which is not used and one overflowed."""

from __future__ import annotations

import struct
from pathlib import Path

from foreign_files import Row

MARK, PUSH, POP, START, STOP = range(5)
NONE = 0xFFFFFFFF


def make(folder: Path) -> list[Path]:
    head = bytearray(32 * 8 * 3)
    struct.pack_into("<I", head, 4, 1)
    events = [
        (100, 1, PUSH, NONE),
        (110, 2, START, NONE),
        (130, 2, STOP, 2),
        (140, 3, MARK, NONE),
        (150, 1, POP, 1),
    ]
    regions = [region(0, 5, events), bytes(32 * 256), region(1, 300, events * 51)]
    path = folder / "ktrace.bin"
    path.write_bytes(bytes(head) + b"".join(regions))
    return [path]


def region(wave: int, issued: int, events: list[tuple[int, int, int, int]]) -> bytes:
    data = struct.pack("<IIQQII", issued, wave, 77, 3, 9, 0)
    for i, (time, event, kind, start) in enumerate(events):
        begin = start if start == NONE else start + i // 5 * 5
        packed = event | kind << 24
        data += struct.pack("<QQIIII", 10**9 + time + 1000 * (i // 5), 0, 5, 1, packed, begin)
    return data + bytes(32 * 256 - len(data))


def read(files: list[Path]) -> list[Row]:
    rows = []
    for rank, path in enumerate(files):
        data = path.read_bytes()
        for at in range(32 * 8 * 3, len(data), 32 * 256):
            issued, wave, _, _, x, _ = struct.unpack_from("<IIQQII", data, at)
            starts = {}
            for slot in range(1, min(issued, 255) + 1):
                time, _, _, _, packed, start = struct.unpack_from("<QQIIII", data, at + 32 * slot)
                name, kind = f"event {packed & 0xFFFFFF}", packed >> 24 & 7
                if kind in (PUSH, START):
                    starts[slot] = time
                else:
                    begin = time if kind == MARK else starts[start]
                    rows.append(Row(rank, x, wave & 255, name, 10 * begin, 10 * (time - begin)))
    return rows
