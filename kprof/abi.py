"""The layout of the record arena. Everything else, the C++ header included, is derived from this
file.

One arena per rank, in memory that the device writes and the host reads back:

    offset 0                4096           12288                     size_bytes
    | control block (4 KiB) | sink 0 .. 7 | chunk 0 | chunk 1 | ...   |     1024 bytes a chunk,
      cursors[32], 64 B apart               | header 48 B | record 0 .. record 60 |    1024-aligned

A record is 16 bytes, written with one vector store:

    63            48 47                                           0
    | region id (16) |            start, ticks (48)               |   word 0
    |        payload (32)        |       duration, ticks (32)     |   word 1

Worked example: region 3, start 1_000_000 ticks, duration 250 ticks, payload 0x0200_0011 is
`40 42 0f 00 00 00 03 00 | fa 00 00 00 11 00 00 02`.

A track (one writer: a warp or a block) claims a chunk with one atomic on a cursor, fills it with
plain stores, and claims the next chunk when it has stored the last record. Its only state is the
address of its last record: bits 4 to 9 are all set when the chunk is full, bit 3 (STORES_NOTHING)
is set when the arena has no chunk left. Dropped events are counted by region id in a sink, which
the block number selects (there are eight, because all tracks drop at the same time), and in the
header of the track's last chunk, which gets the flag CHUNK_NO_NEXT. Tracks that never got a chunk
are counted in their sink. These counters have 64 bits, but that in the header, which stays at its
largest value. Recorded + dropped = emitted, always.

The first reserved chunk of a launch counts how often a track was opened in it: where that is more
than one per launch, a buffer went to several runs, which wrote over each other's records.

A cursor counts claims that fail, too. Where it has come to SPENT_TURN, whoever claims puts it back
there: no claim ever gets a chunk for the second time.

A refill reads only the header of the full chunk, which has the limits of the cursors and, by the
chunk's index, the address of the arena. So no word is read by all tracks, although all refill at
about the same time.

Tracks claim from the bottom of the arena, the host reserves from its top:

    | chunk 0 of cursor 0, 1, .. | chunk 1 of cursor 0, .. | limit -> free <- floor | reserved |

Chunk k of cursor c is chunk k * num_cursors + c, so one number (chunks_per_cursor, the limit)
bounds all cursors. Every launch gets the current limit. Later launches may get a higher one, never
a lower one, and the floor never falls below the limit. So no chunk is handed out twice, whatever
launches still run, and nobody has to wait.

The chunk header says which clock its records use: the real-time clock, or the processor's cycle
counter (CHUNK_CYCLES). It always has a sample of both clocks at the same moment (the anchors).

Whole programs. Where each program (block) of a launch has one span, programs share chunks
(CHUNK_OF_PROGRAMS): the launch reserves one for every 61, and record r of a chunk is of program
`block` + r, whose payload is its hw_id. That is 17 bytes per program, without an atomic. The first
of the programs writes the header. Launches of a graph have such places in every replay, see Rooms;
without a room, each program claims a chunk with the same flag.

Graphs. A launch that is captured in a graph runs once per replay, always with the buffer of its
capture. It reserves nothing: every replay claims its chunks. A track whose claim fails gets no
later chunk either, because cursors only advance until the arena is emptied. So the k-th opening of
a track is the k-th replay, and order and time tell the chunks of a launch's replays apart
(kprof.recording.decoding.replays).

Rooms. Before a replay of a graph, if possible as soon as the previous one is launched, the host
reserves chunks for all whole programs of that replay, and says in a word of the control block where
they begin (ROOM, 8 bytes for each of NUM_ROOMS graphs): `place` is the first chunk + 1, in the
arena that lies `arena_kib` KiB further. Launch buffers have the word's number in
`tracks_per_block`, and in `first_chunk` how many chunks of the replay come before those of the
launch. The last node of the graph sets the word to 0: a replay that the host did not see claims
chunks, unless a place was reserved for the next one. Where the chunks do not fit, `place` is
NO_CHUNK: programs store nothing, and the first of every 61 counts them as dropped. Where recording
is off it is LEFT_OUT: nothing is counted. Rooms of later replays lie below those of earlier ones,
so the index of a chunk says which replay wrote it.

Switches. A launch with LOOKS_AT_SWITCHES reads 32 bytes of the control block before it opens a
track: whether to record, which blocks, warps and sample of tracks, and how many KiB further the
arena in use lies. All zeros mean: record everything, here. Captured launches read the switches, so
that recording can be switched between replays without a new capture. So do launches that were given
two numbers, and those of a filter that reservations cannot express. They do not change during a
launch, so kernels may read them through a cache that every launch begins with empty.

Other launches read nothing. Where a filter names blocks and the first warps of each, the host
reserves chunks for the tracks of these (block `first_block` has the first ones) and sets
ONLY_RESERVED: a track without a chunk of its own is left out, and reads no memory to know it.

Draining. A recorder that empties its arena while kernels run has several arenas of one geometry,
side by side, and uses them in turn: a launch gets the address of one. A captured launch gets that
of a head in front of them, whose switches name one (`arena_kib`). A chunk knows its arena, so
kernels need nothing else. Reserved for a ring:
CHUNK_RING, set where the cursor of a chunk went round; `anchor_realtime_ticks` then tells old
chunks from new ones.

Delays. A track of a kernel that was compiled with KPROF_DELAYS=1 (all of Triton's that run in
`kprof verify`) reads 16 bytes of the control block when it opens, and a bit for its block: which
region's spans last longer at their end (the upper half of `word`; 0: none), by how many ticks of
the real-time clock (the lower half: a mantissa of DELAY_MANTISSA_BITS, and above it a shift), in
every how many-th launch. Other kernels read none of that. `kprof verify` sets it.

Waits. Two tables of lines that say what tracks are doing now, in memory that the control block
names (address 0: none):

    `lines`          LINES_PER_TRACK x 16 bytes (STATE_LINE) for each track, device memory: spans of
                     regions that are announced when they begin. The n-th announced region of a
                     kernel has line n % LINES_PER_TRACK, so that spans of different regions nest.
                     `chunk_and_tag`: the address of the chunk in which the track then was, divided
                     by CHUNK_BYTES, STATE_CHUNK_BITS of it (the header of that chunk names the
                     track), and above them a tag of `start_and_region`. The two words of a line may
                     arrive in any order: they belong together if the tag fits (`state_tags`). A
                     span is open as long as the track has no record with the same
                     `start_and_region`. Where the host does not see records before a launch ends
                     (AMD), its end stores 0 there.
    `shared_lines`   64 bytes each (WAIT_LINE), host memory that outlives the process: waits that
                     already last long, and what their flag holds (`wanted` 0: not told). `region`
                     is written last, and is 0 where no such wait is open. A wait takes the first
                     free line from (block * (warps + 1) + place + 61 * launch) on, modulo
                     num_shared_lines, where `place` is 0 for the block's track and 1 + warp for a
                     warp's. `line_claims` has 4 bytes for each line, in device memory: not 0 as
                     long as a wait has it. The last line is nobody's: its `start_ticks` is not 0
                     if there was no line for a wait.

The arena must be zeroed before use: region id 0 is an empty slot.
Run `python tests/support/abi_header.py` to rewrite `include/kprof/abi.h`; a test compares the two.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from kprof.errors import ArenaError

ABI_VERSION: Final = 7
MAGIC: Final = int.from_bytes(b"KPROFARN", "little")

CHUNK_BYTES: Final = 1024
RECORD_BYTES: Final = 16
CHUNK_HEADER_BYTES: Final = 48
RECORDS_PER_CHUNK: Final = (CHUNK_BYTES - CHUNK_HEADER_BYTES) // RECORD_BYTES
CONTROL_BYTES: Final = 4096
NUM_CURSORS: Final = 32
CURSOR_STRIDE_BYTES: Final = 64
CURSORS_OFFSET: Final = 2048
SWITCHES_OFFSET: Final = 128
DELAYS_OFFSET: Final = 160
# How many blocks have a bit of their own; the others are all delayed, or none.
NUM_DELAYED_BLOCKS: Final = 8192
# The parts of a delay's word: ticks = mantissa << shift.
DELAY_MANTISSA_BITS: Final = 11
DELAY_BITS: Final = 16
ROOMS_OFFSET: Final = 1200
NUM_ROOMS: Final = 106
NUM_SINKS: Final = 8
SINKS_OFFSET: Final = CONTROL_BYTES
CHUNKS_OFFSET: Final = SINKS_OFFSET + NUM_SINKS * CHUNK_BYTES

START_BITS: Final = 48
# No clock has counted further: 146 years in ns.
MAX_CLOCK_BITS: Final = 62
START_MASK: Final = (1 << START_BITS) - 1
MAX_REGION_ID: Final = (1 << 16) - 2
# A record with this id is not an event: word 0 has the cycle counter, word 1 the real-time clock at
# the same moment.
ANCHOR_REGION_ID: Final = (1 << 16) - 1
DURATION_OPEN: Final = 0xFFFF_FFFF
DURATION_SATURATED: Final = 0xFFFF_FFFE
BLOCK_TRACK_WARP: Final = 0xFFFF
NO_CHUNK: Final = 0xFFFF_FFFF
# In place of a chunk index: the switches exclude the track.
LEFT_OUT: Final = NO_CHUNK - 1
STORES_NOTHING: Final = RECORD_BYTES // 2
# The last counter is shared by all higher region ids.
NUM_DROP_COUNTERS: Final = (CHUNK_BYTES - CHUNK_HEADER_BYTES) // 8
# No counter of what was dropped comes that far: a larger number is damage.
MAX_DROPPED: Final = 1 << 50
# Far above the limit of every cursor, and as far below 2^31 as claims could be under way at once.
SPENT_TURN: Final = 1 << 30
# Smaller arenas reserve nothing, because half of so few chunks is too few for either use.
MIN_CHUNKS_TO_RESERVE: Final = 2 * NUM_CURSORS

# Chunk header flags.
CHUNK_CLAIMED: Final = 1
CHUNK_CYCLES: Final = 2
CHUNK_NO_NEXT: Final = 4
# Bits 3 to 7: the ABI version of the kernel's headers (0: 2 or older). Bits 8 to 13: the number of
# cursors.
CHUNK_ABI_SHIFT: Final = 3
CHUNK_ABI_MASK: Final = 0x1F
CHUNK_ABI: Final = (ABI_VERSION & CHUNK_ABI_MASK) << CHUNK_ABI_SHIFT
CHUNK_CURSORS_SHIFT: Final = 8
CHUNK_CURSORS_MASK: Final = 0x3F
CHUNK_RING: Final = 1 << 14
CHUNK_OF_PROGRAMS: Final = 1 << 15

# Options of a launch.
LOOKS_AT_SWITCHES: Final = 1
ONLY_RESERVED: Final = 2

RECORD: Final = np.dtype(
    [("start_and_region", "<u8"), ("duration_ticks", "<u4"), ("payload", "<u4")]
)

CHUNK_HEADER: Final = np.dtype(
    [
        ("flags", "<u2"),
        ("warp", "<u2"),
        ("block", "<u4"),
        ("launch", "<u4"),
        ("chunk_idx", "<u4"),
        ("anchor_realtime_ticks", "<u8"),
        ("anchor_cycles", "<u8"),
        ("num_dropped", "<u4"),
        ("hw_id", "<u4"),
        ("previous_chunk_idx", "<u4"),
        ("chunks_per_cursor", "<u4"),
    ]
)

# Counts what was dropped. Sinks have negative chunk indices, so that the arena can be found from
# the index, as for chunks.
SINK: Final = np.dtype(
    [("header", CHUNK_HEADER), ("num_dropped_of_region", "<u8", (NUM_DROP_COUNTERS,))]
)

CURSOR: Final = np.dtype(
    [
        ("next_chunk", "<u4"),
        ("num_reserved_runs", "<u4"),
        ("num_tracks_without_chunk", "<u8"),
        ("pad0", "u1", (CURSOR_STRIDE_BYTES - 16,)),
    ]
)

# Read by launches with LOOKS_AT_SWITCHES, see above. A track is sampled if its hash has no bit of
# `sample_mask`.
SWITCHES: Final = np.dtype(
    [
        ("is_off", "<u4"),
        ("first_block", "<u4"),
        ("num_blocks", "<u4"),
        ("warps", "<u4"),
        ("sample_mask", "<u4"),
        ("arena_kib", "<u4"),
        ("reserved", "<u8"),
    ]
)

# Read by tracks that were compiled with KPROF_DELAYS, see above.
DELAYS: Final = np.dtype(
    [
        ("word", "<u4"),
        ("every", "<u4"),
        ("is_beyond_delayed", "<u4"),
        ("reserved", "<u4"),
        ("blocks", "<u4", (NUM_DELAYED_BLOCKS // 32,)),
    ]
)

# Where the next replay of a graph records whole programs, see above.
ROOM: Final = np.dtype([("place", "<u4"), ("arena_kib", "<u4")])

STATE_LINE: Final = np.dtype(
    [("start_and_region", "<u8"), ("chunk_and_tag", "<u4"), ("payload", "<u4")]
)
LINES_PER_TRACK: Final = 4
STATE_CHUNK_BITS: Final = 24
STATE_TAG_SHIFT: Final = 5

# A line of a cache, with names for the padding, too: numpy copies no other, and a rank's lines are
# compared as bytes.
WAIT_LINE: Final = np.dtype(
    [
        ("start_ticks", "<u8"),
        ("region", "<u4"),
        ("payload", "<u4"),
        ("launch", "<u4"),
        ("block", "<u4"),
        ("warp", "<u4"),
        ("held", "<u4"),
        ("wanted", "<u4"),
        ("reserved", "<u4", (7,)),
    ]
)

# `full_limit` is a limit at which no cursor had a chunk left: other tracks with that limit need not
# try. Bytes 36 to 63 stay 0: kernels that were compiled when lines had 32 bytes find none there.
CONTROL: Final = np.dtype(
    [
        ("magic", "<u8"),
        ("abi_version", "<u4"),
        ("reserved", "<u4"),
        ("num_chunks", "<u4"),
        ("chunks_per_cursor", "<u4"),
        ("full_limit", "<u4"),
        ("num_cursors", "<u4"),
        ("num_reserved", "<u4"),
        ("pad0", "u1", (28,)),
        ("num_lines", "<u4"),
        ("num_shared_lines", "<u4"),
        ("lines", "<u8"),
        ("shared_lines", "<u8"),
        ("line_claims", "<u8"),
        ("pad1", "u1", (SWITCHES_OFFSET - 96,)),
        ("switches", SWITCHES),
        ("delays", DELAYS),
        ("rooms", ROOM, (NUM_ROOMS,)),
        ("cursors", CURSOR, (NUM_CURSORS,)),
    ]
)

# What the host passes to a kernel launch. `first_chunk` is NO_CHUNK if nothing is reserved. With
# `num_cursors` 0, tracks read the limits from the control block. `options` is 0,
# LOOKS_AT_SWITCHES or ONLY_RESERVED. Track t of block b has the reserved chunk
# first_chunk + (b - first_block) * tracks_per_block + t. A launch with LOOKS_AT_SWITCHES and with
# reserved chunks has a room.
LAUNCH_BUFFER: Final = np.dtype(
    [
        ("arena", "<u8"),
        ("launch", "<u4"),
        ("first_chunk", "<u4"),
        ("tracks_per_block", "<u4"),
        ("num_reserved", "<u4"),
        ("chunks_per_cursor", "<u4"),
        ("num_cursors", "<u4"),
        ("options", "<u4"),
        ("first_block", "<u4"),
    ]
)

assert RECORD.itemsize == RECORD_BYTES
assert CHUNK_HEADER.itemsize == CHUNK_HEADER_BYTES
assert SINK.itemsize == CHUNK_BYTES
assert SWITCHES.itemsize == 32
assert SWITCHES_OFFSET + SWITCHES.itemsize == DELAYS_OFFSET
assert DELAYS_OFFSET + DELAYS.itemsize == ROOMS_OFFSET
assert WAIT_LINE.itemsize == 64
assert NUM_CURSORS <= CHUNK_CURSORS_MASK
assert CONTROL.itemsize == CONTROL_BYTES
assert LEFT_OUT // NUM_CURSORS < SPENT_TURN


@dataclass(frozen=True)
class ArenaGeometry:
    """The number of chunks of an arena, and how many of them are initially kept for
    reservations."""

    num_chunks: int
    num_cursors: int
    num_reserved: int = 0

    @property
    def chunks_per_cursor(self) -> int:
        """The number of chunks that each cursor may hand out initially."""
        return (self.num_chunks - self.num_reserved) // self.num_cursors

    @property
    def size_bytes(self) -> int:
        """Bytes of the whole arena."""
        return CHUNKS_OFFSET + self.num_chunks * CHUNK_BYTES

    @staticmethod
    def for_chunks(num_claimed: int, num_reserved: int = 0) -> ArenaGeometry:
        """The smallest geometry in which this many chunks can be claimed and reserved.

        Without reservations all chunks can be claimed, otherwise those that are not kept for
        reservations.
        """
        if num_reserved == 0 and num_claimed <= NUM_CURSORS:
            num_chunks = 1 << max(0, num_claimed - 1).bit_length()
        else:
            wanted = 2 * max(num_claimed, num_reserved) if num_reserved else num_claimed
            zone = 2 * NUM_CURSORS if num_reserved else NUM_CURSORS
            num_chunks = max(-(-wanted // zone) * zone, MIN_CHUNKS_TO_RESERVE)
        return ArenaGeometry.for_bytes(CHUNKS_OFFSET + num_chunks * CHUNK_BYTES)

    @staticmethod
    def for_bytes(size_bytes: int) -> ArenaGeometry:
        """The largest geometry within `size_bytes`.

        Raises ArenaError when not even one chunk fits.
        """
        num_chunks = (size_bytes - CHUNKS_OFFSET) // CHUNK_BYTES
        if num_chunks < 1:
            raise ArenaError(
                f"an arena of {size_bytes} bytes holds no chunk; "
                f"give at least {CHUNKS_OFFSET + CHUNK_BYTES} bytes"
            )
        if num_chunks >= LEFT_OUT:
            raise ArenaError(
                f"an arena of {size_bytes} bytes is too large: chunks are numbered in 32 bits; "
                f"give at most {LEFT_OUT * CHUNK_BYTES >> 40} TiB"
            )
        # A power of two, so that tracks find their cursor without a division.
        num_cursors = min(NUM_CURSORS, 1 << (num_chunks.bit_length() - 1))
        per_cursor = num_chunks // num_cursors
        num_reserved = num_cursors * (per_cursor // 2) if num_chunks >= MIN_CHUNKS_TO_RESERVE else 0
        return ArenaGeometry(num_cursors * per_cursor, num_cursors, num_reserved)


def state_tags(start_and_region: np.ndarray) -> np.ndarray:
    """The tags of state lines with these first words.

    Folded, because the clocks of GPUs leave the lowest bits of a start at 0.
    """
    start, region = start_and_region & START_MASK, start_and_region >> START_BITS
    return (start ^ start >> STATE_TAG_SHIFT ^ region) & 0xFF


class Lines(NamedTuple):
    """Addresses of the two tables of lines, how many lines and tracks they are for (0: none), and
    the address of the claims on the first."""

    shared: int = 0
    num_shared: int = 0
    announced: int = 0
    num_announced: int = 0
    claims: int = 0


NO_LINES: Final = Lines()


def initial_control(
    geometry: ArenaGeometry,
    limit: int | None = None,
    switches: np.void | np.ndarray | None = None,
    lines: Lines = NO_LINES,
) -> np.ndarray:
    """The bytes at the start of an empty arena: the control block and the headers of the sinks.

    `limit` is how many chunks each cursor may hand out, if that differs from the geometry. Without
    `switches` everything is recorded. `lines` are where tracks say what they do.
    """
    head = np.zeros(CHUNKS_OFFSET, dtype=np.uint8)
    control = head[:CONTROL_BYTES].view(CONTROL)[0]
    control["magic"] = MAGIC
    control["abi_version"] = ABI_VERSION
    control["num_chunks"] = geometry.num_chunks
    control["num_cursors"] = geometry.num_cursors
    control["chunks_per_cursor"] = geometry.chunks_per_cursor if limit is None else limit
    control["num_reserved"] = geometry.num_reserved
    control["shared_lines"], control["num_shared_lines"] = lines.shared, lines.num_shared
    control["lines"], control["num_lines"] = lines.announced, lines.num_announced
    control["line_claims"] = lines.claims
    if switches is not None:
        control["switches"] = switches
    sinks = head[SINKS_OFFSET:].view(SINK)
    sinks["header"]["chunk_idx"] = np.arange(-NUM_SINKS, 0).astype(np.uint32)
    return head
