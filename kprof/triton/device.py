"""The arena's protocol in Triton, like kprof.h in C++, for one writer per program (or Gluon
partition).

All threads of a program must take the same branches here, because some contain barriers. So
branches never depend on values read from memory, which a thread could read before the writer has
written them. They depend on the kernel's arguments, on the cursor, and on atomics, whose results
Triton gives to all threads.
"""

from __future__ import annotations

import numpy as np
import triton
import triton.language as tl
from triton.language import constexpr, tensor

from kprof import abi
from kprof.triton import platform
from kprof.triton.buffer import FIRST_BLOCK_SHIFT as _FIRST_BLOCK_SHIFT
from kprof.triton.buffer import OPTIONS_SHIFT as _OPTIONS_SHIFT


def offset_of(struct: np.dtype, field: str) -> int:
    """Where a field begins in a structure of the ABI, in bytes."""
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
TRACKS_WITHOUT_CHUNK_OFFSET = tl.constexpr(offset_of(abi.CURSOR, "num_tracks_without_chunk"))
RESERVED_RUNS_OFFSET = tl.constexpr(abi.CURSORS_OFFSET + offset_of(abi.CURSOR, "num_reserved_runs"))
FULL_LIMIT_OFFSET = tl.constexpr(offset_of(abi.CONTROL, "full_limit"))
NUM_DROPPED_OFFSET = tl.constexpr(offset_of(abi.CHUNK_HEADER, "num_dropped"))
DROPS_OFFSET = tl.constexpr(offset_of(abi.SINK, "num_dropped_of_region"))
LAST_DROP_COUNTER = tl.constexpr(abi.NUM_DROP_COUNTERS - 1)
SPENT_TURN = tl.constexpr(abi.SPENT_TURN)
CHUNK_FLAGS = tl.constexpr(abi.CHUNK_CLAIMED | abi.CHUNK_ABI)
CHUNK_OF_PROGRAMS = tl.constexpr(abi.CHUNK_OF_PROGRAMS)
RECORDS_PER_CHUNK = tl.constexpr(abi.RECORDS_PER_CHUNK)
CHUNK_NO_NEXT = tl.constexpr(abi.CHUNK_NO_NEXT)
CURSORS_SHIFT = tl.constexpr(abi.CHUNK_CURSORS_SHIFT)
START_MASK = tl.constexpr(abi.START_MASK)
DURATION_SATURATED = tl.constexpr(abi.DURATION_SATURATED)
ROOMS_OFFSET = tl.constexpr(abi.ROOMS_OFFSET)
ROOM_SHIFT = tl.constexpr(abi.ROOM.itemsize.bit_length() - 1)
SWITCHES_OFFSET = tl.constexpr(abi.SWITCHES_OFFSET)
BLOCK_TRACK_WARP = tl.constexpr(abi.BLOCK_TRACK_WARP)
BEFORE_FIRST = tl.constexpr(abi.CHUNK_HEADER_BYTES - abi.RECORD_BYTES)
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
def low_of(word: tensor) -> tensor:
    """The low number in a word of a Buffer."""
    return (word >> 1).to(tl.int32)


@triton.jit
def high_of(word: tensor) -> tensor:
    """The high number in a word of a Buffer."""
    return (word >> 33).to(tl.int32) & HIGH_FIELD


@triton.jit
def joined(low: tensor, high: tensor) -> tensor:
    """Two 32-bit numbers as a 64-bit one."""
    return (low.to(tl.int64) & LOW_WORD) | (high.to(tl.int64) << 32)


@triton.jit
def counter_at(address: tensor) -> tensor:
    """A pointer to a 32-bit counter."""
    return address.to(tl.pointer_type(tl.int32))


@triton.jit
def add_to(address: tensor, more: tensor) -> None:
    """Adds to a 64-bit counter."""
    tl.atomic_add(address.to(tl.pointer_type(tl.int64)), more.to(tl.int64), sem="relaxed")


@triton.jit
def count(address: tensor) -> None:
    """Adds one to a 64-bit counter."""
    add_to(address, platform.number(1))


@triton.jit
def program_number() -> tensor:
    """The index of this program in the grid."""
    row = tl.program_id(1) + tl.num_programs(1) * tl.program_id(2)
    return tl.program_id(0) + tl.num_programs(0) * row


@triton.jit
def cursor_address(arena: tensor, cursor_idx: tensor) -> tensor:
    """The address of a cursor of the arena."""
    return arena + CURSORS_OFFSET + cursor_idx.to(tl.int64) * CURSOR_STRIDE_BYTES


