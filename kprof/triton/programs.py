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
    KIB_SHIFT,
    LOOKS_AT_SWITCHES,
    NOT_THE_WRITER,
    NOWHERE,
    OPTIONS_SHIFT,
    RECORD_BYTES,
    RECORDS_PER_CHUNK,
    ROOM_SHIFT,
    ROOMS_OFFSET,
    START_MASK,
    STORES_NOTHING,
    TRACKS_WITHOUT_CHUNK_OFFSET,
    add_to,
    begin_chunk,
    count,
    count_in_sink,
    count_run,
    cursor_address,
    drop_counter,
    duration_of,
    first_claim,
    high_of,
    joined,
    low_of,
    program_number,
    sink_of,
)


@triton.jit
def begin_shared(
    arena: tensor,
    chunk_idx: tensor,
    block: tensor,
    launch_word: tensor,
    reserved_word: tensor,
    bits: tensor,
) -> tensor:
    """Begins a chunk that programs share: `begin_chunk` for the first of them."""
    warp, none = platform.number(BLOCK_TRACK_WARP), platform.number(-1)
    return begin_chunk(
        arena, chunk_idx, block, warp, launch_word, reserved_word, none, bits, CHUNK_OF_PROGRAMS
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
    cursor = begin_shared(arena, chunk_idx, block, launch_word, reserved_word, bits)
    if chunk_idx == -1:
        count_in_sink(sink_of(arena, block), region)
    return cursor


@triton.jit
def count_without_room(arena: tensor, block: tensor, region: constexpr) -> None:
    """Counts the programs of a chunk that has no room, by the first of them."""
    num_programs = tl.num_programs(0) * tl.num_programs(1) * tl.num_programs(2)
    num_here = tl.minimum(num_programs - block, RECORDS_PER_CHUNK)
    add_to(drop_counter(sink_of(arena, block), region), num_here)
    if block == 0:
        count(cursor_address(arena, block) + TRACKS_WITHOUT_CHUNK_OFFSET)


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
    has_place = offset < low_of(reserved_word)
    first = low_of(first_word)
    place = platform.number(1)
    if has_place & (((high_of(launch_word) >> OPTIONS_SHIFT) & LOOKS_AT_SWITCHES) != 0):
        address = arena + ROOMS_OFFSET + (high_of(first_word) << ROOM_SHIFT)
        room = tl.load(address.to(tl.pointer_type(tl.int64)))
        place = room.to(tl.int32)
        offset += first
        first = place - 1
        arena += (room >> 32) << KIB_SHIFT
    cursor = bits | NOWHERE
    if has_place & (place > 0):
        chunk_idx = first + offset
        if slot == 0:
            count_run(arena, chunk_idx, first)
            begin_shared(arena, chunk_idx, block, launch_word, reserved_word, bits)
        chunk = arena + CHUNKS_OFFSET + (chunk_idx.to(tl.int64) << CHUNK_SHIFT)
        cursor = (chunk + BEFORE_FIRST + slot * RECORD_BYTES) | bits
    elif place >= 0:
        cursor = claimed_slot(arena, launch_word, reserved_word, block, bits, region)
    elif (slot == 0) & (place == -1):
        count_without_room(arena, block, region)
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
