"""The memory that a rank shares with whoever watches it, and with whoever finds it dead.

    rank-00003.live              locked while the recorder of the rank is open:
        0        numbers of 64 bits, see `Live`
        4096     its slowest calls, where only those are kept (kprof.recording.retention.slowest)
        65536    Python stacks (kprof.hangs.stacks)
    rank-00003.waits             what a look for hangs needs:
        0        HANG_HEADER
        4096     RECENT x NUM_RECENT       launch n in row n % NUM_RECENT
        28672    abi.WAIT_LINE x NUM_LINES     kernels write these
    rank-00003.arena             what outlives the rank:
        0        LEDGER_HEADER
        64       ACCOUNT_BYTES for each arena: numbers of 32 bits, see `Word`
        4096     the arenas (see kprof.abi)
        `begin_of_rows`      LAUNCH x NUM_ROWS, as often as need be: launches until they are in
                 parts, number n in row n % NUM_ROWS of one of these

Only the rank writes. What it has stored is safe from SIGKILL at once. The number of a replay has an
empty row. kprof.capture.shared_memory says where the files are.
"""

from __future__ import annotations

import struct
from typing import Final

import numpy as np

from kprof.abi import WAIT_LINE

NUMBERS_BYTES: Final = 4096
# A thousand calls as text take 47 KB.
LIVE_BYTES: Final = 1 << 16


class Live:
    """The numbers of `rank-00003.live`.

    `LENGTHS` counts calls by length: a quarter of an octave each, the first up to 1 us. `WAITS` is
    the ns waited for each peer, in the events that were written.
    """

    LAUNCHES, CALLS, EVENTS, DROPPED = range(4)
    # 1 once the rank has said what it lost.
    TOLD = 4
    STEPS = 5
    # Launches after the recording stopped.
    UNRECORDED = 6
    # Of EVENTS, those that were removed again with their part.
    REMOVED = 7
    LENGTHS = slice(8, 136)
    WAITS = slice(256, 512)


# The number comes last: a row without it was not finished.
LAUNCH: Final = np.dtype(
    [
        ("kernel", "<u4"),
        ("table", "<u4"),
        ("ordinal", "<i8"),
        ("num_blocks", "<i8"),
        ("threads_per_block", "<i8"),
        ("number_plus_1", "<i8"),
    ]
)
_LAUNCH: Final = struct.Struct("<IIqqqq")
LAUNCH_BYTES: Final = _LAUNCH.size
NUM_ROWS: Final = 8192
ROWS_BYTES: Final = NUM_ROWS * LAUNCH_BYTES
pack_launch = _LAUNCH.pack_into

RECENT: Final = np.dtype(
    [("kernel", "<u4"), ("num_blocks", "<u4"), ("ordinal", "<i8"), ("number_plus_1", "<i8")]
)
_RECENT: Final = struct.Struct("<IIqq")
RECENT_BYTES: Final = _RECENT.size
NUM_RECENT: Final = 1024
pack_recent = _RECENT.pack_into

HANG_MAGIC: Final = int.from_bytes(b"KPROFWTS", "little")
# `returns_when_done`: all launches but the last have ended, because they are on the CPU target.
HANG_HEADER: Final = np.dtype(
    [
        ("magic", "<u8"),
        ("num_finished", "<u8"),
        ("returns_when_done", "<u8"),
        ("save_signal", "<u8"),
        ("pid", "<u8"),
        ("rank", "<u4"),
        ("world_size", "<u4"),
    ]
)
# More than warps that any GPU holds at once (8,448 on an H200, 9,728 on an MI300X), and one more.
NUM_LINES: Final = 16384
RECENT_OFFSET: Final = 4096
LINES_OFFSET: Final = RECENT_OFFSET + NUM_RECENT * RECENT_BYTES
HANG_BYTES: Final = LINES_OFFSET + NUM_LINES * WAIT_LINE.itemsize

LEDGER_MAGIC: Final = int.from_bytes(b"KPROFLED", "little")
LEDGER_HEADER: Final = np.dtype(
    [("magic", "<u8"), ("num_forgotten", "<u8"), ("begin_of_rows", "<u8")]
)
ACCOUNTS_OFFSET: Final = 64
ACCOUNT_BYTES: Final = 64
ARENAS_OFFSET: Final = 4096


class Word:
    """The numbers of an account: what the host knows of an arena.

    The turn counts the arenas in the order in which launches got them; 0 is an empty one. Those
    from LEAST_LIMIT to HAS_CLAIMING, and NUM_RESERVING, are fields of kprof.recording's Handed.
    """

    TURN, WRITTEN_TO, LEAST_LIMIT, LIMIT, STORED_LIMIT = range(5)
    FIRST_RESERVED, NUM_WANTED, HAS_CLAIMING, END_LAUNCH, NUM_RESERVING = range(5, 10)


# WRITTEN_TO, in place of the number of a part + 1: nobody wants these events.
DISCARDED: Final = 0xFFFF_FFFF
# The TURN of a door (see kprof.recording), which is always in use.
LAST_TURN: Final = 0xFFFF_FFFF

assert LAUNCH.itemsize == LAUNCH_BYTES
assert RECENT.itemsize == RECENT_BYTES
assert HANG_HEADER.itemsize <= RECENT_OFFSET
assert LINES_OFFSET % 4096 == 0
assert ROWS_BYTES % 4096 == 0
assert ACCOUNTS_OFFSET + 15 * ACCOUNT_BYTES <= ARENAS_OFFSET


def word_of(header: np.dtype, name: str) -> int:
    """The place of a field among the numbers of 64 bits of a header."""
    assert header.fields is not None
    return int(header.fields[name][1]) // 8