@triton.jit
def cursors_of(launch_word: tensor) -> tensor:
    """The number of cursors of the arena."""
    return high_of(launch_word) & CURSORS_FIELD


@triton.jit
def two_words(address: tensor) -> tensor:
    """Reads two 32-bit words of the host's."""
    return tl.load(address.to(tl.pointer_type(tl.int64)))


@triton.jit
def obey_switches(arena: tensor, block: tensor, warp: tensor) -> tuple[tensor, tensor]:
    """Whether the switches exclude this track, see is_left_out in kprof.h, and the arena that
    launches with switches use now. They do not change during a launch: all threads read the
    same."""
    off_and_first = two_words(arena + SWITCHES_OFFSET)
    count_and_warps = two_words(arena + (SWITCHES_OFFSET + 8))
    sample_and_kib = two_words(arena + (SWITCHES_OFFSET + 16))
    sample = sample_and_kib.to(tl.int32)
    from_first = block.to(tl.int64) - (off_and_first >> 32)
    count = count_and_warps & LOW_WORD
    is_block = (count == 0) | ((from_first >= 0) & (from_first < count))
    warps = (count_and_warps >> 32) & LOW_WORD
    is_of_block = warp == BLOCK_TRACK_WARP
    is_warp = (warps == 0) | is_of_block | (((warps >> (warp & 31)) & 1) != 0)
    track = (block * 33 + warp).to(tl.uint32)
    is_sampled = (((track * 0x9E3779B1) >> 16).to(tl.int32) & sample) == 0
    is_left_out = ((off_and_first & LOW_WORD) != 0) | (is_block & is_warp & is_sampled == 0)
    return is_left_out, arena + (((sample_and_kib >> 32) & LOW_WORD) << KIB_SHIFT)


@triton.jit
def claim_chunk(
    arena: tensor, chunks_per_cursor: tensor, num_cursors: tensor, block: tensor
) -> tensor:
    """Takes a free chunk from this program's cursor, else from another one. -1 if the arena is
    full."""
    full_limit = counter_at(arena + FULL_LIMIT_OFFSET)
    chunk_idx = platform.number(-1)
    tries = platform.number(0)
    while (chunk_idx < 0) & (tries < num_cursors):
        cursor_idx = (block + tries) & (num_cursors - 1)
        cursor = counter_at(cursor_address(arena, cursor_idx))
        taken = tl.atomic_add(cursor, 1, sem="relaxed")
        chunk_idx = tl.where(taken < chunks_per_cursor, taken * num_cursors + cursor_idx, -1)
        tries += 1
        if chunk_idx < 0:
            # It must never come round to 0, where it would hand out chunks again.
            if taken >= SPENT_TURN:
                tl.store(cursor, SPENT_TURN)
            # The arena remembers that it is full: later tracks give up after one cursor unless
            # their limit is higher.
            limit = tl.atomic_add(full_limit, 0, sem="relaxed")
            tries = tl.where(limit >= chunks_per_cursor, num_cursors, tries)
    if chunk_idx < 0:
        tl.store(full_limit, chunks_per_cursor)
    return chunk_idx


@triton.jit
def begin_chunk(
    arena: tensor,
    chunk_idx: tensor,
    block: tensor,
    warp: tensor,
    launch_word: tensor,
    reserved_word: tensor,
    previous_chunk_idx: tensor,
    bits: tensor,
    more_flags: constexpr = 0,
) -> tensor:
    """Writes the header of a new chunk and returns its cursor: the slot before the first record.

    `bits` of the cursor say who writes, and whether anybody does.
    """
    flags = CHUNK_FLAGS | more_flags | (cursors_of(launch_word) << CURSORS_SHIFT)
    cursor = (arena + CHUNKS_OFFSET + (chunk_idx.to(tl.int64) << CHUNK_SHIFT)) | bits
    ids = joined(low_of(launch_word), chunk_idx)
    cursor = platform.store_first(cursor, joined(flags | (warp << 16), block), ids)
    cursor = platform.store_header(cursor, platform.realtime_ticks(), platform.cycle_ticks())
    sizes = joined(previous_chunk_idx, high_of(reserved_word))
    return platform.store_header(cursor, platform.hw_id().to(tl.int64) << 32, sizes)


@triton.jit
def sink_of(arena: tensor, block: tensor) -> tensor:
    """The sink in which a program counts dropped events."""
    return arena + SINKS_OFFSET + (block & (NUM_SINKS - 1)).to(tl.int64) * CHUNK_BYTES


