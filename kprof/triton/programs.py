"""Spans of whole programs: one record of 16 bytes each, in chunks that programs share.

Functions that kernels call, as in device.py; see "Whole programs" in kprof.abi.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language import constexpr, tensor

from kprof.triton import platform
from kprof.triton.device import (
    BEFORE_FIRST,
    BLOCK_TRACK_WARP,
    CHUNK_OF_PROGRAMS,
    CHUNK_SHIFT,
    CHUNKS_OFFSET,
    LOOKS_AT_SWITCHES,
    NOT_THE_WRITER,
    OPTIONS_SHIFT,
    RECORD_BYTES,
    RECORDS_PER_CHUNK,
    START_MASK,
    STORES_NOTHING,
    begin_chunk,
    count_in_sink,
    count_run,
    duration_of,
    first_claim,
    high_of,
    joined,
    low_of,
    program_number,
    sink_of,
)


@triton.jit
def claimed_slot(
    arena: tensor,
    launch_word: tensor,
    reserved_word: tensor,
    block: tensor,
    bits: tensor,
    region: constexpr,
) -> tensor:
    """The slot before the record of a program whose launch has no reserved chunks.

    In a launch that a graph captures the program claims a chunk. Otherwise its event is dropped.
    """
    chunk_idx = platform.number(-1)
    if ((high_of(launch_word) >> OPTIONS_SHIFT) & LOOKS_AT_SWITCHES) != 0:
        warp = platform.number(BLOCK_TRACK_WARP)
        per_cursor = high_of(reserved_word)
        chunk_idx, arena = first_claim(arena, launch_word, per_cursor, block, warp)
    bits |= tl.where(chunk_idx < 0, STORES_NOTHING, 0)
    cursor = begin_chunk(
        arena,
        chunk_idx,
        block,
        platform.number(BLOCK_TRACK_WARP),
        launch_word,
        reserved_word,
        platform.number(-1),
        bits,
        CHUNK_OF_PROGRAMS,
    )
    if chunk_idx == -1:
        count_in_sink(sink_of(arena, block), region)
    return cursor


@triton.jit
def whole_slot(
    arena_word: tensor,
    launch_word: tensor,
    first_word: tensor,
    reserved_word: tensor,
    region: constexpr,
) -> tensor:
    """The slot before the one record of this program, see "Whole programs" in kprof.abi."""
    arena = arena_word & -2
    block = program_number()
    bits = (platform.thread_id() != 0).to(tl.int64) * NOT_THE_WRITER
    offset = block // RECORDS_PER_CHUNK
    slot = block % RECORDS_PER_CHUNK
    if offset < low_of(reserved_word):
        chunk_idx = low_of(first_word) + offset
        if slot == 0:
            count_run(arena, chunk_idx, first_word)
            begin_chunk(
                arena,
                chunk_idx,
                block,
                platform.number(BLOCK_TRACK_WARP),
                launch_word,
                reserved_word,
                platform.number(-1),
                bits,
                CHUNK_OF_PROGRAMS,
            )
        chunk = arena + CHUNKS_OFFSET + (chunk_idx.to(tl.int64) << CHUNK_SHIFT)
        cursor = (chunk + BEFORE_FIRST + slot * RECORD_BYTES) | bits
    else:
        cursor = claimed_slot(arena, launch_word, reserved_word, block, bits, region)
    return cursor


@triton.jit
def record_whole(
    arena_word: tensor,
    launch_word: tensor,
    first_word: tensor,
    reserved_word: tensor,
    begin: tensor,
    end: tensor,
    region: constexpr,
    region_bits: constexpr,
) -> None:
    """Stores the record of a whole program, at its end: nothing of it delays the beginning."""
    cursor = whole_slot(arena_word, launch_word, first_word, reserved_word, region)
    word0 = (begin & START_MASK) | region_bits
    platform.store_record(cursor, word0, joined(duration_of(begin, end), platform.hw_id()))
