// Generated from kprof/abi.py by `python tests/support/abi_header.py`. Do not edit.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace kprof {

constexpr uint32_t kAbiVersion = 0x7u;
constexpr uint64_t kMagic = 0x4e5241464f52504bull;
constexpr uint32_t kChunkBytes = 0x400u;
constexpr uint32_t kRecordBytes = 0x10u;
constexpr uint32_t kChunkHeaderBytes = 0x30u;
constexpr uint32_t kRecordsPerChunk = 0x3du;
constexpr uint32_t kControlBytes = 0x1000u;
constexpr uint32_t kNumCursors = 0x20u;
constexpr uint32_t kCursorStrideBytes = 0x40u;
constexpr uint32_t kCursorsOffset = 0x800u;
constexpr uint32_t kSwitchesOffset = 0x80u;
constexpr uint32_t kDelaysOffset = 0xa0u;
constexpr uint32_t kNumDelayedBlocks = 0x2000u;
constexpr uint32_t kDelayMantissaBits = 0xbu;
constexpr uint32_t kDelayBits = 0x10u;
constexpr uint32_t kRoomsOffset = 0x4b0u;
constexpr uint32_t kNumRooms = 0x6au;
constexpr uint32_t kNumSinks = 0x8u;
constexpr uint32_t kSinksOffset = 0x1000u;
constexpr uint32_t kChunksOffset = 0x3000u;
constexpr uint32_t kStartBits = 0x30u;
constexpr uint32_t kMaxClockBits = 0x3eu;
constexpr uint64_t kStartMask = 0xffffffffffffull;
constexpr uint32_t kMaxRegionId = 0xfffeu;
constexpr uint32_t kAnchorRegionId = 0xffffu;
constexpr uint32_t kDurationOpen = 0xffffffffu;
constexpr uint32_t kDurationSaturated = 0xfffffffeu;
constexpr uint32_t kBlockTrackWarp = 0xffffu;
constexpr uint32_t kNoChunk = 0xffffffffu;
constexpr uint32_t kLeftOut = 0xfffffffeu;
constexpr uint32_t kStoresNothing = 0x8u;
constexpr uint32_t kNumDropCounters = 0x7au;
constexpr uint64_t kMaxDropped = 0x4000000000000ull;
constexpr uint32_t kSpentTurn = 0x40000000u;
constexpr uint32_t kMinChunksToReserve = 0x40u;
constexpr uint32_t kChunkClaimed = 0x1u;
constexpr uint32_t kChunkCycles = 0x2u;
constexpr uint32_t kChunkNoNext = 0x4u;
constexpr uint32_t kChunkAbiShift = 0x3u;
constexpr uint32_t kChunkAbiMask = 0x1fu;
constexpr uint32_t kChunkAbi = 0x38u;
constexpr uint32_t kChunkCursorsShift = 0x8u;
constexpr uint32_t kChunkCursorsMask = 0x3fu;
constexpr uint32_t kChunkRing = 0x4000u;
constexpr uint32_t kChunkOfPrograms = 0x8000u;
constexpr uint32_t kLooksAtSwitches = 0x1u;
constexpr uint32_t kOnlyReserved = 0x2u;
constexpr uint32_t kLinesPerTrack = 0x4u;
constexpr uint32_t kStateChunkBits = 0x18u;
constexpr uint32_t kStateTagShift = 0x5u;

struct alignas(16) Record {
  uint64_t start_and_region;
  uint32_t duration_ticks;
  uint32_t payload;
};
static_assert(sizeof(Record) == 16, "Record size");

struct alignas(16) ChunkHeader {
  uint16_t flags;
  uint16_t warp;
  uint32_t block;
  uint32_t launch;
  uint32_t chunk_idx;
  uint64_t anchor_realtime_ticks;
  uint64_t anchor_cycles;
  uint32_t num_dropped;
  uint32_t hw_id;
  uint32_t previous_chunk_idx;
  uint32_t chunks_per_cursor;
};
static_assert(sizeof(ChunkHeader) == 48, "ChunkHeader size");

struct alignas(16) SinkChunk {
  ChunkHeader header;
  uint64_t num_dropped_of_region[122];
};
static_assert(sizeof(SinkChunk) == 1024, "SinkChunk size");

struct alignas(64) Cursor {
  uint32_t next_chunk;
  uint32_t num_reserved_runs;
  uint64_t num_tracks_without_chunk;
  uint8_t pad0[48];
};
static_assert(sizeof(Cursor) == 64, "Cursor size");

struct alignas(16) Switches {
  uint32_t is_off;
  uint32_t first_block;
  uint32_t num_blocks;
  uint32_t warps;
  uint32_t sample_mask;
  uint32_t arena_kib;
  uint64_t reserved;
};
static_assert(sizeof(Switches) == 32, "Switches size");

struct alignas(16) Delays {
  uint32_t word;
  uint32_t every;
  uint32_t is_beyond_delayed;
  uint32_t reserved;
  uint32_t blocks[256];
};
static_assert(sizeof(Delays) == 1040, "Delays size");

struct alignas(8) Room {
  uint32_t place;
  uint32_t arena_kib;
};
static_assert(sizeof(Room) == 8, "Room size");

struct alignas(16) StateLine {
  uint64_t start_and_region;
  uint32_t chunk_and_tag;
  uint32_t payload;
};
static_assert(sizeof(StateLine) == 16, "StateLine size");

struct alignas(64) WaitLine {
  uint64_t start_ticks;
  uint32_t region;
  uint32_t payload;
  uint32_t launch;
  uint32_t block;
  uint32_t warp;
  uint32_t held;
  uint32_t wanted;
  uint32_t reserved[7];
};
static_assert(sizeof(WaitLine) == 64, "WaitLine size");

struct alignas(64) ControlBlock {
  uint64_t magic;
  uint32_t abi_version;
  uint32_t reserved;
  uint32_t num_chunks;
  uint32_t chunks_per_cursor;
  uint32_t full_limit;
  uint32_t num_cursors;
  uint32_t num_reserved;
  uint8_t pad0[28];
  uint32_t num_lines;
  uint32_t num_shared_lines;
  uint64_t lines;
  uint64_t shared_lines;
  uint64_t line_claims;
  uint8_t pad1[32];
  Switches switches;
  Delays delays;
  Room rooms[106];
  Cursor cursors[32];
};
static_assert(sizeof(ControlBlock) == 4096, "ControlBlock size");

struct alignas(8) LaunchBuffer {
  uint64_t arena;
  uint32_t launch;
  uint32_t first_chunk;
  uint32_t tracks_per_block;
  uint32_t num_reserved;
  uint32_t chunks_per_cursor;
  uint32_t num_cursors;
  uint32_t options;
  uint32_t first_block;
};
static_assert(sizeof(LaunchBuffer) == 40, "LaunchBuffer size");

}  // namespace kprof
