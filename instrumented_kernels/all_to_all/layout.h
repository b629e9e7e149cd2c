// Where everything lies: the symmetric heap that peers write, and the workspace that only this rank touches.
#pragma once

#include <kprof/platform.h>

namespace all_to_all {

constexpr uint32_t kMaxRanks = 64;
constexpr uint64_t kAlignBytes = 256;

struct Shape {
  uint32_t num_experts;
  uint32_t top_k;
  uint32_t hidden;      // D, elements of a row
  uint32_t max_tokens;  // M, per rank
  uint32_t world_size;

  KPROF_DEVICE_HOST uint32_t experts_per_rank() const { return num_experts / world_size; }
  // Rows that one rank can send to another: a token's K experts are distinct.
  KPROF_DEVICE_HOST uint32_t max_rows_per_pair() const {
    return max_tokens * (top_k < experts_per_rank() ? top_k : experts_per_rank());
  }
  KPROF_DEVICE_HOST uint32_t max_rows_per_expert() const { return world_size * max_tokens; }
  KPROF_DEVICE_HOST uint32_t max_flat_tokens() const { return max_tokens * top_k; }
  // Rows in our own memory start 16-byte aligned whatever D is.
  KPROF_DEVICE_HOST uint32_t row_stride() const { return (hidden + 7u) / 8u * 8u; }
};

// Who a row belongs to. In the heap `place` is the local expert, in the workspace the rank that the token came from.
struct RowOrigin {
  uint32_t flat_token;
  uint32_t place;
};

KPROF_DEVICE_HOST uint64_t align_up(uint64_t bytes) { return (bytes + kAlignBytes - 1) / kAlignBytes * kAlignBytes; }

// Byte offsets in the heap; the same on every rank. Everything exists twice, for even and odd epochs.
struct HeapLayout {
  uint64_t counts;          // u64 [2][W]: epoch << 32 | rows that the source will send
  uint64_t row_flags;       // u32 [2][W][rows]
  uint64_t row_origins;     // RowOrigin [2][W][rows]
  uint64_t combine_flags;   // u32 [2][M * K]
  uint64_t rows;            // u16 [2][W][rows][stride]
  uint64_t combine_rows;    // u16 [2][M * K][stride]
  uint64_t size_bytes;

  KPROF_DEVICE_HOST explicit HeapLayout(const Shape& shape) {
    const uint64_t num_rows = 2ull * shape.world_size * shape.max_rows_per_pair();
    const uint64_t num_flat = 2ull * shape.max_flat_tokens();
    counts = 0;
    row_flags = align_up(counts + 2ull * shape.world_size * sizeof(uint64_t));
    row_origins = align_up(row_flags + num_rows * sizeof(uint32_t));
    combine_flags = align_up(row_origins + num_rows * sizeof(RowOrigin));
    rows = align_up(combine_flags + num_flat * sizeof(uint32_t));
    combine_rows = align_up(rows + num_rows * shape.row_stride() * sizeof(uint16_t));
    size_bytes = align_up(combine_rows + num_flat * shape.row_stride() * sizeof(uint16_t));
  }
};

struct WorkspaceLayout {
  uint64_t timeout;         // signals::Timeout
  uint64_t send_counts;     // u32 [W]: rows sent so far to each rank; zero between calls
  uint64_t expert_counts;   // u32 [E / W]: rows received for each local expert
  uint64_t expert_origins;  // RowOrigin [E / W][W * M]
  uint64_t expert_rows;     // u16 [E / W][W * M][stride]
  uint64_t size_bytes;

  KPROF_DEVICE_HOST explicit WorkspaceLayout(const Shape& shape) {
    const uint64_t num_rows = 1ull * shape.experts_per_rank() * shape.max_rows_per_expert();
    timeout = 0;
    send_counts = kAlignBytes;
    expert_counts = align_up(send_counts + shape.world_size * sizeof(uint32_t));
    expert_origins = align_up(expert_counts + shape.experts_per_rank() * sizeof(uint32_t));
    expert_rows = align_up(expert_origins + num_rows * sizeof(RowOrigin));
    size_bytes = align_up(expert_rows + num_rows * shape.row_stride() * sizeof(uint16_t));
  }
};

}  // namespace all_to_all
