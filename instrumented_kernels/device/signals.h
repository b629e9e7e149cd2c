// Signals between ranks: epochs, bounded spins, and what to do when a peer never answers. Shared by all kernels here.
//
// The rules (every one has a test that fails when it is broken):
//   release   every writing thread fences at system scope, then the warp (block) syncs, then ONE thread stores the
//   flag;
//             platform.h knows where a block needs one fence only
//   acquire   one thread polls relaxed at system scope, then fences, then the warp syncs before the others read
//   epochs    a flag holds the number of the call, compared with >=, and is never reset; buffers alternate by parity,
//             so a fast rank cannot overwrite what a slow one still reads
//   bounded   a spin that takes too long tells the host who waited for whom, and everybody drains and returns; nothing
//             traps, because a trap would lose the context and the profile with it
#pragma once

#include <kprof/late_wait.h>

#include "shared_layouts.h"

namespace signals {

using namespace kprof::platform;
using shared_layouts::Failure;

// What a wait needs besides its flag. Threads check `has_failed`, in device memory. `failure` is for the host; only the
// thread that was first to set `has_failed` writes it. `prof` is told of waits that last long.
struct WaitLimits {
  uint32_t* has_failed;
  Failure* failure;
  uint64_t timeout_ticks;
  kprof::Buffer prof{};
};

struct Waited {
  uint32_t region;
  uint32_t peer;
  uint32_t slot;
  // Whether `read()` of the wait is a flag in memory, and not worked out from packets.
  bool has_flag = true;

