// Every GPU writes to all its peers at once, rows of one warp each, as the all-to-all does; nothing is waited for. The
// rate is what the links give, and the limit of any all-to-all over them.
#include <kprof/kprof.h>

#include "grid.h"
#include "rows.h"
#include "shared_layouts.h"

struct LinkCopy {
  const uint16_t* source;
  char* heaps[shared_layouts::kMaxRanks];
  uint32_t rank;
  uint32_t world_size;
  uint32_t rows_per_peer;
  uint32_t halves_per_row;
};

__global__ void link_copy(LinkCopy copy) {
  const uint32_t num_peers = copy.world_size - 1;
  for (uint32_t i = grid::grid_warp(); i < num_peers * copy.rows_per_peer; i += grid::num_grid_warps()) {
    const uint32_t peer = (copy.rank + 1 + i % num_peers) % copy.world_size;
    const uint64_t row = copy.rank * copy.rows_per_peer + i / num_peers;
    rows::copy(reinterpret_cast<uint16_t*>(copy.heaps[peer]) + row * copy.halves_per_row,
               copy.source + static_cast<uint64_t>(i / num_peers) * copy.halves_per_row, copy.halves_per_row);
  }
}

extern "C" int launch_link_copy(const LinkCopy* copy, int num_blocks, int threads_per_block, void* stream) {
  return KPROF_LAUNCH(link_copy, num_blocks, threads_per_block, stream, 0, *copy);
}
