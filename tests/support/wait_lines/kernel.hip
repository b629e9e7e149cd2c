// Blocks of one thread, each of which waits until a word of its own holds kLetGo.
#include <kprof/kprof.h>

#define KPROF_REGIONS "regions.h"
#include <kprof/declare_regions.h>

using namespace kprof::platform;

constexpr uint32_t kLetGo = 2;
constexpr uint32_t kPollsUntilAllArrives = 500;

__global__ void wait_for_words(const uint32_t* words, kprof::Buffer prof) {
  kprof::Track track = kprof::open_track(prof, kprof::per_warp);
  const uint32_t slot = block_id();
  kprof::WaitSpan span = kprof::profile_start(track);
  uint32_t held;
  while ((held = load_system(words + slot)) < kLetGo) {
    kprof::still_waiting(track, span, R_WAIT, kprof::payload<R_WAIT>(slot), {held, kLetGo});
    pause();
  }
  kprof::profile_stop(track, span, R_WAIT, kprof::payload<R_WAIT>(slot));
}

// Long enough to have a line, and as long as `is_waiting()`.
template <typename IsWaiting>
KPROF_DEVICE void wait_late(kprof::Track& track, kprof::WaitSpan& span, uint32_t number, IsWaiting is_waiting) {
  while (realtime_ticks() - span.span.start_ticks < 2 * kprof::kLateTicks || is_waiting()) {
    kprof::still_waiting(track, span, R_WAIT, kprof::payload<R_WAIT>(number), {number, number});
    pause();
  }
}

// One wait after the other. The last one lasts until words[0] is set.
__global__ void wait_often(const uint32_t* words, uint32_t num_waits, kprof::Buffer prof) {
  kprof::Track track = kprof::open_track(prof, kprof::per_warp);
  for (uint32_t number = 1; number <= num_waits; ++number) {
    kprof::WaitSpan span = kprof::profile_start(track);
    wait_late(track, span, number, [&] { return number == num_waits && load_system(words) == 0; });
    kprof::profile_stop(track, span, R_WAIT, kprof::payload<R_WAIT>(number));
  }
}

// In every turn block 0 waits, and as soon as it has given back its line, the first, block 1 takes that. Block 1 writes
// the turn to words[2] when all has arrived, and waits for words[3].
__global__ void hand_over(uint32_t* words, uint32_t num_turns, kprof::Buffer prof) {
  kprof::Track track = kprof::open_track(prof, kprof::per_warp);
  const auto* arena = reinterpret_cast<const kprof::ControlBlock*>(prof.arena);
  const auto* claims = reinterpret_cast<const uint32_t*>(arena->line_claims);
  const uint32_t block = block_id();
  for (uint32_t turn = 1; turn <= num_turns; ++turn) {
    kprof::WaitSpan span = kprof::profile_start(track);
    if (block == 0) {
      wait_late(track, span, block, [&] {
        store_system(words, turn);
        return load_system(words + 1) < turn;
      });
    } else {
      while (load_system(words) < turn || realtime_ticks() - span.span.start_ticks < kprof::kLateTicks) pause();
      store_system(words + 1, turn);
      while (load_global(claims) != 0) pause();
      wait_late(track, span, block, [polls = 0u]() mutable { return ++polls < kPollsUntilAllArrives; });
      store_system(words + 2, turn);
      while (load_system(words + 3) < turn) pause();
    }
    kprof::profile_stop(track, span, R_WAIT, kprof::payload<R_WAIT>(block));
    while (load_system(words + 3) < turn) pause();
  }
}

extern "C" int run(const uint32_t* words, int num_blocks, const kprof::LaunchBuffer* buffer) {
  return KPROF_LAUNCH(wait_for_words, num_blocks, 1, nullptr, 0, words, kprof::make_buffer(*buffer));
}

extern "C" int run_often(const uint32_t* words, uint32_t num_waits, const kprof::LaunchBuffer* buffer) {
  return KPROF_LAUNCH(wait_often, 1, 1, nullptr, 0, words, num_waits, kprof::make_buffer(*buffer));
}

extern "C" int run_turns(uint32_t* words, uint32_t num_turns, const kprof::LaunchBuffer* buffer) {
  return KPROF_LAUNCH(hand_over, 2, 1, nullptr, 0, words, num_turns, kprof::make_buffer(*buffer));
}