  // Of regions that are declared with peer:8, slot:24, as all waits for peers are here.
  KPROF_DEVICE kprof::WaitFor with(uint32_t held, uint32_t epoch) const {
    return {region, at_most(peer, 0xffu) | at_most(slot, 0xffffffu) << 8, {held, has_flag ? epoch : 0u}};
  }
};

constexpr uint32_t kPollsBetweenChecks = 64;

KPROF_DEVICE bool has_failed(const WaitLimits& limits) { return load_system(limits.has_failed) != 0; }

// Called by one thread: tells the host that this rank gives up. Only the first call counts, and all waits of the rank
// end soon after. No word is zero and the host waits for all of them, so their order does not matter: kernels with
// packets have no fence.
KPROF_DEVICE void note_timeout(const WaitLimits& limits, const Waited& waited, uint32_t epoch, uint64_t ticks) {
  if (exchange_if_zero_device(limits.has_failed, 1u) != 0) return;
  store_system(&limits.failure->waited_ms, 1 + ticks / (kRealtimeTicksPerSecond / 1000));
  store_system(&limits.failure->epoch_and_slot, static_cast<uint64_t>(epoch) << 32 | waited.slot);
  store_system(&limits.failure->region_and_peer, static_cast<uint64_t>(waited.region + 1) << 32 | waited.peer);
}

// Whether a flag has arrived. Not `==`, because a peer may be a call ahead.
KPROF_DEVICE bool has_come(uint32_t flag, uint32_t epoch) { return flag >= epoch; }

// Whether this wait or another one has timed out. Reports it if it is this one.
KPROF_DEVICE bool is_overdue(const WaitLimits& limits, const Waited& waited, uint32_t epoch, uint64_t begin) {
  if (has_failed(limits)) return true;
  const uint64_t ticks = realtime_ticks() - begin;
  if (ticks <= limits.timeout_ticks) return false;
  note_timeout(limits, waited, epoch, ticks);
  return true;
}

// Who waits: a warp, or a block, for which thread 0 speaks.
enum class Waiter { kWarp, kBlock };

// One thread polls until `read()` (an epoch) reaches `epoch`. False if this or another wait has timed out.
template <Waiter waiter = Waiter::kBlock, typename Read>
KPROF_DEVICE bool poll(Read read, uint32_t epoch, const WaitLimits& limits, const Waited& waited) {
  uint64_t begin = 0;
  kprof::LateWait late(limits.prof, waiter == Waiter::kWarp ? kprof::per_warp : kprof::per_block);
  for (uint32_t polls = 0;; ++polls) {
    const uint32_t held = read();
    if (has_come(held, epoch)) return true;
    if (polls == 0) begin = realtime_ticks();
    pause();
    if (polls % kPollsBetweenChecks != kPollsBetweenChecks - 1) continue;
    late.look(begin, [&] { return waited.with(held, epoch); });
    if (!is_overdue(limits, waited, epoch, begin)) continue;
    late.keep();
    return false;
  }
}

KPROF_DEVICE void acquire() { fence_acquire_system(); }

// The whole warp waits: lane 0 polls and acquires, then the warp synchronises.
template <typename Read>
KPROF_DEVICE bool wait_warp(Read read, uint32_t epoch, const WaitLimits& limits, const Waited& waited) {
  uint32_t has_arrived = 0;
  if (lane_id() == 0) {
    has_arrived = poll<Waiter::kWarp>(read, epoch, limits, waited) ? 1u : 0u;
    acquire();
  }
  has_arrived = broadcast(has_arrived);
  sync_warp();
  return has_arrived != 0;
}

// How a wait for several flags ended, and which flag arrived last: the one that the warp waited for.
struct WaitedForAll {
  bool have_arrived;
  uint32_t last;
};

// The whole warp waits for `num_flags` flags, one per lane at a time. `read(i)` is the epoch of flag i, `waited(i)`
// what to report if it never arrives. Every lane polls, so every lane acquires.
template <typename Read, typename Who>
KPROF_DEVICE WaitedForAll wait_all_warp(uint32_t num_flags, Read read, uint32_t epoch, const WaitLimits& limits,
                                        Who waited) {
  uint32_t last = 0;
  uint64_t begin = 0;
  kprof::LateWait late(limits.prof, kprof::per_warp);
  for (uint32_t first = 0, polls = 1; first < num_flags; ++polls) {
    const uint32_t i = first + lane_id();
    const uint64_t missing = lanes_where(i < num_flags && !has_come(read(i), epoch));
    if (missing == 0) {
      first += warp_width();
      continue;
    }
    last = first + lowest_lane(missing);
    if (begin == 0) begin = realtime_ticks();
    if (lane_id() == 0) pause();
    if (polls % kPollsBetweenChecks != 0) continue;
    late.look(begin, [&] { return waited(last).with(read(last), epoch); });
    if (broadcast(lane_id() == 0 && is_overdue(limits, waited(last), epoch, begin) ? 1u : 0u) == 0) continue;
    late.keep();
    return {false, last};
  }
  acquire();
  sync_warp();
  return {true, last};
}

// After this, a flag stored by any lane publishes everything that the warp has written.
KPROF_DEVICE void release_warp() {
  fence_release_system();
  sync_warp();
}

// Publishes what the whole warp has written: first all lanes' stores, then the flag.
template <typename Flag>
KPROF_DEVICE void publish_warp(Flag* flag, Flag value) {
  release_warp();
  if (lane_id() == 0) store_system(flag, value);
}

// The whole block waits: thread 0 runs `await` (polls, and returns whether all flags arrived) and acquires, then the
// block synchronises.
template <typename Await>
KPROF_DEVICE bool wait_block(Await await) {
  KPROF_SHARED(uint32_t, has_arrived, 1);
  sync_block();  // the answer of the wait before has been read
  if (thread_id() == 0) {
    has_arrived[0] = await() ? 1u : 0u;
    acquire();
  }
  sync_block();
  return has_arrived[0] != 0;
}

// Publishes what the whole block has written: first all threads' stores, then the flags, which thread 0 stores.
template <typename StoreFlags>
KPROF_DEVICE void publish_block(StoreFlags store_flags) {
  release_block_system();
  if (thread_id() == 0) store_flags();
}

}  // namespace signals
