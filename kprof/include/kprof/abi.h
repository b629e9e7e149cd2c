// Generated from kprof/abi.py by `python -m kprof.abi`. Do not edit.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace kprof {

constexpr uint32_t kAbiVersion = 0x6u;
constexpr uint64_t kMagic = 0x4e5241464f52504bull;
constexpr uint32_t kChunkBytes = 0x400u;
constexpr uint32_t kRecordBytes = 0x10u;
constexpr uint32_t kChunkHeaderBytes = 0x30u;
constexpr uint32_t kRecordsPerChunk = 0x3du;
constexpr uint32_t kControlBytes = 0x1000u;
constexpr uint32_t kMaxCursors = 0x20u;
constexpr uint32_t kSinksOffset = 0x1000u;
constexpr uint32_t kNumSinks = 0x8u;
constexpr uint32_t kChunksOffset = 0x3000u;
constexpr uint32_t kStartBits = 0x30u;
constexpr uint64_t kStartMask = 0xffffffffffffull;
constexpr uint32_t kMaxRegionId = 0xfffeu;
constexpr uint32_t kAnchorRegionId = 0xffffu;
constexpr uint32_t kDurationOpen = 0xffffffffu;
constexpr uint32_t kDurationSaturated = 0xfffffffeu;
constexpr uint32_t kBlockTrackWarp = 0xffffu;
constexpr uint32_t kChunkClaimed = 0x1u;
constexpr uint32_t kChunkCycles = 0x2u;
constexpr uint32_t kChunkNoNext = 0x4u;
constexpr uint32_t kChunkAbi = 0x30u;
constexpr uint32_t kChunkCursorsShift = 0x8u;
constexpr uint32_t kChunkCursorsMask = 0x3fu;
constexpr uint32_t kChunkRing = 0x4000u;
constexpr uint32_t kLooksAtSwitches = 0x1u;
constexpr uint32_t kOnlyReserved = 0x2u;
constexpr uint32_t kNoChunk = 0xffffffffu;
constexpr uint32_t kLeftOut = 0xfffffffeu;
constexpr uint32_t kStoresNothing = 0x8u;
constexpr uint32_t kNumDropCounters = 0xf4u;
constexpr uint32_t kLinesPerTrack = 0x4u;

struct alignas(16) Record {
  uint64_t start_and_region;
  uint32_t duration_ticks;
  uint32_t payload;
};
static_assert(sizeof(Record) == 16, "Record size");
static_assert(offsetof(Record, start_and_region) == 0, "Record.start_and_region");
static_assert(offsetof(Record, duration_ticks) == 8, "Record.duration_ticks");
static_assert(offsetof(Record, payload) == 12, "Record.payload");

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
static_assert(offsetof(ChunkHeader, flags) == 0, "ChunkHeader.flags");
static_assert(offsetof(ChunkHeader, warp) == 2, "ChunkHeader.warp");
static_assert(offsetof(ChunkHeader, block) == 4, "ChunkHeader.block");
static_assert(offsetof(ChunkHeader, launch) == 8, "ChunkHeader.launch");
static_assert(offsetof(ChunkHeader, chunk_idx) == 12, "ChunkHeader.chunk_idx");
static_assert(offsetof(ChunkHeader, anchor_realtime_ticks) == 16, "ChunkHeader.anchor_realtime_ticks");
static_assert(offsetof(ChunkHeader, anchor_cycles) == 24, "ChunkHeader.anchor_cycles");
static_assert(offsetof(ChunkHeader, num_dropped) == 32, "ChunkHeader.num_dropped");
static_assert(offsetof(ChunkHeader, hw_id) == 36, "ChunkHeader.hw_id");
static_assert(offsetof(ChunkHeader, previous_chunk_idx) == 40, "ChunkHeader.previous_chunk_idx");
static_assert(offsetof(ChunkHeader, chunks_per_cursor) == 44, "ChunkHeader.chunks_per_cursor");

struct alignas(16) SinkChunk {
  ChunkHeader header;
  uint32_t num_dropped_of_region[244];
};
static_assert(sizeof(SinkChunk) == 1024, "SinkChunk size");
static_assert(offsetof(SinkChunk, header) == 0, "SinkChunk.header");
static_assert(offsetof(SinkChunk, num_dropped_of_region) == 48, "SinkChunk.num_dropped_of_region");

