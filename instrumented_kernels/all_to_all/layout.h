// Where everything lies: the symmetric heap that peers write, and the workspace that only this rank touches.
#pragma once

#include "memory_layout.h"

namespace all_to_all {

using memory_layout::Cursor;
using memory_layout::kAlignBytes;
using memory_layout::Offset;

struct Shape {
  uint32_t num_experts;
  uint32_t top_k;
  uint32_t hidden;      // D, elements of a row
  uint32_t max_tokens;  // M, per rank
  uint32_t world_size;

  KPROF_DEVICE_HOST uint32_t experts_per_rank() const { return num_experts / world_size; }
  // Rows that one rank can send to another: a token's K experts are distinct.
  KPROF_DEVICE_HOST uint32_t max_rows_per_pair() const { return max_tokens * max_entries(); }
  // Experts of one token that live on one rank.
  KPROF_DEVICE_HOST uint32_t max_entries() const { return top_k < experts_per_rank() ? top_k : experts_per_rank(); }
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

// The symmetric heap; the same on every rank. Everything exists twice, for even and odd epochs.
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
    const uint64_t num_rows = 2ull * shape.world_size * shape.max_rows_per_pair();
    const uint64_t num_flat = 2ull * shape.max_flat_tokens();
    Cursor cursor;
    counts = cursor.take(2ull * shape.world_size * sizeof(uint64_t));
    rank_flags = cursor.take(2ull * shape.world_size * sizeof(uint32_t));
    row_flags = cursor.take(num_rows * sizeof(uint32_t));
    row_origins = cursor.take(num_rows * sizeof(RowOrigin));
    token_flags = cursor.take(2ull * shape.world_size * shape.max_tokens * sizeof(uint64_t));
    token_entries = cursor.take(num_rows * sizeof(RowOrigin));
    combine_flags = cursor.take(num_flat * sizeof(uint32_t));
    rows = cursor.take(num_rows * shape.row_stride() * sizeof(uint16_t));
    combine_rows = cursor.take(num_flat * shape.row_stride() * sizeof(uint16_t));
    end = cursor.end();
  }
};

struct WorkspaceLayout {
  Offset timeout;         // signals::Timeout; first, where team_memory.py reads it
  Offset send_counts;     // u32 [W]: rows sent so far to each rank; zero between calls
  Offset expert_counts;   // u32 [2][E / W]: rows received for each local expert, by parity of the epoch
  Offset expert_origins;  // RowOrigin [E / W][W * M]
  Offset expert_places;   // u32 [E / W][W * M]: where in the heap's rows an expert's row lies, when it is not copied
  Offset expert_rows;     // u16 [E / W][W * M][stride]
  Offset end;

  explicit WorkspaceLayout(const Shape& shape) {
    const uint64_t num_rows = 1ull * shape.experts_per_rank() * shape.max_rows_per_expert();
    Cursor cursor;
    timeout = cursor.take(kAlignBytes);
    send_counts = cursor.take(shape.world_size * sizeof(uint32_t));
    expert_counts = cursor.take(2ull * shape.experts_per_rank() * sizeof(uint32_t));
    expert_origins = cursor.take(num_rows * sizeof(RowOrigin));
    expert_places = cursor.take(num_rows * sizeof(uint32_t));
    expert_rows = cursor.take(num_rows * shape.row_stride() * sizeof(uint16_t));
    end = cursor.end();
  }
};

}  // namespace all_to_all
