// The layout of the symmetric heap, which peers write, and of the workspace, which only this rank uses.
#pragma once

#include "arguments.h"
#include "memory_layout.h"

namespace all_to_all {

using memory_layout::Cursor;
using memory_layout::Offset;

KPROF_DEVICE_HOST uint32_t experts_per_rank(const Shape& shape) { return shape.num_experts / shape.world_size; }
// The most experts of one token on one rank: a token's K experts are distinct.
KPROF_DEVICE_HOST uint32_t max_entries(const Shape& shape) {
  return shape.top_k < experts_per_rank(shape) ? shape.top_k : experts_per_rank(shape);
}
// The most rows that one rank can send to another.
KPROF_DEVICE_HOST uint32_t max_rows_per_pair(const Shape& shape) { return shape.max_tokens * max_entries(shape); }
KPROF_DEVICE_HOST uint32_t max_rows_per_expert(const Shape& shape) { return shape.world_size * shape.max_tokens; }
KPROF_DEVICE_HOST uint32_t max_flat_tokens(const Shape& shape) { return shape.max_tokens * shape.top_k; }
// Rows in our memory are 16-byte aligned for every D.
KPROF_DEVICE_HOST uint32_t row_stride(const Shape& shape) { return (shape.hidden + 7u) / 8u * 8u; }

// The origin of a row. In the heap `place` is the local expert, in the workspace the token's rank.
struct RowOrigin {
  uint32_t flat_token;
  uint32_t place;
};

// The symmetric heap, the same on every rank. Everything exists twice, for even and odd epochs.
struct HeapLayout {
  Offset counts;         // u64 [2][W]: epoch << 32 | rows that the source will send
  Offset rank_flags;     // u32 [2][W]: the source has sent back all its rows
  Offset row_flags;      // u32 [2][W][rows]
  Offset row_origins;    // RowOrigin [2][W][rows]
  Offset token_flags;    // u64 [2][W][M]: epoch << 32 | entries of the source's token
  Offset token_entries;  // RowOrigin [2][W][M][entries]
  Offset combine_flags;  // u32 [2][M * K]
  Offset rows;           // u16 [2][W][rows][stride]
  Offset combine_rows;   // u16 [2][M * K][stride]
  Offset end;

  explicit HeapLayout(const Shape& shape) {
    const uint64_t num_rows = 2ull * shape.world_size * max_rows_per_pair(shape);
    const uint64_t num_flat = 2ull * max_flat_tokens(shape);
    Cursor cursor;
    counts = cursor.take(2ull * shape.world_size * sizeof(uint64_t));
    rank_flags = cursor.take(2ull * shape.world_size * sizeof(uint32_t));
    row_flags = cursor.take(num_rows * sizeof(uint32_t));
    row_origins = cursor.take(num_rows * sizeof(RowOrigin));
    token_flags = cursor.take(2ull * shape.world_size * shape.max_tokens * sizeof(uint64_t));
    token_entries = cursor.take(num_rows * sizeof(RowOrigin));
    combine_flags = cursor.take(num_flat * sizeof(uint32_t));
    rows = cursor.take(num_rows * row_stride(shape) * sizeof(uint16_t));
    combine_rows = cursor.take(num_flat * row_stride(shape) * sizeof(uint16_t));
    end = cursor.end();
  }
};

struct WorkspaceLayout {
  Offset has_failed;      // u32, see signals.h
  Offset num_counted;     // u32: calls that were counted on the device
  Offset send_counts;     // u32 [W]: rows sent so far to each rank; zero between calls
  Offset expert_counts;   // u32 [2][E / W]: rows received for each local expert, by parity of the epoch
  Offset expert_origins;  // RowOrigin [E / W][W * M]
  Offset expert_places;   // u32 [E / W][W * M]: where in the heap's rows an expert's row lies, when it is not copied
  Offset expert_rows;     // u16 [E / W][W * M][stride]
  Offset end;

  explicit WorkspaceLayout(const Shape& shape) {
    const uint64_t num_rows = 1ull * experts_per_rank(shape) * max_rows_per_expert(shape);
    Cursor cursor;
    has_failed = cursor.take(sizeof(uint32_t));
    num_counted = cursor.take(sizeof(uint32_t));
    send_counts = cursor.take(shape.world_size * sizeof(uint32_t));
    expert_counts = cursor.take(2ull * experts_per_rank(shape) * sizeof(uint32_t));
    expert_origins = cursor.take(num_rows * sizeof(RowOrigin));
    expert_places = cursor.take(num_rows * sizeof(uint32_t));
    expert_rows = cursor.take(num_rows * row_stride(shape) * sizeof(uint16_t));
    end = cursor.end();
  }
};

}  // namespace all_to_all
