// The layout of the symmetric heap, which peers write, and of the workspace, which only this rank uses.
#pragma once

#include "arguments.h"
#include "memory_layout.h"
#include "packets.h"

namespace all_reduce {

using memory_layout::Offset;

// Flags per source and block: one for data to sum, one for sums that come back.
constexpr uint32_t kNumRounds = 2;
constexpr uint32_t kVectorBytes = 16;

// The symmetric heap, the same on every rank. Everything exists twice, for even and odd epochs. How packets and bulk
// are divided depends on the variant and the size of its call.
struct HeapLayout {
  Offset flags;    // u32 [2][kNumRounds][W][kMaxBlocks]
  Offset packets;  // packets::Packet [2][...]; holds packets only, see packets.h
  Offset bulk;     // bytes [2][...]; what flags announce
  Offset end;

  explicit HeapLayout(const Shape& shape) {
    memory_layout::Cursor cursor;
    flags = cursor.take(2ull * kNumRounds * shape.world_size * kMaxBlocks * sizeof(uint32_t));
    packets = cursor.take(2ull * shape.packet_bytes);
    bulk = cursor.take(2ull * shape.bulk_bytes);
    end = cursor.end();
  }
};

struct WorkspaceLayout {
  Offset has_failed;  // u32, see signals.h
  Offset counter;     // u64, see launch_counter.h
  Offset turns;       // u32 [W]: the epoch in which the block of a source last left the lock
  Offset sums;        // f32: running sums of oneshot_serial and oneshot_lock, for the largest tensor of theirs
  Offset end;

  explicit WorkspaceLayout(const Shape& shape) {
    memory_layout::Cursor cursor;
    has_failed = cursor.take(sizeof(uint32_t));
    counter = cursor.take(sizeof(uint64_t));
    turns = cursor.take(shape.world_size * sizeof(uint32_t));
    sums = cursor.take(2ull * shape.bulk_bytes / shape.world_size + 2 * kVectorBytes);
    end = cursor.end();
  }
};

// How a variant divides its part of the heap.
enum class Division {
  kPerSource,       // the whole tensor from each rank: oneshot in packets; serial, lock and tree in bulk
  kPerSlice,        // a slice from each rank, and each rank's sums: twoshot_packets; twoshot in bulk
  kSumsAndResults,  // fp32 sums of the whole tensor and its results: ring, in bulk
};

// The most elements that one launch can handle, a multiple of a vector. Packets carry vectors, too.
inline uint64_t capacity(const Shape& shape, bool has_packets, Division division, uint64_t element_bytes) {
  static_assert(packets::kDataBytes == kVectorBytes && sizeof(packets::Packet) == kVectorBytes);
  const uint64_t num_ranks = shape.world_size;
  const uint64_t room = (has_packets ? shape.packet_bytes : shape.bulk_bytes) / kVectorBytes;
  const uint64_t num_vectors = division == Division::kPerSource  ? room / num_ranks
                               : division == Division::kPerSlice ? room / (2 * num_ranks) * num_ranks
                                                                 : room / (1 + sizeof(float) / element_bytes);
  return num_vectors * (kVectorBytes / element_bytes);
}

}  // namespace all_reduce
