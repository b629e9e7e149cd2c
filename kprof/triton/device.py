"""The arena's protocol in Triton, like kprof.h in C++, for one writer per program (or Gluon
partition).

All threads of a program must take the same branches here, because some contain barriers. So
branches never depend on values read from memory, which a thread could read before the writer has
written them. They depend on the kernel's arguments, on the cursor, and on atomics, whose results
Triton gives to all threads.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kprof.triton import platform
from kprof.triton.protocol import (
    BLOCK_TRACK_WARP,
    CHUNK_BYTES,
    CHUNK_FLAGS,
    CHUNK_NO_NEXT,
    CHUNK_SHIFT,
    CHUNKS_OFFSET,
    CURSOR_STRIDE_BYTES,
    CURSORS_FIELD,
    CURSORS_OFFSET,
    CURSORS_SHIFT,
    DROPS_OFFSET,
    DURATION_SATURATED,
    FIRST_BLOCK_SHIFT,
    FULL_LIMIT_OFFSET,
    FULL_MASK,
    FULL_TO_NOWHERE,
    KIB_SHIFT,
    LAST_DROP_COUNTER,
    LEFT_OUT,
    LOOKS_AT_SWITCHES,
    LOW_WORD,
    NOT_THE_WRITER,
    NOWHERE,
    NUM_DROPPED_OFFSET,
    NUM_SINKS,
    ONLY_RESERVED,
    OPTIONS_SHIFT,
    RECORD_BYTES,
    SINKS_OFFSET,
    START_MASK,
    STORES_NOTHING,
    SWITCHES_OFFSET,
    TRACKS_WITHOUT_CHUNK_OFFSET,
    high_of,
    joined,
    low_of,
)


@triton.jit
def counter_at(address: tl.tensor) -> tl.tensor:
    """A pointer to a 32-bit counter."""
    return address.to(tl.pointer_type(tl.int32))


@triton.jit
def program_number() -> tl.tensor:
    """The index of this program in the grid."""
    row = tl.program_id(1) + tl.num_programs(1) * tl.program_id(2)
    return tl.program_id(0) + tl.num_programs(0) * row


@triton.jit
def cursor_address(arena: tl.tensor, cursor_idx: tl.tensor) -> tl.tensor:
    """The address of a cursor of the arena."""
    return arena + CURSORS_OFFSET + cursor_idx.to(tl.int64) * CURSOR_STRIDE_BYTES


@triton.jit
def cursors_of(launch_word: tl.tensor) -> tl.tensor:
    """The number of cursors of the arena."""
    return high_of(launch_word) & CURSORS_FIELD


@triton.jit
def two_switches(arena: tl.tensor, offset: tl.constexpr) -> tl.tensor:
    """Reads two 32-bit switches. They do not change during a launch: all threads read the same."""
    return tl.load((arena + SWITCHES_OFFSET + offset).to(tl.pointer_type(tl.int64)))


@triton.jit
def obey_switches(
    arena: tl.tensor, block: tl.tensor, warp: tl.tensor
) -> tuple[tl.tensor, tl.tensor]:
    """Whether the switches exclude this track, see is_left_out in kprof.h, and the arena that
    launches with switches use now."""
    off_and_first = two_switches(arena, 0)
    count_and_warps = two_switches(arena, 8)
    sample_and_kib = two_switches(arena, 16)
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
def claim_from(
    arena: tl.tensor, chunks_per_cursor: tl.tensor, num_cursors: tl.tensor, cursor_idx: tl.tensor
) -> tl.tensor:
    """Takes a chunk from one cursor, or returns -1."""
    taken = tl.atomic_add(counter_at(cursor_address(arena, cursor_idx)), 1, sem="relaxed")
    return tl.where(taken < chunks_per_cursor, taken * num_cursors + cursor_idx, -1)


@triton.jit
def claim_chunk(
    arena: tl.tensor, chunks_per_cursor: tl.tensor, num_cursors: tl.tensor, block: tl.tensor
) -> tl.tensor:
    """Takes a free chunk from this program's cursor, else from another one. -1 if the arena is
    full."""
    full_limit = counter_at(arena + FULL_LIMIT_OFFSET)
    chunk_idx = platform.number(-1)
    tries = platform.number(0)
    while (chunk_idx < 0) & (tries < num_cursors):
        cursor_idx = (block + tries) & (num_cursors - 1)
        chunk_idx = claim_from(arena, chunks_per_cursor, num_cursors, cursor_idx)
        tries += 1
        if chunk_idx < 0:
            # The arena remembers that it is full: later tracks give up after one cursor unless
            # their limit is higher.
            limit = tl.atomic_add(full_limit, 0, sem="relaxed")
            tries = tl.where(limit >= chunks_per_cursor, num_cursors, tries)
    if chunk_idx < 0:
        tl.store(full_limit, chunks_per_cursor)
    return chunk_idx


@triton.jit
def begin_chunk(
    arena: tl.tensor,
    chunk_idx: tl.tensor,
    block: tl.tensor,
    warp: tl.tensor,
    launch: tl.tensor,
    num_cursors: tl.tensor,
    chunks_per_cursor: tl.tensor,
    previous_chunk_idx: tl.tensor,
    bits: tl.tensor,
) -> tl.tensor:
    """Writes the header of a new chunk and returns its cursor: the slot before the first record.

    `bits` of the cursor say who writes, and whether anybody does.
    """
    flags = CHUNK_FLAGS | (num_cursors << CURSORS_SHIFT)
    chunk = arena + CHUNKS_OFFSET + (chunk_idx.to(tl.int64) << CHUNK_SHIFT)
    cursor = (chunk - RECORD_BYTES) | bits
    cursor = platform.store_record(
        cursor, joined(flags | (warp << 16), block), joined(launch, chunk_idx)
    )
    cursor = platform.store_record(cursor, platform.realtime_ticks(), platform.cycle_ticks())
    return platform.store_record(
        cursor, platform.hw_id().to(tl.int64) << 32, joined(previous_chunk_idx, chunks_per_cursor)
    )


@triton.jit
def sink_of(arena: tl.tensor, block: tl.tensor) -> tl.tensor:
    """The sink in which a program counts dropped events."""
    return arena + SINKS_OFFSET + (block & (NUM_SINKS - 1)).to(tl.int64) * CHUNK_BYTES


@triton.jit
def before_full(full: tl.tensor) -> tl.tensor:
    """The cursor of a track that got no further chunk: full again at the next event, which is
    dropped. Clears the lowest bit of a full one, so that only the low word changes."""
    return (full & ~RECORD_BYTES) | STORES_NOTHING


@triton.jit
def reserved_chunk(
    launch_word: tl.tensor,
    first_word: tl.tensor,
    reserved_word: tl.tensor,
    block: tl.tensor,
    place: tl.tensor,
) -> tl.tensor:
    """The chunk that the host reserved for a track, or -1."""
    tracks = high_of(first_word)
    first_block = high_of(launch_word) >> (OPTIONS_SHIFT + FIRST_BLOCK_SHIFT)
    offset = (block - first_block) * tracks + place
    has_one = (place < tracks) & (offset >= 0) & (offset < low_of(reserved_word))
    return tl.where(has_one, low_of(first_word) + offset, -1)


@triton.jit
def first_claim(
    arena: tl.tensor,
    launch_word: tl.tensor,
    chunks_per_cursor: tl.tensor,
    block: tl.tensor,
    warp: tl.tensor,
) -> tuple[tl.tensor, tl.tensor]:
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
            tl.atomic_add(counter_at(home + TRACKS_WITHOUT_CHUNK_OFFSET), 1, sem="relaxed")
    return chunk_idx, arena


@triton.jit
def open_track(
    arena_word: tl.tensor,
    launch_word: tl.tensor,
    first_word: tl.tensor,
    reserved_word: tl.tensor,
    place: tl.tensor,
    warp: tl.tensor,
    writer: tl.tensor,
) -> tuple[tl.tensor, tl.tensor]:
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
    cursor = begin_chunk(
        arena,
        chunk_idx,
        block,
        warp,
        low_of(launch_word),
        cursors_of(launch_word),
        chunks_per_cursor,
        platform.number(-1),
        bits,
    )
    return tl.where(chunk_idx < 0, without_chunk, cursor), arena


@triton.jit
def count_dropped(cursor: tl.tensor, arena: tl.tensor, region: tl.constexpr) -> None:
    """Counts a dropped event by region, and in the track's last chunk if it had one."""
    last = cursor & -CHUNK_BYTES
    chunk_idx = (last - arena - CHUNKS_OFFSET) >> CHUNK_SHIFT
    sink = last
    # Sinks lie before the first chunk.
    if chunk_idx >= 0:
        counter = counter_at(last + NUM_DROPPED_OFFSET)
        tl.store(counter, tl.load(counter) + 1)
        sink = sink_of(arena, program_number())
    tl.atomic_add(
        counter_at(sink + DROPS_OFFSET + 4 * min(region, LAST_DROP_COUNTER)), 1, sem="relaxed"
    )


