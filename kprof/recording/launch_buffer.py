"""What one kernel launch is given to record into.

Needs no numpy: a workload that records nothing imports it, too.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

# kprof.abi's NO_CHUNK and LAUNCH_BUFFER again, without numpy; a test compares them.
NO_CHUNK: Final = 0xFFFF_FFFF
_PACKED: Final = struct.Struct("<QIIIIIIII")


class LaunchBuffer(NamedTuple):
    """What one kernel launch gets; an arena of 0 records nothing.

    Hand `arena` and `launch` to the C++ side for `kprof::make_buffer(arena, launch)`, or `packed()`
    as a whole.
    """

    arena: int
    launch: int
    first_chunk: int = NO_CHUNK
    tracks_per_block: int = 0
    num_reserved: int = 0
    chunks_per_cursor: int = 0
    num_cursors: int = 0
    options: int = 0
    first_line: int = 0

    def packed(self) -> bytes:
        """The bytes of kprof::LaunchBuffer."""
        return _PACKED.pack(*self)


NULL_BUFFER: Final = LaunchBuffer(0, 0)
