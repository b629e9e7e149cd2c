"""Perfetto protobuf, written and read byte by byte: TrackDescriptors of two processes with threads, and their TrackEvents."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from foreign_files import Row

# rank, block, and the begins and ends on that thread: ns, and the name of a begin.
EVENTS = [
    (0, 3, 1000, "load"),
    (0, 3, 1010, "inner"),
    (0, 3, 1020, None),
    (0, 3, 1700, None),
    (0, 4, 1200, "work"),
    (0, 4, 1900, None),
    (1, 3, 1400, "work"),
    (1, 3, 2600, None),
]


def make(folder: Path) -> list[Path]:
    packets = [
        track(1 + rank, field(3, number(1, 10 + rank) + field(6, b"rank %d" % rank)))
        for rank in (0, 1)
    ]
    for rank, block in sorted({(rank, block) for rank, block, *_ in EVENTS}):
        thread = (
            number(1, 10 + rank)
            + number(2, 100 * (rank + 1) + block)
            + field(5, b"block %d" % block)
        )
        packets.append(track(uuid(rank, block), field(4, thread)))
    for rank, block, time, name in EVENTS:
        event = number(11, uuid(rank, block)) + number(9, 1 if name else 2)
        event += field(23, name.encode()) if name else b""
        packets.append(number(8, time) + number(10, 1) + field(11, event))
    path = folder / "trace.pftrace"
    path.write_bytes(b"".join(field(1, packet) for packet in packets))
    return [path]


def uuid(rank: int, block: int) -> int:
    return 1000 + 100 * rank + block


def track(uuid: int, more: bytes) -> bytes:
    return field(60, number(1, uuid) + more)


def varint(value: int) -> bytes:
    return bytes([value]) if value < 128 else bytes([value & 127 | 128]) + varint(value >> 7)


def number(which: int, value: int) -> bytes:
    return varint(which << 3) + varint(value)


def field(which: int, data: bytes) -> bytes:
    return varint(which << 3 | 2) + varint(len(data)) + data


def fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    at = 0

    def read() -> int:
        nonlocal at
        value = shift = 0
        while data[at] >= 128:
            value, shift, at = value | (data[at] & 127) << shift, shift + 7, at + 1
        value, at = value | data[at] << shift, at + 1
        return value

    while at < len(data):
        key = read()
        value = read()
        if key & 7 == 2:
            yield key >> 3, data[at : at + value]
            at += value
        else:
            yield key >> 3, value


def read(files: list[Path]) -> list[Row]:
    rows, opened = [], {}
    places = {uuid(rank, block): (rank, block) for rank, block, *_ in EVENTS}
    for _, packet in fields(files[0].read_bytes()):
        found = dict(fields(packet))
        if 11 not in found:
            continue
        event = dict(fields(found[11]))
        stack = opened.setdefault(event[11], [])
        if event[9] == 1:
            stack.append((event[23].decode(), found[8]))
        else:
            name, begin = stack.pop()
            rows.append(Row(*places[event[11]], -1, name, begin, found[8] - begin))
    return rows