@triton.jit
def mark_last(cursor: tl.tensor, launch_word: tl.tensor) -> None:
    """Marks a full chunk as the last one of its track."""
    flags = CHUNK_FLAGS | CHUNK_NO_NEXT | (cursors_of(launch_word) << CURSORS_SHIFT)
    pointer = (cursor & -CHUNK_BYTES).to(tl.pointer_type(tl.int16))
    tl.store(pointer, flags.to(tl.int16))


@triton.jit
def refill(
    cursor: tl.tensor,
    arena: tl.tensor,
    launch_word: tl.tensor,
    reserved_word: tl.tensor,
    warp: tl.tensor,
) -> tl.tensor:
    """Claims the track's next chunk and returns its cursor.

    If there is none, the next event is dropped.
    """
    block = program_number()
    num_cursors = cursors_of(launch_word)
    chunks_per_cursor = high_of(reserved_word)
    last = cursor & -CHUNK_BYTES
    chunk_idx = claim_chunk(arena, chunks_per_cursor, num_cursors, block)
    if chunk_idx >= 0:
        cursor = begin_chunk(
            arena,
            chunk_idx,
            block,
            warp,
            low_of(launch_word),
            num_cursors,
            chunks_per_cursor,
            ((last - arena - CHUNKS_OFFSET) >> CHUNK_SHIFT).to(tl.int32),
            cursor & NOT_THE_WRITER,
        )
    else:
        mark_last(cursor, launch_word)
        cursor = before_full(cursor)
    return cursor


