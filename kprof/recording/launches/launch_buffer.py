"""The buffer that one kernel launch records into, and what sizes a launch can have.

Does not import numpy, because workloads that record nothing import it, too.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from kprof.errors import RecorderError
from kprof.recording.launches.whole import whole

# NO_CHUNK and LAUNCH_BUFFER of kprof.abi, which needs numpy; a test compares them.
NO_CHUNK: Final = 0xFFFF_FFFF
# Of Word of kprof.rank_memory, likewise.
FIRST_RESERVED: Final = 5
NUM_WANTED: Final = 6
NUM_RESERVING: Final = 9
_PACKED: Final = struct.Struct("<QIIIIIIII")
# The largest number of blocks, threads or tracks of a launch: Natural of kprof.capture.manifest.
MAX_SIZE: Final = (1 << 31) - 1


class LaunchBuffer(NamedTuple):
    """The buffer of one kernel launch. With arena 0 nothing is recorded.

    Pass `arena` and `launch` to C++ for `kprof::make_buffer(arena, launch)`, or everything as
    `packed()`.
    """

    arena: int
    launch: int
    first_chunk: int = NO_CHUNK
    tracks_per_block: int = 0
    num_reserved: int = 0
    chunks_per_cursor: int = 0
    num_cursors: int = 0
    options: int = 0
    first_block: int = 0

    def packed(self) -> bytes:
        """The bytes of kprof::LaunchBuffer."""
        return _PACKED.pack(*self)


# Takes half the time of LaunchBuffer(...), which has keywords and defaults.
new_tuple: Final = tuple.__new__
NULL_BUFFER: Final = LaunchBuffer(0, 0)


def sizes_of(
    kernel: str, num_blocks: int, threads_per_block: int, tracks_per_block: int
) -> tuple[int, int, int]:
    """The sizes of a launch as Python's integers, which numpy's are not; raises RecorderError for
    what is no size."""
    are_plain = type(num_blocks) is type(threads_per_block) is type(tracks_per_block) is int
    # One that is negative or too large makes all of them so.
    if are_plain and 0 <= (num_blocks | threads_per_block | tracks_per_block) <= MAX_SIZE:
        return num_blocks, threads_per_block, tracks_per_block
    return (
        _size(kernel, "num_blocks", num_blocks),
        _size(kernel, "threads_per_block", threads_per_block),
        _size(kernel, "tracks_per_block", tracks_per_block),
    )


def _size(kernel: str, name: str, given: int) -> int:
    size = whole(given)
    if size is None or not 0 <= size <= MAX_SIZE:
        raise RecorderError(
            f"launch of {kernel!r} with {name}={given!r}: give a whole number, 0 to {MAX_SIZE}"
        )
    return size
