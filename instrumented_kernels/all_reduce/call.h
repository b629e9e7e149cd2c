// One call on one rank, and the pointers that a launch needs.
#pragma once

// Reading NVIDIA's real-time clock takes long, compared to a trip over the link.
#define KPROF_CLOCK_CYCLES 1
#include "elements.h"
#include "kernel.h"
#include "launch_counter.h"
#include "layout.h"
#include "packets.h"
#include "signals.h"
#include "team_call.h"

namespace all_reduce {

using namespace elements;
using namespace kernel;
using packets::Packet;

struct Call : team_call::TeamCall<CallArguments, HeapLayout, WorkspaceLayout> {
  using TeamCall::TeamCall;

  KPROF_DEVICE uint32_t num_ranks() const { return shape.world_size; }
  // The ranks after this one, cyclically, so that not all ranks write to the same rank first.
  KPROF_DEVICE uint32_t rank_after(uint32_t distance) const {
    const uint32_t after = rank + distance;  // no distance is longer than once around
    return after < shape.world_size ? after : after - shape.world_size;
  }
  KPROF_DEVICE uint64_t* counter() const { return in_workspace<uint64_t>(local.counter); }
  KPROF_DEVICE uint32_t* turn(uint32_t source) const { return in_workspace<uint32_t>(local.turns) + source; }
  template <typename Element, uint32_t num_bytes>
  KPROF_DEVICE elements::Tensor<const Element, num_bytes> input_as() const {
    return {static_cast<const Element*>(input), num_elements};
  }
  template <typename Element, uint32_t num_bytes>
  KPROF_DEVICE elements::Tensor<Element, num_bytes> output_as() const {
    return {static_cast<Element*>(output), num_elements};
  }
};

using ProfiledCall = variants::Profiled<Call>;

// A running launch: its epoch, and pointers into this epoch's half of the heaps.
class Exchange {
 public:
  KPROF_DEVICE explicit Exchange(const Call& call) : call_(call), epoch_(launch_counter::current(call.counter())) {}

  KPROF_DEVICE uint32_t epoch() const { return epoch_; }
  KPROF_DEVICE Packet* packets_of(uint32_t owner) const {
    return reinterpret_cast<Packet*>(half(owner, call_.heap.packets, call_.shape.packet_bytes));
  }
  template <typename Vec>
  KPROF_DEVICE Vec* bulk_of(uint32_t owner) const {
    return reinterpret_cast<Vec*>(half(owner, call_.heap.bulk, call_.shape.bulk_bytes));
  }
  // The data that `source` has put for block `block` of `owner` in a round.
  KPROF_DEVICE uint32_t* flag(uint32_t owner, uint32_t round, uint32_t source, uint32_t block) const {
    const uint32_t row = ((epoch_ & 1u) * kNumRounds + round) * call_.num_ranks() + source;
    return call_.at<uint32_t>(owner, call_.heap.flags) + row * kMaxBlocks + block;
  }

 private:
  KPROF_DEVICE char* half(uint32_t owner, Offset offset, uint32_t num_bytes) const {
    return call_.at<char>(owner, offset) + static_cast<uint64_t>(epoch_ & 1u) * num_bytes;
  }

  const Call& call_;
  const uint32_t epoch_;
};

KPROF_DEVICE uint32_t slice_length(uint32_t num, uint32_t num_slices) { return (num + num_slices - 1) / num_slices; }

// How many ranks' packets, flags or vectors are loaded together. More would cost registers, and instructions that a
// cold launch has to fetch.
constexpr uint32_t kAhead = 4;

}  // namespace all_reduce
