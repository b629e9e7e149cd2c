"""SQLite of Nsight Systems."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

from foreign_files import Row


def make(folder: Path) -> list[Path]:
    path = folder / "report.sqlite"
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.executescript(
            """
            CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT);
            INSERT INTO StringIds VALUES (1, 'gemm<float>'), (2, 'softmax');
            CREATE TABLE TARGET_INFO_SESSION_START_TIME (utcEpochNs INTEGER);
            INSERT INTO TARGET_INFO_SESSION_START_TIME VALUES (1700000000000000000);
            CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER, deviceId INTEGER, streamId INTEGER,
                correlationId INTEGER, globalPid INTEGER, demangledName INTEGER, gridX INTEGER, blockX INTEGER);
            INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (100, 250, 0, 7, 1, 1, 1, 4, 128), (260, 300, 0, 7, 2, 1, 2, 4, 128),
                (120, 280, 1, 7, 3, 2, 1, 4, 128);
            """
        )
    return [path]


def read(files: list[Path]) -> list[Row]:
    with contextlib.closing(sqlite3.connect(files[0])) as database:
        names = dict(database.execute("SELECT * FROM StringIds").fetchall())
        kernels = database.execute("SELECT * FROM CUPTI_ACTIVITY_KIND_KERNEL").fetchall()
    return [Row(k[2], k[3], -1, names[k[6]], k[0], k[1] - k[0]) for k in kernels]
