// Tiles of three steps each, whose regions are announced. One track stands in the second step of its second tile until
// it is let go.
#include <kprof/kprof.h>

#define KPROF_REGIONS "regions.h"
#include <kprof/declare_regions.h>

using namespace kprof::platform;

struct Arguments {
  uint64_t words;  // u32: has come to the place where it stands, may go on
  uint32_t block;
  uint32_t num_tiles;
  uint32_t is_per_block;
};

KPROF_DEVICE void stand(const Arguments& a) {
  auto* words = reinterpret_cast<uint32_t*>(a.words);
  // The host looks once it sees this: what was announced has arrived by then.
  order_system_stores();
  if (lane_id() == 0) store_system(words, 1u);
  while (load_system(words + 1) == 0) pause();
}

KPROF_DEVICE void run_tiles(const Arguments& a, kprof::Track& track, bool stands_here) {
  for (uint32_t tile = 0; tile < a.num_tiles; ++tile) {
    const kprof::Scope in_tile(track, R_TILE, kprof::payload<R_TILE>(tile));
    const kprof::Span load = kprof::profile_start(track);
    kprof::Span span = kprof::profile_lap(track, load, R_LOAD, kprof::payload<R_LOAD>(tile));
    for (uint32_t step = 0; step < 3; ++step) {
      kprof::announce(track, span, R_GEMM, kprof::payload<R_GEMM>(step));
      if (stands_here && tile == 1 && step == 1) stand(a);
      span = kprof::profile_lap(track, span, R_GEMM, kprof::payload<R_GEMM>(step));
    }
    const kprof::Span scale = kprof::profile_start(track, R_SCALE);
    kprof::profile_stop(track, scale, R_SCALE);
  }
}

__global__ void tiles(Arguments a, kprof::Buffer prof) {
  const bool stands_here = block_id() == a.block && warp_id() == 0;
  if (a.is_per_block != 0) {
    kprof::Track track = kprof::open_track(prof, kprof::per_block);
    run_tiles(a, track, stands_here);
  } else {
    kprof::Track track = kprof::open_track(prof, kprof::per_warp);
    run_tiles(a, track, stands_here);
  }
}

extern "C" int run_tiles_kernel(const Arguments* arguments, int num_blocks, int threads,
                                const kprof::LaunchBuffer* buffer) {
  return KPROF_LAUNCH(tiles, num_blocks, threads, nullptr, 0, *arguments, kprof::make_buffer(*buffer));
}
