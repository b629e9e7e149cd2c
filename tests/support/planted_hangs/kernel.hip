// An exchange between all ranks, one slot per block, with one mistake planted in it. Everything that it waits for ends
// when `words->abort` is set.
#include <kprof/kprof.h>

#define KPROF_REGIONS "regions.h"
#include <kprof/declare_regions.h>

using namespace kprof::platform;

// The order of `Fault` in planted_hangs/world.py.
enum Fault : uint32_t {
  kNone,
  kMissingSend,
  kWrongSlot,
  kWrongEpoch,
  kEqual,
  kCycle,
  kNeverLaunches,
  kDies,
  kGridTooLarge,
  kSlow,
  kIllegalAddress,
  kTrap,
};

struct Arguments {
  uint64_t flags;     // u32 [world][world][num_slots]: of a rank, from a rank
  uint64_t words;     // u32: abort, gate
  uint64_t counters;  // u32: blocks of this launch that have ended, and that have come to the barrier
  uint32_t rank;
  uint32_t world;
  uint32_t num_slots;
  uint32_t epoch;
  uint32_t fault;
  uint32_t culprit;
  uint32_t victim;
  uint32_t slot;
  uint32_t num_resident;
  uint32_t is_per_warp;
  uint32_t num_steps;
};

// Ends the kernel and all that its process has on the device; on the CPU, the process.
KPROF_DEVICE void trap() {
#if defined(__CUDACC__)
  __trap();
#else
  __builtin_trap();
#endif
}

struct Block {
  const Arguments& a;
  kprof::Track& track;
  kprof::Span span;

  KPROF_DEVICE uint32_t* word(uint32_t i) const { return reinterpret_cast<uint32_t*>(a.words) + i; }
  KPROF_DEVICE uint32_t* counter(uint32_t i) const { return reinterpret_cast<uint32_t*>(a.counters) + i; }
  KPROF_DEVICE bool is_aborted() const { return load_system(word(0)) != 0; }
  KPROF_DEVICE uint32_t* flag(uint32_t owner, uint32_t source, uint32_t slot) const {
    return reinterpret_cast<uint32_t*>(a.flags) + (owner * a.world + source) * a.num_slots + slot;
  }
  KPROF_DEVICE bool is_planted(uint32_t fault, uint32_t peer) const {
    return a.fault == fault && a.rank == a.culprit && peer == a.victim && block_id() == a.slot;
  }
  KPROF_DEVICE bool waits_first(uint32_t peer) const {
    const bool is_pair = (a.rank == a.culprit && peer == a.victim) || (a.rank == a.victim && peer == a.culprit);
    return a.fault == kCycle && is_pair && block_id() == a.slot;
  }

  KPROF_DEVICE void send(uint32_t peer) {
    if (is_planted(kMissingSend, peer)) return;
    const uint32_t slot = is_planted(kWrongSlot, peer) ? (block_id() + 1) % a.num_slots : block_id();
    const uint32_t epoch = is_planted(kWrongEpoch, peer) ? a.epoch - 1 : a.epoch;
    store_system(flag(peer, a.rank, slot), epoch);
    span = kprof::profile_lap(track, span, R_SEND, kprof::payload<R_SEND>(peer, slot));
  }

  KPROF_DEVICE bool has_come(uint32_t value, uint32_t peer) const {
    const bool is_equal = a.fault == kEqual && a.rank == a.victim && peer == a.culprit && block_id() == a.slot;
    return is_equal ? value == a.epoch : value >= a.epoch;
  }

  KPROF_DEVICE bool wait(uint32_t peer) {
    const uint32_t* mine = flag(a.rank, peer, block_id());
    // The peer may be a call ahead: here it is.
    const bool is_late = a.fault == kEqual && a.rank == a.victim && peer == a.culprit && block_id() == a.slot;
    while (is_late && load_system(mine) <= a.epoch && !is_aborted()) pause();
    kprof::WaitSpan waiting = span;
    for (uint32_t held; !has_come(held = load_system(mine), peer);) {
      if (is_aborted()) return false;
      pause();
      kprof::still_waiting(track, waiting, R_WAIT, kprof::payload<R_WAIT>(peer, block_id()), {held, a.epoch});
    }
    span = kprof::profile_lap(track, waiting, R_WAIT, kprof::payload<R_WAIT>(peer, block_id()));
    return true;
  }

  // All blocks of the launch, which the culprit's grid is too large for.
  KPROF_DEVICE bool meet() {
    uint32_t* arrived = counter(1);
    add_device(arrived, 1u);
    kprof::WaitSpan waiting = span;
    for (uint32_t held; (held = load_system(arrived)) < num_blocks();) {
      if (is_aborted()) return false;
      pause();
      kprof::still_waiting(track, waiting, R_GRID, 0, {held, num_blocks()});
    }
    span = kprof::profile_lap(track, waiting, R_GRID);
    return true;
  }

  KPROF_DEVICE void run() {
    for (uint32_t step = 0; a.fault == kSlow && a.rank == a.culprit && step < a.num_steps; ++step) {
      while (load_system(word(1)) <= step && !is_aborted()) pause();
      span = kprof::profile_lap(track, span, R_STEP);
    }
    if (a.fault == kDies && a.rank == a.culprit) return;
    // No memory lies there, neither on a GPU nor on the host.
    if (a.fault == kIllegalAddress && a.rank == a.culprit) store_system(reinterpret_cast<uint32_t*>(64), 1u);
    if (a.fault == kTrap && a.rank == a.culprit) trap();
    for (uint32_t peer = 0; peer < a.world; ++peer)
      if (peer != a.rank && !waits_first(peer)) send(peer);
    if (a.fault == kGridTooLarge && a.rank == a.culprit && !meet()) return;
    for (uint32_t i = 1; i < a.world; ++i) {
      const uint32_t peer = (a.rank + i) % a.world;
      if (!wait(peer)) return;
      if (waits_first(peer)) send(peer);
    }
  }
};

__global__ void exchange(Arguments a, kprof::Buffer prof) {
  uint32_t* words = reinterpret_cast<uint32_t*>(a.words);
  uint32_t* ended = reinterpret_cast<uint32_t*>(a.counters);
  // A processor has no place for this block until another one has ended.
  if (a.fault == kGridTooLarge && a.rank == a.culprit)
    while (load_system(ended) + a.num_resident <= block_id())
      if (load_system(words) != 0)
        return;
      else
        pause();
  kprof::Track track = kprof::open_track(prof, a.is_per_warp ? kprof::per_warp : kprof::per_block);
  Block block{a, track, kprof::profile_start(track)};
  block.run();
  add_device(ended, 1u);
}

extern "C" int run_exchange(const Arguments* arguments, int num_blocks, const kprof::LaunchBuffer* buffer,
                            uint64_t seed) {
  return KPROF_LAUNCH(exchange, num_blocks, 1, nullptr, seed, *arguments, kprof::make_buffer(*buffer));
}

// Without torch, which would let go of the interpreter lock.
extern "C" int wait_for_device() {
#if defined(__HIP__)
  return hipDeviceSynchronize();
#elif defined(__CUDACC__)
  return cudaDeviceSynchronize();
#else
  return 0;
#endif
}