@triton.jit
def handle_rare(
    cursor: tl.tensor,
    arena_word: tl.tensor,
    launch_word: tl.tensor,
    reserved_word: tl.tensor,
    warp: tl.tensor,
    region: tl.constexpr,
) -> tl.tensor:
    """Handles a full chunk (one event in 61) and dropped events. Returns the new cursor."""
    arena = arena_word & -2
    if (cursor & -CHUNK_BYTES) == 0:
        cursor ^= FULL_TO_NOWHERE
    elif (cursor & STORES_NOTHING) != 0:
        count_dropped(cursor, arena, region)
        cursor = before_full(cursor)
    else:
        cursor = refill(cursor, arena, launch_word, reserved_word, warp)
    return cursor


@triton.jit
def end_of_short(
    cursor: tl.tensor, arena_word: tl.tensor, launch_word: tl.tensor, region: tl.constexpr
) -> tl.tensor:
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
def stored(
    cursor: tl.tensor,
    begin: tl.tensor,
    end: tl.tensor,
    payload: tl.tensor,
    region_bits: tl.constexpr,
) -> tl.tensor:
    """Stores a record and returns its cursor.

    Both words are computed before the store, so that on AMD two stores become one.
    """
    elapsed = end - begin
    is_short = (elapsed >> 32) == 0
    low = tl.minimum(elapsed.to(tl.uint32), DURATION_SATURATED)
    duration = tl.where(is_short, low, DURATION_SATURATED)
    word0 = (begin & START_MASK) | region_bits
    return platform.store_record(cursor, word0, joined(duration, payload))


@triton.jit
def emit_short(
    cursor: tl.tensor,
    arena_word: tl.tensor,
    launch_word: tl.tensor,
    begin: tl.tensor,
    end: tl.tensor,
    payload: tl.tensor,
    region: tl.constexpr,
    region_bits: tl.constexpr,
) -> tl.tensor:
    """`emit` for a short track, which never takes another chunk."""
    cursor = stored(cursor, begin, end, payload, region_bits)
    if (cursor.to(tl.int32) & FULL_MASK) == FULL_MASK:
        cursor = end_of_short(cursor, arena_word, launch_word, region)
    return cursor


@triton.jit
def emit(
    cursor: tl.tensor,
    arena_word: tl.tensor,
    launch_word: tl.tensor,
    reserved_word: tl.tensor,
    warp: tl.tensor,
    begin: tl.tensor,
    end: tl.tensor,
    payload: tl.tensor,
    region: tl.constexpr,
    region_bits: tl.constexpr,
) -> tl.tensor:
    """Stores a record and returns the new cursor."""
    cursor = stored(cursor, begin, end, payload, region_bits)
    if (cursor.to(tl.int32) & FULL_MASK) == FULL_MASK:
        cursor = handle_rare(cursor, arena_word, launch_word, reserved_word, warp, region)
    return cursor


@triton.jit
def clamped(value: tl.tensor, mask: tl.constexpr) -> tl.tensor:
    """A payload field. Numbers that do not fit, also negative ones, become the largest value."""
    if value.dtype.primitive_bitwidth == 64:
        field = tl.minimum(value.to(tl.uint64), mask).to(tl.uint32)
    else:
        field = tl.minimum(value.to(tl.int32).to(tl.uint32), mask)
    return field


@triton.jit
def ticks_in_a_branch(arena_word: tl.tensor) -> tl.tensor:
    """The clock, read in a branch that is always taken."""
    ticks = arena_word
    if arena_word != 0:
        ticks = platform.realtime_ticks()
    return ticks