@triton.jit
def drop_counter(sink: tensor, region: constexpr) -> tensor:
    """The address at which a sink counts dropped events of a region."""
    return sink + DROPS_OFFSET + 8 * min(region, LAST_DROP_COUNTER)


@triton.jit
def count_in_sink(sink: tensor, region: constexpr) -> None:
    """Counts a dropped event by region."""
    count(drop_counter(sink, region))


@triton.jit
def before_full(full: tensor) -> tensor:
    """The cursor of a track that got no further chunk: full again at the next event, which is
    dropped. Clears the lowest bit of a full one, so that only the low word changes."""
    return (full & ~RECORD_BYTES) | STORES_NOTHING


@triton.jit
def reserved_chunk(
    launch_word: tensor, first_word: tensor, reserved_word: tensor, block: tensor, place: tensor
) -> tensor:
    """The chunk that the host reserved for a track, or -1."""
    tracks = high_of(first_word)
    first_block = high_of(launch_word) >> (OPTIONS_SHIFT + FIRST_BLOCK_SHIFT)
    offset = (block - first_block) * tracks + place
    has_one = (place < tracks) & (offset >= 0) & (offset < low_of(reserved_word))
    return tl.where(has_one, low_of(first_word) + offset, -1)


@triton.jit
def count_run(arena: tensor, chunk_idx: tensor, first: tensor) -> None:
    """Counts the runs of a launch, see count_run in kprof.h, by the track of its first reserved
    chunk (-1: there is none). A masked atomic that nobody waits for, and no branch."""
    is_first = (chunk_idx >= 0) & (chunk_idx == first)
    tl.atomic_add(counter_at(arena + RESERVED_RUNS_OFFSET), 1, mask=is_first, sem="relaxed")


@triton.jit
def first_claim(
    arena: tensor, launch_word: tensor, chunks_per_cursor: tensor, block: tensor, warp: tensor
) -> tuple[tensor, tensor]:
    """The first chunk of a track for which the host reserved none, and its arena.

    The chunk is -1 if the arena is full, LEFT_OUT if the track is excluded.
    """
    num_cursors = cursors_of(launch_word)
    options = high_of(launch_word) >> OPTIONS_SHIFT
    chunk_idx = platform.number(LEFT_OUT)
    nothing = (options & ONLY_RESERVED) != 0
    if (options & LOOKS_AT_SWITCHES) != 0:
        nothing, arena = obey_switches(arena, block, warp)
    if nothing == 0:
        chunk_idx = claim_chunk(arena, chunks_per_cursor, num_cursors, block)
        if chunk_idx < 0:
            home = cursor_address(arena, block & (num_cursors - 1))
            count(home + TRACKS_WITHOUT_CHUNK_OFFSET)
    return chunk_idx, arena


@triton.jit
def open_track(
    arena_word: tensor,
    launch_word: tensor,
    first_word: tensor,
    reserved_word: tensor,
    place: tensor,
    warp: tensor,
    writer: tensor,
) -> tuple[tensor, tensor]:
    """The cursor of a new track that thread `writer` writes, and its arena.

    `place` is its index among the program's tracks. One branch, which tracks with a reserved chunk
    do not take: a launch begins with a cold instruction cache.
    """
    arena = arena_word & -2
    block = program_number()
    chunks_per_cursor = high_of(reserved_word)
    bits = (platform.thread_id() != writer).to(tl.int64) * NOT_THE_WRITER
    chunk_idx = reserved_chunk(launch_word, first_word, reserved_word, block, place)
    without_chunk = bits
    if chunk_idx < 0:
        chunk_idx, arena = first_claim(arena, launch_word, chunks_per_cursor, block, warp)
        full = before_full(sink_of(arena, block) + FULL_MASK)
        without_chunk |= tl.where(chunk_idx == LEFT_OUT, NOWHERE, full)
    bits |= tl.where(chunk_idx < 0, STORES_NOTHING, 0)
    none = platform.number(-1)
    count_run(arena, chunk_idx, low_of(first_word))
    cursor = begin_chunk(arena, chunk_idx, block, warp, launch_word, reserved_word, none, bits)
    return tl.where(chunk_idx < 0, without_chunk, cursor), arena


@triton.jit
def count_dropped(cursor: tensor, arena: tensor, region: constexpr) -> None:
    """Counts a dropped event by region, and in the track's last chunk if it had one."""
    last = cursor & -CHUNK_BYTES
    chunk_idx = (last - arena - CHUNKS_OFFSET) >> CHUNK_SHIFT
    sink = last
    # Sinks lie before the first chunk.
    if chunk_idx >= 0:
        counter = counter_at(last + NUM_DROPPED_OFFSET)
        so_far = tl.load(counter)
        tl.store(counter, tl.where(so_far == -1, so_far, so_far + 1))
        sink = sink_of(arena, program_number())
    count_in_sink(sink, region)


