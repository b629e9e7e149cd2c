"""Makes and reads the buffers of the FlashInfer family; `flashinfer.py` and the others say how their tags are packed."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

from foreign_files import Row

NUM_BLOCKS, NUM_GROUPS = 3, 2
# Near the end of 32 bits, so that the clock wraps in between.
FIRST_NS = (1 << 32) - 700

# (kind, event, block, group, SM, k) -> 32 bits; kinds are 0 begin, 1 end, 2 instant.
Tag = Callable[[int, int, int, int, int, int], int]


def write(folder: Path, tag: Tag, *, empty: int = 0, table: list[int] | None = None) -> list[Path]:
    """Two spans, one in the other, and an instant for each block and group."""
    files = []
    for rank in range(2):
        words = [NUM_BLOCKS | NUM_GROUPS << 32, *(table or [])]
        rows = [[empty] * (NUM_BLOCKS * NUM_GROUPS) for _ in range(8)]
        for block in range(NUM_BLOCKS):
            for group in range(NUM_GROUPS):
                kinds = [(0, 1), (0, 2), (1, 2), (1, 1)] + ([] if table else [(2, 3)])
                for k, (kind, event) in enumerate(kinds):
                    time = (FIRST_NS + 300 * k + 20 * block + group + rank) % (1 << 32)
                    low = tag(kind, event, block, group, 40 + block, k)
                    rows[k][block * NUM_GROUPS + group] = time << 32 | low
        words += [word for row in rows for word in row]
        files.append(folder / f"rank{rank}.bin")
        files[-1].write_bytes(struct.pack(f"<{len(words)}Q", *words))
    return files


def read_tags(
    files: list[Path],
    kind_and_event: Callable[[int], tuple[int, int]],
    *,
    empty: int = 0,
    has_table: bool = False,
) -> list[Row]:
    rows = []
    for rank, path in enumerate(files):
        data = path.read_bytes()
        words = struct.unpack(f"<{len(data) // 8}Q", data)
        num_blocks, num_groups = words[0] & 0xFFFFFFFF, words[0] >> 32
        first = 1 + (num_blocks if has_table else 0)
        for track in range(num_blocks * num_groups):
            opened: dict[int, int] = {}
            for word in words[first + track :: num_blocks * num_groups]:
                if word == empty:
                    break
                time = word >> 32
                # These files are shorter than a second.
                time += (1 << 32) if time < 1 << 31 else 0
                kind, event = kind_and_event(word & 0xFFFFFFFF)
                block = (
                    words[1 + track // num_groups] & 0xFFFFFFFF
                    if has_table
                    else track // num_groups
                )
                where = (rank, block, track % num_groups, f"event {event}")
                if kind == 0:
                    opened[event] = time
                elif kind == 1:
                    rows.append(Row(*where, opened[event], time - opened[event]))
                else:
                    rows.append(Row(*where, time, 0))
    return rows
