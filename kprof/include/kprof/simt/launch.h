// The CPU target: runs a kernel with one fiber per GPU thread, on the calling operating-system thread.
//
// `launch` runs every thread of every block of the grid to completion and returns. Fibers switch only where the kernel
// synchronises (sync_block, sync_warp, shuffle) or polls (yield). So all blocks are co-resident, and a kernel that
// waits for another rank lets that rank's thread or process run. With seed 0 ready fibers run in order of arrival; any
// other seed makes a random order, which the same seed reproduces.
//
// It finds wrong protocols, missing barriers, out-of-bounds accesses (AddressSanitizer) and missing fences
// (ThreadSanitizer, for which every fiber is a thread, and only barriers and fences create order). It cannot find
// faults that x86 hides by its strong memory order, and it says nothing about speed.
//
// The warp width is a build-time choice: -DKPROF_CPU_WARP_WIDTH=32 or 64.
#pragma once

#include <utility>

#include "kernel_calls.h"

namespace kprof::simt {

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
  void* stack = mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
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
      blocks[b].warps[w].barrier.num_alive = num_threads - first < kWarpWidth ? num_threads - first : kWarpWidth;
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
