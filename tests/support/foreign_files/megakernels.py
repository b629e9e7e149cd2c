"""Megakernels: timings as .npy."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np

from foreign_files import Row

SLOTS = {0: 10, 1: 40, 5: 50, 6: 90, 11: 100, 12: 180, 44: 60, 54: 170}


def make(folder: Path) -> list[Path]:
    times = np.zeros((3, 4, 128), "<i4")
    for sm in range(3):
        for i in range(2):
            for slot, time in SLOTS.items():
                times[sm, i, slot] = time + 1000 * i + sm
    path = folder / "timings.npy"
    np.save(path, times)
    return [path]


def read(files: list[Path], tick_ns: float = 0.5) -> list[Row]:
    rows = []
    for rank, path in enumerate(files):
        # What stands behind the array that the header declares is none of it.
        data = np.load(path).tobytes()
        for at in range(0, len(data), 512):
            slots = struct.unpack_from("<128i", data, at)
            sm = at // 512 // 4
            roles = [("controller", 0), ("loader", 5), ("launcher", 7), ("storer", 9)]
            roles += [(f"consumer {i}", 11 + 2 * i) for i in range(16)]
            for warp, (role, slot) in enumerate(roles):
                if slots[slot + 1]:
                    took = round((slots[slot + 1] - slots[slot]) * tick_ns)
                    rows.append(Row(rank, sm, warp, role, round(slots[slot] * tick_ns), took))
            for slot in range(44, 128):
                if slots[slot]:
                    rows.append(Row(rank, sm, -1, f"slot {slot}", round(slots[slot] * tick_ns), 0))
    return rows
