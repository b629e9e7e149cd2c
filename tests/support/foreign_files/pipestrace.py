"""Logs of PipesTrace: coarse lines, then fine ones."""

from __future__ import annotations

from pathlib import Path

from foreign_files import Row

COARSE = """starting
[1,0]<stderr>:I1123 12:00:00 Prims trace event=SEND_READY step=1 rank=1 detail=64 slot=3 wall_time_ns=1700000000000001024
[1,1]<stderr>:I1123 12:00:00 Prims trace event=WAIT_DATA_READY step=1 rank=0 detail=64 slot=3 wall_time_ns=1700000000000003072
[1,1]<stderr>:I1123 12:00:00 Prims trace lost 12 entries
"""
FINE = "".join(
    f"[{rank}]:Prims fine trace schema_version=2 trace_session=1 event={event} rank={rank} op_tag=2 phase=1 dependency_step=0 "
    f"block={block} lane=0 chunk_tag=1 role=0 peer={1 - rank} qp_lane=0 bytes=4096 slot=5 wall_time_ns={time}\n"
    for rank in range(2)
    for block in range(2)
    for event, time in (
        ("COPY_BEGIN", 1700000000000001024 + 1024 * block),
        ("COPY_END", 1700000000000009216 + 1024 * rank),
        ("SLOT_FREE", 1700000000000010240),
    )
)


def make(folder: Path) -> list[Path]:
    (folder / "log.txt").write_text(COARSE)
    return [folder / "log.txt"]


def make_fine(folder: Path) -> list[Path]:
    (folder / "log.txt").write_text(FINE)
    return [folder / "log.txt"]


def read(files: list[Path]) -> list[Row]:
    rows = []
    begins: dict[tuple[int, int], int] = {}
    for line in files[0].read_text().splitlines():
        words = dict(word.split("=") for word in line.split() if word.count("=") == 1)
        if "event" not in words:
            continue
        time = int(words["wall_time_ns"])
        if "schema_version" not in words:
            rows.append(Row(int(line[3 : line.index("]")]), 0, -1, words["event"], time, 0))
            continue
        rank, block = int(words["rank"]), int(words["block"])
        if words["event"] == "COPY_BEGIN":
            begins[rank, block] = time
        elif words["event"] == "COPY_END":
            begin = begins[rank, block]
            rows.append(Row(rank, block, 0, "copy", begin, time - begin))
        else:
            rows.append(Row(rank, block, 0, words["event"], time, 0))
    return rows
