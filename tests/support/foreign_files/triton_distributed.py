"""Triton-distributed."""

from __future__ import annotations

from pathlib import Path

from foreign_files import Row, slots

EMPTY = 0x7FFF_FFFF_FFFF_FFFF


def make(folder: Path) -> list[Path]:
    return slots.write(
        folder,
        lambda kind, event, block, group, sm, k: (
            1 - kind | event << 1 | (block * slots.NUM_GROUPS + group) << 12
        ),
        empty=EMPTY,
        table=[(10 + block) | (40 + block) << 32 for block in range(slots.NUM_BLOCKS)],
    )


def read(files: list[Path]) -> list[Row]:
    return slots.read_tags(
        files, lambda tag: (1 - (tag & 1), tag >> 1 & 0x7FF), empty=EMPTY, has_table=True
    )
