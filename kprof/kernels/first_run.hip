// What `kprof doctor --first-run` asks of a GPU: recording/first_run.py has the questions.
#include <kprof/platform.h>

using namespace kprof::platform;

namespace {

struct Stamp {
  uint64_t ticks;
  uint32_t hw_id;
  uint32_t has_met;  // all blocks, within the time
};

KPROF_DEVICE bool wait_until(const uint32_t* word, uint32_t value, uint64_t limit_ticks) {
  const uint64_t begin = realtime_ticks();
  while (load_system(word) < value) {
    if (realtime_ticks() - begin > limit_ticks) return false;
    pause();
  }
  return true;
}

// All blocks read the clock when the last one has arrived.
__global__ void stamp(Stamp* stamps, uint32_t* arrived, uint64_t limit_ticks) {
  if (thread_id() != 0) return;
  add_device(arrived, 1u);
  const bool has_met = wait_until(arrived, num_blocks(), limit_ticks);
  stamps[block_id()] = Stamp{realtime_ticks(), hw_id(), has_met ? 1u : 0u};
}

// Stays until the host has answered each of `num_rounds` flags. `words` are in memory of the host: ours, and 64 bytes
// behind it the host's. `mark` is in memory of the device.
__global__ void answer(uint32_t* words, uint32_t* mark, uint32_t num_rounds, uint64_t limit_ticks) {
  if (thread_id() != 0) return;
  store_system(mark, num_rounds);
  for (uint32_t round = 1; round <= num_rounds; ++round) {
    store_system(words, round);
    if (!wait_until(words + 16, round, limit_ticks)) return;
  }
  store_system(words, num_rounds + 1);
}

// `before`: what has been counted until then.
__global__ void count(uint32_t* word, uint32_t* before) {
  if (thread_id() == 0) *before = add_device(word, 1u);
}

constexpr uint32_t kThreads = 64;

}  // namespace

extern "C" uint32_t first_run_processors() { return static_cast<uint32_t>(num_processors()); }
extern "C" uint64_t first_run_ticks_per_second() { return realtime_ticks_per_second(); }
extern "C" uint32_t first_run_warp_width() { return static_cast<uint32_t>(host_warp_width()); }
extern "C" int first_run_stamp(void* stamps, void* arrived, uint32_t num_blocks, uint64_t limit_ticks, void* stream) {
  return KPROF_LAUNCH(stamp, static_cast<int>(num_blocks), kThreads, stream, 0, static_cast<Stamp*>(stamps),
                      static_cast<uint32_t*>(arrived), limit_ticks);
}
extern "C" int first_run_answer(void* words, void* mark, uint32_t num_rounds, uint64_t limit_ticks, void* stream) {
  return KPROF_LAUNCH(answer, 1, kThreads, stream, 0, static_cast<uint32_t*>(words), static_cast<uint32_t*>(mark),
                      num_rounds, limit_ticks);
}
extern "C" int first_run_count(void* word, void* before, void* stream) {
  return KPROF_LAUNCH(count, 1, kThreads, stream, 0, static_cast<uint32_t*>(word), static_cast<uint32_t*>(before));
}
extern "C" const char* kprof_error_text(int error) { return error_text(error); }
