// Two ranks bounce a flag through symmetric memory and read their clocks. The readings align the two clocks.
//
// Both sides do the same: wait for their own flag, read the clock, dawdle, read it again, set the other's flag. The
// first one begins. A flag is always seen after it was sent, whatever the link does, so every hop bounds the offset of
// the two clocks from one side. Both sides run the same instructions, so a difference between the two directions can
// only come from the memory and the link.
//
// They dawdle for a random time, or else the two polling loops lock into step. A flag then always arrives at the same
// moment between two polls, which looks like a slower path (on H200: round trips that differed by 160 ns for dozens of
// rounds).
//
// A lane is a block of one thread with its own flags. Lanes take different paths (processor, slice of the cache, link).
// Their disagreement shows how much slower a path can be in one direction.
//
// clock_steps reads the clock repeatedly: the smallest difference between two readings that differ is its step.
//
// watch compares devices through their host (kprof/clocks/corner.py): the host stores 1, 2, 3 ... into a word that all
// poll, and each answers in a word of its own.
#include <kprof/kprof.h>
#include <sched.h>
#include <time.h>

using namespace kprof::platform;

namespace {

// On the CPU target the partner may need this core. But a round trip takes microseconds, and two partners that both
// sleep delay each other, so give the core away only after this many polls.
constexpr uint32_t kPollsBeforePause = 1u << 14;
// Far enough apart for flags to lie in different slices of a GPU's cache.
constexpr uint32_t kFlagStrideBytes = 512;
// Longer than the time between two polls. Cycles on a GPU, ns on the CPU.
constexpr uint32_t kMaxDawdleCycles = 512;

struct Reading {
  uint64_t seen_ticks;  // the own flag was set
  uint64_t sent_ticks;  // about to set the other's
};

struct Game {
  uint32_t num_rounds;
  uint32_t first_round;  // flags only ever grow: one more than the last round of the game before
  uint64_t timeout_ticks;
};

__device__ bool wait_for(const uint32_t* flag, uint32_t round, uint64_t timeout_ticks) {
  const uint64_t begin = realtime_ticks();
  for (uint32_t polls = 0; load_system(flag) < round; ++polls) {
    if (polls < kPollsBeforePause) continue;
    pause();
    if ((polls & 255u) == 255u && realtime_ticks() - begin > timeout_ticks) return false;
  }
  return true;
}

// Any hash will do, as long as both sides dawdle differently in every round.
__device__ void dawdle(uint32_t seed) {
  const uint32_t cycles = ((seed * 2654435761u) >> 16) % kMaxDawdleCycles;
  const uint64_t begin = cycle_ticks();
  while (cycle_ticks() - begin < cycles) {
  }
}

__device__ uint32_t* flag_of_lane(void* flags, uint32_t lane) {
  return static_cast<uint32_t*>(flags) + lane * (kFlagStrideBytes / sizeof(uint32_t));
}

// own_flags, peer_flags: one flag per lane, kFlagStrideBytes apart. readings: [lane][round], zero for rounds that did
// not happen.
__global__ void pingpong(void* own_flags, void* peer_flags, Reading* readings, Game game, uint32_t is_first) {
  const uint32_t lane = block_id();
  uint32_t* const own_flag = flag_of_lane(own_flags, lane);
  uint32_t* const peer_flag = flag_of_lane(peer_flags, lane);
  for (uint32_t i = 0; i < game.num_rounds; ++i) {
    const uint32_t round = game.first_round + i;
    const bool begins = is_first && i == 0;
    if (!begins && !wait_for(own_flag, round - is_first, game.timeout_ticks)) return;
    const uint64_t seen_ticks = realtime_ticks();
    dawdle(2 * (round * num_blocks() + lane) + is_first);
    const uint64_t sent_ticks = realtime_ticks();
    store_system(peer_flag, round);
    readings[lane * game.num_rounds + i] = Reading{seen_ticks, sent_ticks};
  }
}

// Of one round: the last read that missed was issued (0: none did), the first that hit had returned, about to answer.
struct Sight {
  uint64_t missed_ticks, hit_ticks, answered_ticks;
};

// sights: zero for rounds that did not happen.
__global__ void watch(const uint32_t* word, uint32_t* answer, Sight* sights, Game game, uint32_t number) {
  const uint64_t begin = realtime_ticks();
  for (uint32_t i = 0; i < game.num_rounds; ++i) {
    const uint32_t round = game.first_round + i;
    Sight sight{};
    for (uint32_t polls = 0;; ++polls) {
      const uint64_t issued = realtime_ticks();
      if (load_system(word) >= round) break;
      sight.missed_ticks = issued;
      if (issued - begin > game.timeout_ticks) return;
      if (polls > kPollsBeforePause) pause();
    }
    sight.hit_ticks = realtime_ticks();
    dawdle(2 * round + number);
    sight.answered_ticks = realtime_ticks();
    store_system(answer, round);
    sights[i] = sight;
  }
}

__global__ void clock_steps(uint64_t* readings, uint32_t num_readings) {
  for (uint32_t i = 0; i < num_readings; ++i) readings[i] = realtime_ticks();
}

// The host's side. The words are far enough apart for no two to share a line of the cache.
constexpr uint32_t kWordBytes = 128;
// Longer than a GPU's read over PCIe: stores come at any moment between two polls.
constexpr uint32_t kMostPauseNs = 4096;

uint64_t host_ns() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1000000000u + static_cast<uint64_t>(now.tv_nsec);
}

