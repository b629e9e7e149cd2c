// What kernels call on the CPU target: fences, barriers, shuffles, polling, shared memory, and the clock that a test
// can plant.
#pragma once

#include <sched.h>
#include <stdint.h>
#include <time.h>

#include "fibers.h"

namespace kprof::simt {

// Tells ThreadSanitizer about order between threads.

inline void order_before([[maybe_unused]] void* point) {
#if defined(KPROF_TSAN)
  __tsan_release(point);
#endif
}
inline void order_after([[maybe_unused]] void* point) {
#if defined(KPROF_TSAN)
  __tsan_acquire(point);
#endif
}

// ThreadSanitizer does not model fences. One address stands for all of them: a release fence releases it, and an
// acquire fence acquires it.
inline char& fence_point() {
  static char point;
  return point;
}
inline void fence_release() {
#if defined(KPROF_TSAN)
  order_before(&fence_point());
#else
  __atomic_thread_fence(__ATOMIC_RELEASE);
#endif
}
inline void fence_acquire() {
#if defined(KPROF_TSAN)
  order_after(&fence_point());
#else
  __atomic_thread_fence(__ATOMIC_ACQUIRE);
#endif
}

inline void release(Executor& ex, Barrier& barrier) {
  for (Fiber* fiber : barrier.waiting) ex.ready.push_back(fiber);
  barrier.waiting.clear();
  ex.num_idle_polls = 0;
}

inline void wait_at(Barrier& barrier) {
  Executor& ex = executor();
  order_before(&barrier);
  if (barrier.waiting.size() + 1 == barrier.num_alive) {
    release(ex, barrier);
  } else {
    barrier.waiting.push_back(ex.current);
    switch_to_scheduler();
  }
  order_after(&barrier);
}

inline void leave(Barrier& barrier) {
  order_before(&barrier);
  --barrier.num_alive;
  if (barrier.num_alive > 0 && barrier.waiting.size() == barrier.num_alive) release(executor(), barrier);
}

inline Warp& own_warp() { return self().block->warps[self().thread_idx / kWarpWidth]; }

inline void sync_block() {
  const UnseenByThreadSanitizer unseen;
  wait_at(self().block->barrier);
}
inline void sync_warp() {
  const UnseenByThreadSanitizer unseen;
  wait_at(own_warp().barrier);
}

// Two rows in turn are enough: a lane is at most one exchange ahead of the slowest reader.
inline const uint32_t* exchange(uint32_t value) {
  Fiber& fiber = self();
  Warp& warp = own_warp();
  uint32_t* row = warp.exchange[fiber.exchange_parity];
  fiber.exchange_parity ^= 1;
  row[fiber.thread_idx % kWarpWidth] = value;
  wait_at(warp.barrier);
  return row;
}
inline uint32_t shuffle(uint32_t value, uint32_t source_lane) {
  const UnseenByThreadSanitizer unseen;
  return exchange(value)[source_lane % kWarpWidth];
}
// The lanes that have given `wanted`.
inline uint64_t lanes_with(uint32_t own, uint32_t wanted) {
  const UnseenByThreadSanitizer unseen;
  const uint32_t* row = exchange(own);
  uint64_t lanes = 0;
  for (uint32_t lane = 0; lane < kWarpWidth; ++lane) lanes |= static_cast<uint64_t>(row[lane] == wanted) << lane;
  return lanes;
}
inline uint64_t lanes_where(bool condition) { return lanes_with(condition ? 1 : 0, 1); }
inline uint64_t lanes_equal(uint32_t value) { return lanes_with(value, value); }
// Gives every lane the pointers of all lanes. What they point to must stay valid until the warp's next barrier.
template <typename T>
inline void pointers_of_lanes(const T* own, const T* (&lanes)[kWarpWidth]) {
  const UnseenByThreadSanitizer unseen;
  const auto address = reinterpret_cast<uint64_t>(own);
  const uint32_t* low = exchange(static_cast<uint32_t>(address));
  const uint32_t* high = exchange(static_cast<uint32_t>(address >> 32));
  for (uint32_t lane = 0; lane < kWarpWidth; ++lane)
    lanes[lane] = reinterpret_cast<const T*>(static_cast<uint64_t>(high[lane]) << 32 | low[lane]);
}

// Called after a poll that found nothing. If all ready fibers only poll, give the core to the other ranks.
inline void yield() {
  const UnseenByThreadSanitizer unseen;
  Executor& ex = executor();
  const uint32_t num_ready = static_cast<uint32_t>(ex.ready.size()) + 1;
  if (++ex.num_idle_polls % num_ready == 0) {
    if (ex.num_idle_polls / num_ready < kIdleRoundsBeforeSleep) {
      sched_yield();
    } else {
      const timespec pause{0, 50 * 1000};
      nanosleep(&pause, nullptr);
    }
  }
  ex.ready.push_back(ex.current);
  switch_to_scheduler();
}

// Shared memory: one allocation per block and per declaration in the source. Each declaration passes its own lambda,
// whose type identifies it.
inline size_t next_shared_slot() {
  static size_t num_slots = 0;
  return __atomic_fetch_add(&num_slots, size_t{1}, __ATOMIC_RELAXED);
}
template <typename T, size_t Count, typename Place>
inline T (&shared_array(Place))[Count] {
  const UnseenByThreadSanitizer unseen;
  static const size_t slot = next_shared_slot();
  auto& shared = self().block->shared;
  if (shared.size() <= slot) shared.resize(slot + 1);
  if (!shared[slot]) shared[slot].reset(new char[sizeof(T[Count]) + alignof(T)]);
  return *reinterpret_cast<T(*)[Count]>(shared[slot].get());
}

// The clock that a test plants.
struct ClockModel {
  int64_t offset_ns = 0;
  double drift = 0.0;
  uint64_t origin_ns = 0;
};
inline ClockModel& clock_model() {
  static thread_local ClockModel model;
  return model;
}
inline uint64_t planted_clock(uint64_t now_ns) {
  const ClockModel& model = clock_model();
  const double elapsed_ns = static_cast<double>(static_cast<int64_t>(now_ns - model.origin_ns));
  return now_ns + static_cast<uint64_t>(model.offset_ns + static_cast<int64_t>(elapsed_ns * model.drift));
}

}  // namespace kprof::simt

// Distorts this rank's clock, for tests of the clock alignment: planted = true + offset + drift * (true - origin).
extern "C" __attribute__((weak)) void kprof_cpu_plant_clock(int64_t offset_ns, double drift, uint64_t origin_ns) {
  kprof::simt::clock_model() = {offset_ns, drift, origin_ns};
}