struct alignas(64) Cursor {
  uint32_t next_chunk;
  uint32_t num_tracks_without_chunk;
  uint8_t pad0[56];
};
static_assert(sizeof(Cursor) == 64, "Cursor size");
static_assert(offsetof(Cursor, next_chunk) == 0, "Cursor.next_chunk");
static_assert(offsetof(Cursor, num_tracks_without_chunk) == 4, "Cursor.num_tracks_without_chunk");

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
static_assert(offsetof(Switches, is_off) == 0, "Switches.is_off");
static_assert(offsetof(Switches, first_block) == 4, "Switches.first_block");
static_assert(offsetof(Switches, num_blocks) == 8, "Switches.num_blocks");
static_assert(offsetof(Switches, warps) == 12, "Switches.warps");
static_assert(offsetof(Switches, sample_mask) == 16, "Switches.sample_mask");
static_assert(offsetof(Switches, arena_kib) == 20, "Switches.arena_kib");
static_assert(offsetof(Switches, reserved) == 24, "Switches.reserved");

struct alignas(16) StateLine {
  uint64_t start_and_region;
  uint32_t chunk;
  uint32_t payload;
};
static_assert(sizeof(StateLine) == 16, "StateLine size");
static_assert(offsetof(StateLine, start_and_region) == 0, "StateLine.start_and_region");
static_assert(offsetof(StateLine, chunk) == 8, "StateLine.chunk");
static_assert(offsetof(StateLine, payload) == 12, "StateLine.payload");

struct alignas(16) WaitLine {
  uint64_t start_ticks;
  uint32_t region;
  uint32_t payload;
  uint32_t launch;
  uint32_t block;
  uint32_t warp;
  uint32_t held;
  uint32_t wanted;
  uint32_t reserved[3];
};
static_assert(sizeof(WaitLine) == 48, "WaitLine size");
static_assert(offsetof(WaitLine, start_ticks) == 0, "WaitLine.start_ticks");
static_assert(offsetof(WaitLine, region) == 8, "WaitLine.region");
static_assert(offsetof(WaitLine, payload) == 12, "WaitLine.payload");
static_assert(offsetof(WaitLine, launch) == 16, "WaitLine.launch");
static_assert(offsetof(WaitLine, block) == 20, "WaitLine.block");
static_assert(offsetof(WaitLine, warp) == 24, "WaitLine.warp");
static_assert(offsetof(WaitLine, held) == 28, "WaitLine.held");
static_assert(offsetof(WaitLine, wanted) == 32, "WaitLine.wanted");
static_assert(offsetof(WaitLine, reserved) == 36, "WaitLine.reserved");

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
  uint8_t pad1[40];
  Switches switches;
  uint8_t pad2[1888];
  Cursor cursors[32];
};
static_assert(sizeof(ControlBlock) == 4096, "ControlBlock size");
static_assert(offsetof(ControlBlock, magic) == 0, "ControlBlock.magic");
static_assert(offsetof(ControlBlock, abi_version) == 8, "ControlBlock.abi_version");
static_assert(offsetof(ControlBlock, reserved) == 12, "ControlBlock.reserved");
static_assert(offsetof(ControlBlock, num_chunks) == 16, "ControlBlock.num_chunks");
static_assert(offsetof(ControlBlock, chunks_per_cursor) == 20, "ControlBlock.chunks_per_cursor");
static_assert(offsetof(ControlBlock, full_limit) == 24, "ControlBlock.full_limit");
static_assert(offsetof(ControlBlock, num_cursors) == 28, "ControlBlock.num_cursors");
static_assert(offsetof(ControlBlock, num_reserved) == 32, "ControlBlock.num_reserved");
static_assert(offsetof(ControlBlock, num_lines) == 64, "ControlBlock.num_lines");
static_assert(offsetof(ControlBlock, num_shared_lines) == 68, "ControlBlock.num_shared_lines");
static_assert(offsetof(ControlBlock, lines) == 72, "ControlBlock.lines");
static_assert(offsetof(ControlBlock, shared_lines) == 80, "ControlBlock.shared_lines");
static_assert(offsetof(ControlBlock, switches) == 128, "ControlBlock.switches");
static_assert(offsetof(ControlBlock, cursors) == 2048, "ControlBlock.cursors");

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
static_assert(offsetof(LaunchBuffer, arena) == 0, "LaunchBuffer.arena");
static_assert(offsetof(LaunchBuffer, launch) == 8, "LaunchBuffer.launch");
static_assert(offsetof(LaunchBuffer, first_chunk) == 12, "LaunchBuffer.first_chunk");
static_assert(offsetof(LaunchBuffer, tracks_per_block) == 16, "LaunchBuffer.tracks_per_block");
static_assert(offsetof(LaunchBuffer, num_reserved) == 20, "LaunchBuffer.num_reserved");
static_assert(offsetof(LaunchBuffer, chunks_per_cursor) == 24, "LaunchBuffer.chunks_per_cursor");
static_assert(offsetof(LaunchBuffer, num_cursors) == 28, "LaunchBuffer.num_cursors");
static_assert(offsetof(LaunchBuffer, options) == 32, "LaunchBuffer.options");
static_assert(offsetof(LaunchBuffer, first_block) == 36, "LaunchBuffer.first_block");

}  // namespace kprof
