// Counts ids by expert, in shared memory. There are several counters per expert, so that lanes with the same expert
// seldom collide, however skewed the routing is.
#pragma once

#include "call.h"

namespace moe_align_sort {

constexpr uint32_t kCounters = 4096;
// Loads of 16 bytes that a thread has in flight.
constexpr uint32_t kLoadsAhead = 4;

template <uint32_t kMost>
constexpr uint32_t kCopies = kCounters / kMost;

// Reports an id that names no expert to the host. It is ignored otherwise.
KPROF_DEVICE void refuse(const Call& call, uint32_t place, uint32_t id) {
  store_system(&call.failure->refused, uint64_t{1} << 63 | static_cast<uint64_t>(place) << 32 | id);
}

template <uint32_t kMost>
class Counters {
 public:
  // `memory`: kCounters words of shared memory. All threads of the block make one together.
  KPROF_DEVICE Counters(const Call& call, uint32_t* memory)
      : call_(call), memory_(memory), own_(memory + lane_id() % kCopies<kMost>) {
    for (uint32_t i = thread_id(); i < kCounters; i += num_threads()) memory[i] = 0;
    sync_block();
  }

  // Counts the ids of a range. Afterwards `of` is valid.
  KPROF_DEVICE void count(Range range) const {
    uint32_t begin = range.begin;
    if ((reinterpret_cast<uintptr_t>(call_.topk_ids + begin) & 15u) == 0) {
      const uint32_t num_quads = range.size() / 4;
      const uint32_t batch = kLoadsAhead * num_threads();
      // From the end: placing begins at the start, and finds in the cache what is read last here.
      for (uint32_t left = (num_quads + batch - 1) / batch; left != 0; --left)
        count_quads(range.begin, (left - 1) * batch + thread_id(), num_quads);
      begin += num_quads * 4;
    }
    for (uint32_t i = begin + thread_id(); i < range.end; i += num_threads())
      count_id(i, static_cast<uint32_t>(call_.topk_ids[i]));
    sync_block();
  }

  KPROF_DEVICE uint32_t of(uint32_t expert) const {
    uint32_t sum = 0;
    for (uint32_t copy = 0; copy < kCopies<kMost>; ++copy)
      sum += memory_[expert * kCopies<kMost> + (copy ^ expert % kCopies<kMost>)];
    return sum;
  }

 private:
  KPROF_DEVICE void count_id(uint32_t place, uint32_t id) const {
    if (id < call_.shape.num_experts) {
      add_shared(own_ + id * kCopies<kMost>, 1u);
    } else {
      refuse(call_, place, id);
    }
  }

  KPROF_DEVICE void count_quads(uint32_t begin, uint32_t first, uint32_t num_quads) const {
    const Quad* quads = reinterpret_cast<const Quad*>(call_.topk_ids + begin);
    uint32_t ids[kLoadsAhead][4];
    KPROF_UNROLL(kLoadsAhead)
    for (uint32_t j = 0; j < kLoadsAhead; ++j) {
      const uint32_t i = first + j * num_threads();
      const Quad quad = quads[i < num_quads ? i : 0];
      copy_bits(&ids[j], quad);
    }
    uint32_t largest = 0;
    KPROF_UNROLL(kLoadsAhead)
    for (uint32_t j = 0; j < kLoadsAhead; ++j)
      for (uint32_t k = 0; k < 4; ++k) largest = ids[j][k] > largest ? ids[j][k] : largest;
    if (largest >= call_.shape.num_experts) return count_again(begin, first, num_quads);
    KPROF_UNROLL(kLoadsAhead)
    for (uint32_t j = 0; j < kLoadsAhead; ++j) {
      if (first + j * num_threads() >= num_quads) break;
      for (uint32_t k = 0; k < 4; ++k) add_shared(own_ + ids[j][k] * kCopies<kMost>, 1u);
    }
  }

  // The same where an id may name no expert: small, because it is rare.
  KPROF_DEVICE void count_again(uint32_t begin, uint32_t first, uint32_t num_quads) const {
    KPROF_UNROLL(1)
    for (uint32_t j = 0; j < 4 * kLoadsAhead; ++j) {
      const uint32_t i = first + j / 4 * num_threads();
      const uint32_t place = begin + 4 * i + j % 4;
      if (i < num_quads) count_id(place, static_cast<uint32_t>(call_.topk_ids[place]));
    }
  }

  const Call& call_;
  uint32_t* memory_;
  uint32_t* own_;
};

}  // namespace moe_align_sort
