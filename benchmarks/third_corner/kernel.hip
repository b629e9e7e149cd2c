// Two devices and their host, compared over words in memory of the host: who saw what, on whose clock.
#include <kprof/kprof.h>
#include <time.h>

using namespace kprof::platform;

namespace {

constexpr uint32_t kPollsBeforePause = 1u << 10;

uint64_t host_ns() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1000000000u + static_cast<uint64_t>(now.tv_nsec);
}

// When the last read that missed was issued, and when the first that hit had returned; 0 for what did not happen.
struct Seen {
  uint64_t missed_ticks, hit_ticks;
};

__device__ Seen wait_for(const uint32_t* word, uint32_t number, uint64_t timeout_ticks) {
  uint64_t missed = 0;
  const uint64_t begin = realtime_ticks();
  for (uint32_t polls = 0;; ++polls) {
    const uint64_t issued = realtime_ticks();
    if (load_system(word) >= number) return {missed, realtime_ticks()};
    missed = issued;
    if (issued - begin > timeout_ticks) return {0, 0};
    if (polls > kPollsBeforePause) pause();
  }
}

// Common view: the host stores 1, 2, 3 ... into `word`, and every device notes around which reads it came.
__global__ void watch(const uint32_t* word, Seen* seen, uint32_t count, uint64_t timeout_ticks) {
  for (uint32_t i = 0; i < count; ++i) {
    seen[i] = wait_for(word, i + 1, timeout_ticks);
    if (seen[i].hit_ticks == 0) return;
  }
}

// Two ways: the host stores into `down`, the device answers in `up`. seen: {seen, sent}.
__global__ void answer(const uint32_t* down, uint32_t* up, Seen* readings, uint32_t count, uint64_t timeout_ticks) {
  for (uint32_t i = 0; i < count; ++i) {
    const uint64_t hit = wait_for(down, i + 1, timeout_ticks).hit_ticks;
    if (hit == 0) return;
    readings[i] = {hit, realtime_ticks()};
    store_system(up, i + 1);
  }
}

}  // namespace

extern "C" int third_corner_watch(const void* word, void* seen, uint32_t count, uint64_t timeout_ticks, void* stream) {
  return KPROF_LAUNCH(watch, 1, 1, stream, 0, static_cast<const uint32_t*>(word), static_cast<Seen*>(seen), count,
                      timeout_ticks);
}

extern "C" int third_corner_answer(const void* down, void* up, void* readings, uint32_t count, uint64_t timeout_ticks,
                                   void* stream) {
  return KPROF_LAUNCH(answer, 1, 1, stream, 0, static_cast<const uint32_t*>(down), static_cast<uint32_t*>(up),
                      static_cast<Seen*>(readings), count, timeout_ticks);
}

// The host's side of common view: a store about every `pause_ns`, never at the same point of a poll.
extern "C" void third_corner_store(uint32_t* word, uint32_t count, uint64_t pause_ns) {
  for (uint32_t i = 1; i <= count; ++i) {
    const uint64_t begin = host_ns(), pause = pause_ns / 2 + (i * 2654435761u) % (pause_ns + 1);
    while (host_ns() - begin < pause) {
    }
    __atomic_store_n(word, i, __ATOMIC_RELEASE);
  }
}

// The host's side of two ways. readings: [count] of {sent, seen}; 1 if no answer came.
extern "C" int third_corner_ask(uint32_t* down, const uint32_t* up, uint64_t* readings, uint32_t count,
                                uint64_t timeout_ns) {
  for (uint32_t i = 1; i <= count; ++i) {
    const uint64_t sent = host_ns();
    __atomic_store_n(down, i, __ATOMIC_RELEASE);
    while (__atomic_load_n(up, __ATOMIC_ACQUIRE) < i) {
      if (host_ns() - sent > timeout_ns) return 1;
    }
    readings[2 * i - 2] = sent;
    readings[2 * i - 1] = host_ns();
  }
  return 0;
}
