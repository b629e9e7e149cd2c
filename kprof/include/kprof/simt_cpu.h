// The CPU target: runs a kernel source with one fiber per GPU thread, on the calling operating-system thread.
//
// Contract. `launch` runs every thread of every block of a grid to its end and returns. Fibers switch only where the
// kernel synchronises (sync_block, sync_warp, shuffle) or polls (yield), so all blocks are co-resident and a kernel that
// waits for another rank lets that rank's thread or process run. Which ready fiber runs next is first-come with seed 0
// and drawn from a generator with any other seed: a failing interleaving is replayed by its seed.
//
// What it shows: wrong protocols, missing barriers, out-of-bounds accesses (AddressSanitizer), and missing fences under
// ThreadSanitizer, to which every fiber is a thread and only barriers and fences create order. What it cannot show:
// x86 hides weak memory order, and nothing here says how fast a GPU is.
//
// The warp width is a build-time choice: -DKPROF_CPU_WARP_WIDTH=32 or 64.
#pragma once

#include <sched.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <ucontext.h>

#include <deque>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#ifndef KPROF_CPU_WARP_WIDTH
#define KPROF_CPU_WARP_WIDTH 64
#endif

#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define KPROF_TSAN 1
#endif
#if __has_feature(address_sanitizer)
#define KPROF_ASAN 1
#endif
#endif
#if defined(__SANITIZE_THREAD__)
#define KPROF_TSAN 1
#endif
#if defined(__SANITIZE_ADDRESS__)
#define KPROF_ASAN 1
#endif

#if defined(KPROF_TSAN)
#include <sanitizer/tsan_interface.h>
extern "C" void AnnotateIgnoreReadsBegin(const char* file, int line);
extern "C" void AnnotateIgnoreReadsEnd(const char* file, int line);
extern "C" void AnnotateIgnoreWritesBegin(const char* file, int line);
extern "C" void AnnotateIgnoreWritesEnd(const char* file, int line);
#endif
#if defined(KPROF_ASAN)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace kprof::simt {

constexpr uint32_t kWarpWidth = KPROF_CPU_WARP_WIDTH;
static_assert(kWarpWidth == 32 || kWarpWidth == 64, "a warp has 32 or 64 lanes");
constexpr uint32_t kMaxFibers = 1u << 16;
#if defined(KPROF_TSAN) || defined(KPROF_ASAN)
constexpr size_t kStackBytes = 256 * 1024;
#else
constexpr size_t kStackBytes = 64 * 1024;
#endif
// After this many polls of every ready fiber without any progress the thread sleeps, so that more ranks than cores work.
constexpr uint32_t kIdleRoundsBeforeSleep = 2;

enum Error : int { kOk = 0, kTooManyThreads = 1, kBarrierMismatch = 2, kOutOfMemory = 3 };

inline const char* error_text(int error) {
  switch (error) {
    case kOk: return "no error";
    case kTooManyThreads: return "the grid has more threads than the CPU target can hold (65536)";
    case kBarrierMismatch: return "a barrier was reached by some threads of a block or warp and never by the others";
    case kOutOfMemory: return "no memory for the stacks of the grid's threads";
    default: return "unknown error of the CPU target";
  }
}

// For code of the executor's own that runs in a fiber between kernels.
#define KPROF_NO_TSAN __attribute__((no_sanitize("thread")))

struct Fiber;

// A barrier among `num_alive` threads. A thread that returns from the kernel leaves it.
struct Barrier {
  uint32_t num_alive = 0;
  std::vector<Fiber*> waiting;
};

struct Warp {
  Barrier barrier;
  uint32_t exchange[2][kWarpWidth] = {};
};

struct Block {
  uint32_t block_idx = 0;
  uint32_t num_blocks = 0;
  uint32_t num_threads = 0;
  Barrier barrier;
  std::vector<Warp> warps;
  std::vector<std::unique_ptr<char[]>> shared;
};

