"""NPKit: a dump of two ranks, with and without npkit_event.h."""

from __future__ import annotations

import re
import struct
from pathlib import Path

from foreign_files import Row

HEADER = "#define NPKIT_EVENT_RING_ENTRY 0x3\n#define NPKIT_EVENT_RING_EXIT 0x4\n#define NPKIT_EVENT_COPY_ENTRY 0x5\n#define NPKIT_EVENT_COPY_EXIT 0x6\n"


def event(kind: int, time: int, size: int = 0) -> bytes:
    return struct.pack("<BIBBBQ", kind, size, 0, 0, 0, time)


def make(folder: Path) -> list[Path]:
    dump = make_without_names(folder)
    (dump[0] / "npkit_event.h").write_text(HEADER)
    return dump


def make_without_names(folder: Path) -> list[Path]:
    dump = folder / "dump"
    dump.mkdir()
    for rank in range(2):
        (dump / f"cpu_clock_period_num_rank_{rank}").write_text("1\n")
        (dump / f"cpu_clock_period_den_rank_{rank}").write_text("1000000000\n")
        (dump / f"gpu_clock_rate_rank_{rank}").write_text("100000\n")
        (dump / f"cpu_events_rank_{rank}_channel_0").write_bytes(event(9, 5))
        for block in range(2):
            cpu, gpu = 1_700_000_000_000_000_000 + 500 * rank, 7000 + 10 * block
            events = [
                event(2, cpu),
                event(1, gpu),
                event(3, gpu + 5, 4096),
                event(5, gpu + 6, 64),
                event(6, gpu + 9),
                event(4, gpu + 30),
            ]
            (dump / f"gpu_events_rank_{rank}_buf_{block}").write_bytes(b"".join(events))
    return [dump]


def read(files: list[Path]) -> list[Row]:
    (dump,) = files
    rows = []
    names = (
        {3: "ring", 5: "copy"}
        if (dump / "npkit_event.h").exists()
        else {3: "event 3", 5: "event 5"}
    )
    for path in sorted(dump.glob("gpu_events*")):
        rank, block = (int(number) for number in re.findall(r"\d+", path.name))
        tick_ns = 10**6 // int((dump / f"gpu_clock_rate_rank_{rank}").read_text())
        opened: dict[int, int] = {}
        data = path.read_bytes()
        for at in range(0, len(data), 16):
            kind, time = struct.unpack_from("<B7xQ", data, at)
            if kind == 2:
                cpu = time
            elif kind == 1:
                gpu = time
            elif kind in names:
                opened[kind] = cpu + (time - gpu) * tick_ns
            else:
                end = cpu + (time - gpu) * tick_ns
                begin = opened[kind - 1]
                rows.append(Row(rank, block, -1, names[kind - 1], begin, end - begin))
    return rows
