"""The buffer that one kernel launch records into.

Does not import numpy, because workloads that record nothing import it, too.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

# NO_CHUNK and LAUNCH_BUFFER of kprof.abi, which needs numpy; a test compares them.
NO_CHUNK: Final = 0xFFFF_FFFF
_PACKED: Final = struct.Struct("<QIIIIIIII")


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


NULL_BUFFER: Final = LaunchBuffer(0, 0)