uint32_t* word_of(void* words, uint32_t number) {
  return reinterpret_cast<uint32_t*>(static_cast<char*>(words) + number * kWordBytes);
}

}  // namespace

extern "C" int kprof_watch(void* words, uint32_t number, void* sights, uint32_t num_rounds, uint32_t first_round,
                           uint64_t timeout_ticks, void* stream) {
  return KPROF_LAUNCH(watch, 1, 1, stream, 0, word_of(words, 0), word_of(words, 1 + number),
                      static_cast<Sight*>(sights), Game{num_rounds, first_round, timeout_ticks}, number);
}

// readings: [round][3] of {stored, saw the answer of the first, of the second}. 1 if one did not answer in time.
extern "C" int kprof_show(void* words, uint64_t* readings, uint32_t num_rounds, uint32_t first_round,
                          uint64_t timeout_ns) {
  const uint64_t begin = host_ns();
  for (uint32_t i = 0; i < num_rounds; ++i, readings += 3) {
    const uint32_t round = first_round + i;
    const uint64_t pause_from = host_ns();
    while (host_ns() - pause_from < ((round * 2654435761u) >> 16) % kMostPauseNs) {
    }
    readings[0] = host_ns();
    __atomic_store_n(word_of(words, 0), round, __ATOMIC_RELEASE);
    for (uint32_t polls = 0; readings[1] == 0 || readings[2] == 0; ++polls) {
      // In turns the first to be looked at.
      const uint32_t number = 1 + (polls + round) % 2;
      if (readings[number] == 0 && __atomic_load_n(word_of(words, number), __ATOMIC_ACQUIRE) >= round)
        readings[number] = host_ns();
      if (polls > kPollsBeforePause) sched_yield();
      if ((polls & 255u) == 255u && host_ns() - begin > timeout_ns) return 1;
    }
  }
  return 0;
}

extern "C" int kprof_pingpong(void* own_flags, void* peer_flags, void* readings, uint32_t num_lanes,
                              uint32_t num_rounds, uint32_t first_round, int is_first, uint64_t timeout_ticks,
                              void* stream) {
  return KPROF_LAUNCH(pingpong, static_cast<int>(num_lanes), 1, stream, 0, own_flags, peer_flags,
                      static_cast<Reading*>(readings), Game{num_rounds, first_round, timeout_ticks},
                      static_cast<uint32_t>(is_first));
}

extern "C" int kprof_clock_steps(void* readings, uint32_t num_readings, void* stream) {
  return KPROF_LAUNCH(clock_steps, 1, 1, stream, 0, static_cast<uint64_t*>(readings), num_readings);
}

extern "C" uint32_t kprof_flag_stride_bytes() { return kFlagStrideBytes; }
extern "C" uint64_t kprof_ticks_per_second() { return realtime_ticks_per_second(); }
extern "C" const char* kprof_error_text(int error) { return error_text(error); }