@triton.jit
def mark_last(cursor: tensor, launch_word: tensor) -> None:
    """Marks a full chunk as the last one of its track."""
    flags = CHUNK_FLAGS | CHUNK_NO_NEXT | (cursors_of(launch_word) << CURSORS_SHIFT)
    pointer = (cursor & -CHUNK_BYTES).to(tl.pointer_type(tl.int16))
    tl.store(pointer, flags.to(tl.int16))


@triton.jit
def handle_rare(
    cursor: tensor,
    arena_word: tensor,
    launch_word: tensor,
    reserved_word: tensor,
    warp: tensor,
    region: constexpr,
) -> tensor:
    """Handles a full chunk (one event in 61) and dropped events. Returns the new cursor: of the
    next chunk, and if there is none, of a track that drops the next event."""
    arena = arena_word & -2
    if (cursor & -CHUNK_BYTES) == 0:
        cursor ^= FULL_TO_NOWHERE
    elif (cursor & STORES_NOTHING) != 0:
        count_dropped(cursor, arena, region)
        cursor = before_full(cursor)
    else:
        block = program_number()
        last = cursor & -CHUNK_BYTES
        chunk_idx = claim_chunk(arena, high_of(reserved_word), cursors_of(launch_word), block)
        if chunk_idx >= 0:
            previous = ((last - arena - CHUNKS_OFFSET) >> CHUNK_SHIFT).to(tl.int32)
            bits = cursor & NOT_THE_WRITER
            cursor = begin_chunk(
                arena, chunk_idx, block, warp, launch_word, reserved_word, previous, bits
            )
        else:
            mark_last(cursor, launch_word)
            cursor = before_full(cursor)
    return cursor


@triton.jit
def end_of_short(
    cursor: tensor, arena_word: tensor, launch_word: tensor, region: constexpr
) -> tensor:
    """Handles a short track's full chunk, and events that are dropped. Returns the new cursor.

    Tracks that are left out begin their chunk at address 0 again. Only the low word changes.
    """
    has_sink = (cursor & -CHUNK_BYTES) != 0
    if (cursor & STORES_NOTHING) == 0:
        mark_last(cursor, launch_word)
    elif has_sink:
        count_dropped(cursor, arena_word & -2, region)
    step_back = tl.where(has_sink, RECORD_BYTES, FULL_TO_NOWHERE)
    return (cursor ^ step_back.to(tl.int64)) | STORES_NOTHING


@triton.jit
def duration_of(begin: tensor, end: tensor) -> tensor:
    """Ticks between two readings of the clock, as records store them: saturated."""
    elapsed = end - begin
    is_short = (elapsed >> 32) == 0
    low = tl.minimum(elapsed.to(tl.uint32), DURATION_SATURATED)
    return tl.where(is_short, low, DURATION_SATURATED)


@triton.jit
def emit(
    cursor: tensor,
    arena_word: tensor,
    launch_word: tensor,
    reserved_word: tensor | None,
    warp: tensor | None,
    begin: tensor,
    end: tensor,
    payload: tensor,
    region: constexpr,
    region_bits: constexpr,
) -> tensor:
    """Stores a record and returns the new cursor. A short track, which has no `reserved_word`,
    never takes another chunk.

    Both words are computed before the store, so that on AMD two stores become one.
    """
    duration = duration_of(begin, end)
    word0 = (begin & START_MASK) | region_bits
    cursor = platform.store_record(cursor, word0, joined(duration, payload))
    if (cursor.to(tl.int32) & FULL_MASK) == FULL_MASK:
        if reserved_word is None:
            cursor = end_of_short(cursor, arena_word, launch_word, region)
        else:
            cursor = handle_rare(cursor, arena_word, launch_word, reserved_word, warp, region)
    return cursor


@triton.jit
def clamped(value: tensor, mask: constexpr) -> tensor:
    """A payload field. Numbers that do not fit, also negative ones, become the largest value."""
    if value.dtype.primitive_bitwidth == 64:
        field = tl.minimum(value.to(tl.uint64), mask).to(tl.uint32)
    else:
        field = tl.minimum(value.to(tl.int32).to(tl.uint32), mask)
    return field


@triton.jit
def ticks_in_a_branch(arena_word: tensor) -> tensor:
    """The clock, read in a branch that is always taken."""
    ticks = arena_word
    if arena_word != 0:
        ticks = platform.realtime_ticks()
    return ticks