struct Fiber {
  ucontext_t context;
  jmp_buf jump;
  bool has_started = false;
  uint32_t thread_idx = 0;
  uint32_t exchange_parity = 0;
  Block* block = nullptr;
  char* stack = nullptr;
#if defined(KPROF_TSAN)
  void* tsan_fiber = nullptr;
#endif
#if defined(KPROF_ASAN)
  void* fake_stack = nullptr;
#endif
};

// Everything one operating-system thread needs to run grids. Fibers are kept from launch to launch.
struct Executor {
  std::vector<std::unique_ptr<Fiber>> fibers;
  std::vector<char*> stacks;
  std::deque<Fiber*> ready;
  std::function<void()> body;
  Fiber* current = nullptr;
  uint64_t random_state = 0;
  uint32_t num_running = 0;
  uint32_t num_idle_polls = 0;
  ucontext_t scheduler_context;
  jmp_buf scheduler_jump;
#if defined(KPROF_TSAN)
  void* tsan_scheduler = nullptr;
#endif
#if defined(KPROF_ASAN)
  void* fake_stack = nullptr;
  const void* scheduler_stack = nullptr;
  size_t scheduler_stack_bytes = 0;
#endif
  ~Executor() {
    for (char* stack : stacks) munmap(stack, kStackBytes);
#if defined(KPROF_TSAN)
    for (auto& fiber : fibers)
      if (fiber->tsan_fiber) __tsan_destroy_fiber(fiber->tsan_fiber);
#endif
  }
};

// The executor's own data is shared by its fibers without synchronisation, which is right because they never run at the
// same time; ThreadSanitizer, to which fibers are threads, must look at the kernel only.
struct [[maybe_unused]] UnseenByThreadSanitizer {
#if defined(KPROF_TSAN)
  UnseenByThreadSanitizer() {
    AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
    AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
  }
  ~UnseenByThreadSanitizer() {
    AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
    AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
  }
#endif
};

inline Executor& executor() {
  static thread_local Executor instance;
  return instance;
}
struct Ids {
  uint32_t thread_idx;
  uint32_t block_idx;
  uint32_t num_blocks;
  uint32_t num_threads;
};
inline Fiber& self() { return *executor().current; }
inline Ids ids() {
  const UnseenByThreadSanitizer unseen;
  const Fiber& fiber = self();
  return {fiber.thread_idx, fiber.block->block_idx, fiber.block->num_blocks, fiber.block->num_threads};
}

// ---- switching -------------------------------------------------------------------------------------------------
// ucontext starts a fiber; later switches use _setjmp / _longjmp, which make no system call. The sanitizers are told
// about every switch and use ucontext throughout.

#if defined(KPROF_TSAN) || defined(KPROF_ASAN)
constexpr bool kUseJumps = false;
#else
constexpr bool kUseJumps = true;
#endif

KPROF_NO_TSAN inline void announce_switch_to_fiber([[maybe_unused]] Executor& ex, [[maybe_unused]] Fiber& fiber) {
#if defined(KPROF_TSAN)
  __tsan_switch_to_fiber(fiber.tsan_fiber, __tsan_switch_to_fiber_no_sync);
#endif
#if defined(KPROF_ASAN)
  __sanitizer_start_switch_fiber(&ex.fake_stack, fiber.stack, kStackBytes);
#endif
}
KPROF_NO_TSAN inline void announce_switch_to_scheduler([[maybe_unused]] Executor& ex, [[maybe_unused]] Fiber* fiber) {
#if defined(KPROF_TSAN)
  __tsan_switch_to_fiber(ex.tsan_scheduler, __tsan_switch_to_fiber_no_sync);
#endif
#if defined(KPROF_ASAN)
  __sanitizer_start_switch_fiber(&fiber->fake_stack, ex.scheduler_stack, ex.scheduler_stack_bytes);
#endif
}
KPROF_NO_TSAN inline void arrived_in_fiber([[maybe_unused]] Executor& ex, [[maybe_unused]] Fiber& fiber) {
#if defined(KPROF_ASAN)
  __sanitizer_finish_switch_fiber(fiber.fake_stack, &ex.scheduler_stack, &ex.scheduler_stack_bytes);
#endif
}
KPROF_NO_TSAN inline void arrived_in_scheduler([[maybe_unused]] Executor& ex) {
#if defined(KPROF_ASAN)
  __sanitizer_finish_switch_fiber(ex.fake_stack, nullptr, nullptr);
#endif
}

