// Blocks of one thread, each of which waits for a word of its own.
#include <kprof/kprof.h>

#define KPROF_REGIONS "regions.h"
#include <kprof/declare_regions.h>

using namespace kprof::platform;

__global__ void wait_for_words(const uint32_t* words, kprof::Buffer prof) {
  kprof::Track track = kprof::open_track(prof, kprof::per_warp);
  const uint32_t slot = block_id();
  kprof::WaitSpan span = kprof::profile_start(track);
  while (load_system(words + slot) == 0) {
    kprof::still_waiting(track, span, R_WAIT, kprof::payload<R_WAIT>(slot));
    pause();
  }
  kprof::profile_stop(track, span, R_WAIT, kprof::payload<R_WAIT>(slot));
}

extern "C" int run(const uint32_t* words, int num_blocks, const kprof::LaunchBuffer* buffer) {
  return KPROF_LAUNCH(wait_for_words, num_blocks, 1, nullptr, 0, words, kprof::make_buffer(*buffer));
}
