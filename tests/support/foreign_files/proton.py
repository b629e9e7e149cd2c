"""Proton's host buffer: a real one, and one of each layout by hand, whose first ring has wrapped."""

from __future__ import annotations

import gzip
import shutil
import struct
from pathlib import Path

from foreign_files import DATA, Row

BEGIN_NS = 1_795_465_275_425_375_584
RING_WORDS = 8
WARPS = (0, 2)


def make(folder: Path, *, is_new: bool = True) -> list[Path]:
    """Two blocks of three warps, two of which are recorded."""
    uids = struct.pack("<2I", *WARPS)
    head = (struct.pack("<I", 2) if is_new else b"") + uids
    body = b"".join(block(i, is_new=is_new) for i in range(2))
    size = 36 + len(head)
    block_bytes = len(body) // 2
    data = struct.pack("<9I", 1, 4, size, size, len(body), 1, 2, 3, block_bytes) + head + body
    path = folder / "rows.bin"
    path.write_bytes(data)
    return [path]


def make_old(folder: Path) -> list[Path]:
    return make(folder, is_new=False)


def make_real(folder: Path) -> list[Path]:
    return [Path(shutil.copy(DATA / "proton_rows.host_buffer.bin.gz", folder))]


def block(number: int, *, is_new: bool) -> bytes:
    rings = []
    counts = [0, 0, 0]
    for warp in WARPS:
        events = []
        for i in range(3 if warp == 0 else 2):
            cycle = (5 << 32) + 1000 * number + 100 * i + warp
            events += [
                (i << 23 | cycle >> 32, cycle),
                (1 << 31 | i << 23 | cycle >> 32, cycle + 60),
            ]
        words = [word for tag, cycle in events for word in (tag, cycle & 0xFFFFFFFF)]
        counts[warp] = len(words)
        ring = [0] * RING_WORDS
        for i, word in enumerate(words):
            ring[i % RING_WORDS] = word
        rings.append(struct.pack(f"<{RING_WORDS}I", *ring))
    begin = BEGIN_NS + 64 * number
    times = struct.pack("<3Q", begin, begin + 200, begin + 300) if is_new else b""
    head = struct.pack("<4I", 0xDEADBEEF, number, 100 + number, 4 * RING_WORDS * len(WARPS))
    return head + times + struct.pack("<3I", *counts) + b"".join(rings) + bytes(16)


def read(files: list[Path], tick_ns: float = 0.5) -> list[Row]:
    rows = []
    for rank, path in enumerate(files):
        data = path.read_bytes()
        data = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
        _, _, size, at, _, _, num_blocks, num_warps, block_bytes = struct.unpack_from("<9I", data)
        (maybe,) = struct.unpack_from("<I", data, 36)
        skip = 40 if size == 40 + 4 * maybe else 36
        warps = struct.unpack_from(f"<{(size - skip) // 4}I", data, skip)
        for i in range(num_blocks):
            part = data[at + i * block_bytes :][:block_bytes]
            if len(part) == block_bytes:
                rows += rows_of(rank, part, num_warps, warps, tick_ns)
    return rows


def rows_of(
    rank: int, part: bytes, num_warps: int, warps: tuple[int, ...], tick_ns: float
) -> list[Row]:
    _, number, _, ring_bytes = struct.unpack_from("<4I", part)
    begin, end = struct.unpack_from("<2Q", part, 16)
    is_new = 1 << 45 < begin <= end < begin + (1 << 36)
    at = 40 if is_new else 16
    counts = struct.unpack_from(f"<{num_warps}I", part, at)
    at += 4 * num_warps
    num_words = ring_bytes // 4 // len(warps)
    rows = []
    for i, warp in enumerate(warps):
        first = max(0, counts[warp] - num_words)
        entries = []
        for k in range(first, counts[warp], 2):
            entries.append(
                struct.unpack_from("<2I", part, at + 4 * (i * num_words + k % num_words))
            )
        opened: dict[int, int] = {}
        zero = None
        for tag, low in entries:
            cycle = (tag & 0x7FF) << 32 | low
            if zero is None:
                zero = cycle if is_new else 0
            time = round((cycle - zero) * tick_ns) + (begin if is_new else 0)
            scope = tag >> 23 & 255
            if not tag >> 31:
                opened[scope] = time
            elif scope in opened:
                rows.append(
                    Row(
                        rank,
                        number,
                        warp,
                        f"scope {scope}",
                        opened[scope],
                        time - opened.pop(scope),
                    )
                )
    return rows