KPROF_NO_TSAN __attribute__((noinline)) inline void switch_to_scheduler() {
  Executor& ex = executor();
  Fiber* fiber = ex.current;
  announce_switch_to_scheduler(ex, fiber);
  if constexpr (kUseJumps) {
    if (_setjmp(fiber->jump) == 0) _longjmp(ex.scheduler_jump, 1);
  } else {
    swapcontext(&fiber->context, &ex.scheduler_context);
  }
  arrived_in_fiber(ex, *fiber);
}

__attribute__((noinline)) inline void switch_to_fiber(Fiber* fiber) {
  Executor& ex = executor();
  ex.current = fiber;
  announce_switch_to_fiber(ex, *fiber);
  if constexpr (kUseJumps) {
    if (_setjmp(ex.scheduler_jump) == 0) {
      if (fiber->has_started) _longjmp(fiber->jump, 1);
      fiber->has_started = true;
      setcontext(&fiber->context);
    }
  } else {
    swapcontext(&ex.scheduler_context, &fiber->context);
  }
  arrived_in_scheduler(ex);
}

// ---- order between threads, as ThreadSanitizer sees it ------------------------------------------------------------

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

// ThreadSanitizer does not model fences. A release fence followed by a relaxed flag, read relaxed and followed by an
// acquire fence, is modelled by one point that releases publish to and acquires read from.
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

// ---- what kernels call ----------------------------------------------------------------------------------------

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
  if (barrier.num_alive > 0 && barrier.waiting.size() == barrier.num_alive)
    release(executor(), barrier);
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

// Two exchange rows by parity: a lane can be one exchange ahead of the slowest reader, never two.
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
inline uint64_t lanes_where(bool condition) {
  const UnseenByThreadSanitizer unseen;
  const uint32_t* row = exchange(condition ? 1u : 0u);
  uint64_t lanes = 0;
  for (uint32_t lane = 0; lane < kWarpWidth; ++lane) lanes |= static_cast<uint64_t>(row[lane] & 1u) << lane;
  return lanes;
}

// A poll that found nothing. When every ready fiber only polls, other ranks need the core more than we do.
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

// Block-shared memory: one allocation per block and per place in the source (the lambda's type names the place).
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

// ---- the clock that a test plants -------------------------------------------------------------------------------

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

// ---- launching ------------------------------------------------------------------------------------------------

inline void run_body(Executor& ex) {
  order_after(&ex);
  ex.body();
  order_before(&ex);
}

inline void finish_thread(Executor& ex) {
  const UnseenByThreadSanitizer unseen;
  leave(own_warp().barrier);
  leave(self().block->barrier);
  --ex.num_running;
  ex.num_idle_polls = 0;
}

KPROF_NO_TSAN inline void fiber_main() {
  Executor& ex = executor();
  arrived_in_fiber(ex, *ex.current);
  for (;;) {
    run_body(ex);
    finish_thread(ex);
    switch_to_scheduler();  // waits here for the next launch
  }
}

inline bool add_fiber(Executor& ex) {
  void* stack = mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (stack == MAP_FAILED) return false;
  ex.stacks.push_back(static_cast<char*>(stack));
  ex.fibers.push_back(std::make_unique<Fiber>());
  Fiber& fiber = *ex.fibers.back();
  fiber.stack = static_cast<char*>(stack);
  getcontext(&fiber.context);
  fiber.context.uc_stack.ss_sp = stack;
  fiber.context.uc_stack.ss_size = kStackBytes;
  fiber.context.uc_link = nullptr;
  makecontext(&fiber.context, fiber_main, 0);
#if defined(KPROF_TSAN)
  fiber.tsan_fiber = __tsan_create_fiber(0);
#endif
  return true;
}

