// Blocks of one thread. In wait_for_words each waits until a word of its own holds kLetGo. In watch_lines two open and
// close lines, and a third one looks at these as the host does, but between any two instructions of theirs.
#include <kprof/kprof.h>

#define KPROF_REGIONS "regions.h"
#include <kprof/declare_regions.h>

using namespace kprof::platform;

constexpr uint32_t kLetGo = 2;

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

constexpr uint32_t kNumWriters = 2;
constexpr uint32_t kNumWaits = 1000;
constexpr uint32_t kPausesInWait = 10;

// What the host asks of a line: see lines.py.
struct Look {
  uint64_t words[5];
};

struct Watched {
  uint32_t num_seen;
  uint32_t num_joined;  // with words of two waits
  uint32_t num_lost;    // not there any more before their end
  uint32_t num_done;    // writers
};

KPROF_DEVICE Look look_at(const kprof::WaitLine* line) {
  const auto* words = reinterpret_cast<const uint64_t*>(line);
  Look look;
  for (uint32_t i = 0; i < 5; ++i) look.words[i] = load_system(words + i);
  return look;
}

KPROF_DEVICE uint64_t both(uint32_t number) { return static_cast<uint64_t>(number) << 32 | number; }

// Every word of wait `number` is made of that number. Waits of both writers want the same lines.
KPROF_DEVICE void open_and_close(const kprof::ControlBlock* arena, Watched* watched) {
  for (uint32_t wait = 0; wait < kNumWaits; ++wait) {
    const uint32_t number = 1 + wait * kNumWriters + block_id();
    uint64_t* line =
        kprof::open_wait_line(arena, number, number, number, both(number), R_WAIT, number, {number, number});
    for (uint32_t i = 0; i < kPausesInWait; ++i) pause();
    if (load_system(line) != (static_cast<uint64_t>(number) << 32 | R_WAIT)) add_device(&watched->num_lost, 1u);
    kprof::close_wait_line(arena, line);
  }
  add_device(&watched->num_done, 1u);
}

// Counts open lines on which two looks agree, and those of them that no wait has written.
KPROF_DEVICE void watch(const kprof::WaitLine* line, Watched* watched) {
  const Look before = look_at(line);
  const Look now = look_at(line);
  bool is_same = static_cast<uint32_t>(now.words[1]) != 0;
  for (uint32_t i = 0; i < 5; ++i) is_same = is_same && before.words[i] == now.words[i];
  if (!is_same) return;
  const auto number = static_cast<uint32_t>(now.words[1] >> 32);
  const bool is_whole = now.words[0] == both(number) && now.words[2] == both(number) && now.words[3] == both(number) &&
                        now.words[4] == number;
  add_device(&watched->num_seen, 1u);
  if (!is_whole) add_device(&watched->num_joined, 1u);
}

__global__ void watch_lines(Watched* watched, kprof::Buffer prof) {
  const auto* arena = reinterpret_cast<const kprof::ControlBlock*>(prof.arena);
  if (block_id() < kNumWriters) return open_and_close(arena, watched);
  const auto* lines = reinterpret_cast<const kprof::WaitLine*>(arena->shared_lines);
  while (load_system(&watched->num_done) < kNumWriters)
    for (uint32_t i = 0; i + 1 < arena->num_shared_lines; ++i, pause()) watch(lines + i, watched);
}

extern "C" int run_watched(Watched* watched, int num_blocks, const kprof::LaunchBuffer* buffer) {
  return KPROF_LAUNCH(watch_lines, num_blocks, 1, nullptr, 0, watched, kprof::make_buffer(*buffer));
}

extern "C" int run(const uint32_t* words, int num_blocks, const kprof::LaunchBuffer* buffer) {
  return KPROF_LAUNCH(wait_for_words, num_blocks, 1, nullptr, 0, words, kprof::make_buffer(*buffer));
}
