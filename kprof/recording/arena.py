"""The record arena in memory: allocated, prepared, read back and emptied. Its layout is in abi.py.

A device fills it; the host touches it only while no kernel that records is running.
"""

from __future__ import annotations

import numpy as np

from kprof import abi
from kprof.devices.memory import allocate
from kprof.recording.decode import ArenaState, read_control


class Arena:
    """One rank's arena of at most `size_bytes`; raises ArenaError when not even one chunk fits."""

    def __init__(self, size_bytes: int, device: str = "cpu") -> None:
        self.geometry = abi.ArenaGeometry.for_bytes(size_bytes)
        self._memory = allocate(self.geometry.size_bytes, device)
        self._num_reserved_wanted = 0
        self._reset_control()

    @property
    def address(self) -> int:
        """What kernels get."""
        return self._memory.address

    def reserve(self, num_chunks: int) -> int:
        """The first of `num_chunks` chunks for one launch, or NO_CHUNK when the reserved zone has no room for them."""
        first = self._num_reserved_wanted
        self._num_reserved_wanted += num_chunks
        if self._num_reserved_wanted > self.geometry.num_reserved:
            return abi.NO_CHUNK
        return self.geometry.first_reserved + first

    def state(self) -> ArenaState:
        """The arena's head alone: what is in use."""
        return read_control(self._memory.read(0, abi.CHUNKS_OFFSET), self._num_reserved_wanted)

    def read(self) -> tuple[ArenaState, np.ndarray]:
        """The control block, and the bytes of all chunks in use, in the order of `used_chunks`."""
        state = self.state()
        parts = [self._memory.read(*_byte_range(used)) for used in state.used_chunks]
        if len(parts) == 1:
            return state, parts[0]
        return state, np.concatenate(parts) if parts else np.zeros(0, dtype=np.uint8)

    def reset(self, state: ArenaState) -> None:
        """Make the arena as new: zero what was used and start the cursors over."""
        for used in state.used_chunks:
            self._memory.clear(*_byte_range(used))
        self._num_reserved_wanted = 0
        self._reset_control()

    def _reset_control(self) -> None:
        self._memory.write(0, abi.initial_control(self.geometry))


def _byte_range(chunks: tuple[int, int]) -> tuple[int, int]:
    begin, end = chunks
    return abi.CHUNKS_OFFSET + begin * abi.CHUNK_BYTES, abi.CHUNKS_OFFSET + end * abi.CHUNK_BYTES