inline void prepare_blocks(std::vector<Block>& blocks, uint32_t num_threads) {
  const uint32_t num_warps = (num_threads + kWarpWidth - 1) / kWarpWidth;
  for (uint32_t b = 0; b < blocks.size(); ++b) {
    blocks[b].block_idx = b;
    blocks[b].num_blocks = static_cast<uint32_t>(blocks.size());
    blocks[b].num_threads = num_threads;
    blocks[b].barrier.num_alive = num_threads;
    blocks[b].warps.resize(num_warps);
    for (uint32_t w = 0; w < num_warps; ++w) {
      const uint32_t first = w * kWarpWidth;
      blocks[b].warps[w].barrier.num_alive =
          num_threads - first < kWarpWidth ? num_threads - first : kWarpWidth;
    }
  }
}

inline Fiber* next_ready(Executor& ex, uint64_t seed) {
  if (seed != 0) {  // xorshift64: small, seedable, good enough to shuffle a queue
    ex.random_state ^= ex.random_state << 13;
    ex.random_state ^= ex.random_state >> 7;
    ex.random_state ^= ex.random_state << 17;
    std::swap(ex.ready.front(), ex.ready[ex.random_state % ex.ready.size()]);
  }
  Fiber* fiber = ex.ready.front();
  ex.ready.pop_front();
  return fiber;
}

template <typename Body>
inline int launch(int num_blocks, int num_threads, uint64_t seed, Body&& body) {
  const UnseenByThreadSanitizer unseen;
  Executor& ex = executor();
  if (num_blocks < 1 || num_threads < 1) return kOk;
  const uint64_t num_fibers = static_cast<uint64_t>(num_blocks) * static_cast<uint64_t>(num_threads);
  if (num_fibers > kMaxFibers) return kTooManyThreads;
  while (ex.fibers.size() < num_fibers)
    if (!add_fiber(ex)) return kOutOfMemory;
  std::vector<Block> blocks(static_cast<size_t>(num_blocks));
  prepare_blocks(blocks, static_cast<uint32_t>(num_threads));
  ex.body = std::forward<Body>(body);
  ex.random_state = seed;
  ex.num_running = static_cast<uint32_t>(num_fibers);
  ex.num_idle_polls = 0;
  ex.ready.clear();
  for (uint32_t i = 0; i < num_fibers; ++i) {
    Fiber& fiber = *ex.fibers[i];
    fiber.block = &blocks[i / static_cast<uint32_t>(num_threads)];
    fiber.thread_idx = i % static_cast<uint32_t>(num_threads);
    fiber.exchange_parity = 0;
    ex.ready.push_back(&fiber);
  }
#if defined(KPROF_TSAN)
  ex.tsan_scheduler = __tsan_get_current_fiber();
  order_before(&ex);
#endif
  while (!ex.ready.empty()) switch_to_fiber(next_ready(ex, seed));
  order_after(&ex);
  ex.current = nullptr;
  // Fibers stuck at a barrier cannot be reused: let the next launch start with fresh ones.
  if (ex.num_running == 0) return kOk;
  ex.fibers.clear();
  return kBarrierMismatch;
}

}  // namespace kprof::simt

// Bend this rank's clock: planted = true + offset + drift * (true - now). For tests of the clock alignment.
extern "C" __attribute__((weak)) void kprof_cpu_plant_clock(int64_t offset_ns, double drift) {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  auto& model = kprof::simt::clock_model();
  model.offset_ns = offset_ns;
  model.drift = drift;
  model.origin_ns = static_cast<uint64_t>(now.tv_sec) * 1000000000ull + static_cast<uint64_t>(now.tv_nsec);
}
