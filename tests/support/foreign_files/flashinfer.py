"""FlashInfer since 2026: its encoder stores the block, and no group."""

from __future__ import annotations

from pathlib import Path

from foreign_files import Row, slots


def make(folder: Path) -> list[Path]:
    return slots.write(
        folder, lambda kind, event, block, group, sm, k: kind | event << 2 | block << 12 | sm << 24
    )


def read(files: list[Path]) -> list[Row]:
    return slots.read_tags(files, lambda tag: (tag & 3, tag >> 2 & 0x3FF))
