"""The numbers of the arena's protocol as constants of Triton functions, and two in one word."""

from __future__ import annotations

import numpy as np
import triton
import triton.language as tl

from kprof import abi
from kprof.triton import platform
from kprof.triton.buffer import FIRST_BLOCK_SHIFT as _FIRST_BLOCK_SHIFT
from kprof.triton.buffer import OPTIONS_SHIFT as _OPTIONS_SHIFT


def _offset(struct: np.dtype, field: str) -> int:
    assert struct.fields is not None
    return int(struct.fields[field][1])


NOT_THE_WRITER = tl.constexpr(platform.NOT_THE_WRITER)
STORES_NOTHING = tl.constexpr(abi.STORES_NOTHING)
RECORD_BYTES = tl.constexpr(abi.RECORD_BYTES)
CHUNK_BYTES = tl.constexpr(abi.CHUNK_BYTES)
CHUNK_SHIFT = tl.constexpr(abi.CHUNK_BYTES.bit_length() - 1)
FULL_MASK = tl.constexpr((abi.CHUNK_BYTES - 1) & ~(abi.RECORD_BYTES - 1))
CHUNKS_OFFSET = tl.constexpr(abi.CHUNKS_OFFSET)
SINKS_OFFSET = tl.constexpr(abi.SINKS_OFFSET)
NUM_SINKS = tl.constexpr(abi.NUM_SINKS)
CURSORS_OFFSET = tl.constexpr(abi.CURSORS_OFFSET)
CURSOR_STRIDE_BYTES = tl.constexpr(abi.CURSOR_STRIDE_BYTES)
TRACKS_WITHOUT_CHUNK_OFFSET = tl.constexpr(_offset(abi.CURSOR, "num_tracks_without_chunk"))
FULL_LIMIT_OFFSET = tl.constexpr(_offset(abi.CONTROL, "full_limit"))
NUM_DROPPED_OFFSET = tl.constexpr(_offset(abi.CHUNK_HEADER, "num_dropped"))
DROPS_OFFSET = tl.constexpr(_offset(abi.SINK, "num_dropped_of_region"))
LAST_DROP_COUNTER = tl.constexpr(abi.NUM_DROP_COUNTERS - 1)
CHUNK_FLAGS = tl.constexpr(abi.CHUNK_CLAIMED | abi.CHUNK_ABI)
CHUNK_NO_NEXT = tl.constexpr(abi.CHUNK_NO_NEXT)
CURSORS_SHIFT = tl.constexpr(abi.CHUNK_CURSORS_SHIFT)
START_MASK = tl.constexpr(abi.START_MASK)
DURATION_SATURATED = tl.constexpr(abi.DURATION_SATURATED)
SWITCHES_OFFSET = tl.constexpr(abi.SWITCHES_OFFSET)
BLOCK_TRACK_WARP = tl.constexpr(abi.BLOCK_TRACK_WARP)
# The cursor of a track that records nothing: at address 0, before the first record.
NOWHERE = tl.constexpr((abi.CHUNK_HEADER_BYTES - abi.RECORD_BYTES) | abi.STORES_NOTHING)
# The bits in which NOWHERE and the cursor of a full chunk at address 0 differ.
FULL_TO_NOWHERE = tl.constexpr(
    (abi.CHUNK_BYTES - abi.RECORD_BYTES) ^ (abi.CHUNK_HEADER_BYTES - abi.RECORD_BYTES)
)
# In place of a chunk index: the track is excluded. Below 0, as that of a track that got none.
LEFT_OUT = tl.constexpr(-2)
OPTIONS_SHIFT = tl.constexpr(_OPTIONS_SHIFT)
FIRST_BLOCK_SHIFT = tl.constexpr(_FIRST_BLOCK_SHIFT)
LOOKS_AT_SWITCHES = tl.constexpr(abi.LOOKS_AT_SWITCHES)
ONLY_RESERVED = tl.constexpr(abi.ONLY_RESERVED)
CURSORS_FIELD = tl.constexpr((1 << _OPTIONS_SHIFT) - 1)
KIB_SHIFT = tl.constexpr(10)
LOW_WORD = tl.constexpr(0xFFFF_FFFF)
HIGH_FIELD = tl.constexpr((1 << 29) - 1)


@triton.jit
def low_of(word: tl.tensor) -> tl.tensor:
    """The low number in a word of a Buffer."""
    return (word >> 1).to(tl.int32)


@triton.jit
def high_of(word: tl.tensor) -> tl.tensor:
    """The high number in a word of a Buffer."""
    return (word >> 33).to(tl.int32) & HIGH_FIELD


@triton.jit
def joined(low: tl.tensor, high: tl.tensor) -> tl.tensor:
    """Two 32-bit numbers as a 64-bit one."""
    return (low.to(tl.int64) & LOW_WORD) | (high.to(tl.int64) << 32)
