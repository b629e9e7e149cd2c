// Fibers of the CPU target: one per GPU thread, reused from launch to launch, and the switch from one to the next.
//
// ucontext starts a fiber; later switches use _setjmp / _longjmp, which make no system call. The sanitizers are told
// about every switch and use ucontext throughout.
#pragma once

#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <deque>
#include <functional>
#include <memory>
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
constexpr bool kUseJumps = false;
#else
constexpr bool kUseJumps = true;
#endif
constexpr size_t kStackBytes = (kUseJumps ? 64 : 256) * 1024;
// After this many polls of every ready fiber without progress the thread sleeps, so that more ranks than cores can run.
constexpr uint32_t kIdleRoundsBeforeSleep = 2;

enum Error : int { kOk = 0, kTooManyThreads = 1, kBarrierMismatch = 2, kOutOfMemory = 3 };

inline const char* error_text(int error) {
  static constexpr const char* kTexts[] = {
      "no error",
      "the grid has more threads than the CPU target can hold (65536)",
      "a barrier was reached by some threads of a block or warp and never by the others",
      "no memory for the stacks of the grid's threads",
  };
  return error >= kOk && error <= kOutOfMemory ? kTexts[error] : "unknown error of the CPU target";
}

// For executor code that runs in a fiber, outside the kernel.
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
  void* tsan_fiber = nullptr;
  void* asan_fake_stack = nullptr;
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
  void* tsan_scheduler = nullptr;
  void* asan_fake_stack = nullptr;
  const void* asan_stack = nullptr;
  size_t asan_stack_bytes = 0;
  ~Executor() {
    for (char* stack : stacks) munmap(stack, kStackBytes);
#if defined(KPROF_TSAN)
    for (auto& fiber : fibers)
      if (fiber->tsan_fiber) __tsan_destroy_fiber(fiber->tsan_fiber);
#endif
  }
};

// Hides the executor's own data from ThreadSanitizer. Fibers share it without synchronisation, which is safe because
// they never run at the same time, but ThreadSanitizer treats fibers as threads. It is to check the kernel only.
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

// Tell the sanitizers that this thread goes to a stack, and that it has come. They say where it came from.
KPROF_NO_TSAN inline void leave_for([[maybe_unused]] void* tsan_fiber, [[maybe_unused]] void** asan_fake_stack,
                                    [[maybe_unused]] const void* stack, [[maybe_unused]] size_t num_bytes) {
#if defined(KPROF_TSAN)
  __tsan_switch_to_fiber(tsan_fiber, __tsan_switch_to_fiber_no_sync);
#endif
#if defined(KPROF_ASAN)
  __sanitizer_start_switch_fiber(asan_fake_stack, stack, num_bytes);
#endif
}
KPROF_NO_TSAN inline void arrived([[maybe_unused]] void* asan_fake_stack, [[maybe_unused]] const void** from,
                                  [[maybe_unused]] size_t* num_bytes) {
#if defined(KPROF_ASAN)
  __sanitizer_finish_switch_fiber(asan_fake_stack, from, num_bytes);
#endif
}
KPROF_NO_TSAN inline void arrived_in_fiber(Executor& ex, Fiber& fiber) {
  arrived(fiber.asan_fake_stack, &ex.asan_stack, &ex.asan_stack_bytes);
}

KPROF_NO_TSAN __attribute__((noinline)) inline void switch_to_scheduler() {
  Executor& ex = executor();
  Fiber* fiber = ex.current;
  leave_for(ex.tsan_scheduler, &fiber->asan_fake_stack, ex.asan_stack, ex.asan_stack_bytes);
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
  leave_for(fiber->tsan_fiber, &ex.asan_fake_stack, fiber->stack, kStackBytes);
  if constexpr (kUseJumps) {
    if (_setjmp(ex.scheduler_jump) == 0) {
      if (fiber->has_started) _longjmp(fiber->jump, 1);
      fiber->has_started = true;
      setcontext(&fiber->context);
    }
  } else {
    swapcontext(&ex.scheduler_context, &fiber->context);
  }
  arrived(ex.asan_fake_stack, nullptr, nullptr);
}

}  // namespace kprof::simt
