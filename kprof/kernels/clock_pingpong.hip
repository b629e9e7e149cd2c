// Two ranks bounce a flag through symmetric memory and note their clocks: what one needs to put two clocks on one.
//
// In round i the initiator reads t0, sets the responder's flag to first_round + i, waits for its own flag and reads t3; the
// responder waits, reads t1 and answers. Whatever the link does, t1 happened between t0 and t3: every round bounds the
// offset of the two clocks from both sides. One thread per rank; nothing but the two flags is shared.
//
// Also here: the step of the clock, as the smallest difference between two readings that differ.
#include <kprof/kprof.h>

using namespace kprof::platform;

namespace {

struct Round {
  uint64_t before_ticks;  // initiator: t0; responder: t1
  uint64_t after_ticks;   // initiator: t3; responder: t1
};

// A round trip takes microseconds: only after that many polls is it worth giving the core away (on the CPU target, where
// the partner may be waiting for it). Two sleeping partners would keep each other asleep.
constexpr uint32_t kPollsBeforePause = 1u << 14;

__device__ bool wait_for(const uint32_t* flag, uint32_t round, uint64_t timeout_ticks) {
  const uint64_t begin = realtime_ticks();
  for (uint32_t polls = 0; load_system(flag) < round; ++polls) {
    if (polls < kPollsBeforePause) continue;
    pause();
    if ((polls & 255u) == 255u && realtime_ticks() - begin > timeout_ticks) return false;
  }
  return true;
}

__global__ void pingpong(uint32_t* own_flag, uint32_t* peer_flag, Round* rounds, uint32_t num_rounds,
                         uint32_t first_round, uint32_t is_initiator, uint64_t timeout_ticks) {
  for (uint32_t i = 0; i < num_rounds; ++i) {
    const uint32_t round = first_round + i;
    const uint64_t before = realtime_ticks();
    if (is_initiator) store_system(peer_flag, round);
    if (!wait_for(own_flag, round, timeout_ticks)) return;  // the rounds that are missing stay zero
    const uint64_t after = realtime_ticks();
    if (!is_initiator) store_system(peer_flag, round);
    rounds[i] = is_initiator ? Round{before, after} : Round{after, after};
  }
}

__global__ void clock_steps(uint64_t* readings, uint32_t num_readings) {
  for (uint32_t i = 0; i < num_readings; ++i) readings[i] = realtime_ticks();
}

}  // namespace

extern "C" int kprof_pingpong(void* own_flag, void* peer_flag, void* rounds, uint32_t num_rounds,
                              uint32_t first_round, int is_initiator, uint64_t timeout_ticks, void* stream) {
  return KPROF_LAUNCH(pingpong, 1, 1, stream, 0, static_cast<uint32_t*>(own_flag),
                      static_cast<uint32_t*>(peer_flag), static_cast<Round*>(rounds), num_rounds, first_round,
                      static_cast<uint32_t>(is_initiator), timeout_ticks);
}

extern "C" int kprof_clock_steps(void* readings, uint32_t num_readings, void* stream) {
  return KPROF_LAUNCH(clock_steps, 1, 1, stream, 0, static_cast<uint64_t*>(readings), num_readings);
}

extern "C" uint64_t kprof_ticks_per_second() { return kRealtimeTicksPerSecond; }
extern "C" const char* kprof_error_text(int error) { return error_text(error); }
