// All-gather of one number per rank: the smallest kernel that ranks run together.
#include "kernel.h"
#include "team_call.h"

namespace all_gather {

using namespace kernel;

struct HeapLayout {
  memory_layout::Offset values;  // u64 [2][W]: epoch << 32 | value
  memory_layout::Offset end;

  explicit HeapLayout(const Shape& shape) {
    memory_layout::Cursor cursor;
    values = cursor.take(2ull * shape.world_size * sizeof(uint64_t));
    end = cursor.end();
  }
};

struct WorkspaceLayout {
  memory_layout::Offset has_failed;
  memory_layout::Offset end;

  explicit WorkspaceLayout(const Shape&) {
    memory_layout::Cursor cursor;
    has_failed = cursor.take(sizeof(uint32_t));
    end = cursor.end();
  }
};

struct Call : team_call::TeamCall<CallArguments, HeapLayout, WorkspaceLayout> {
  using TeamCall::TeamCall;

  KPROF_DEVICE uint64_t* value_of(uint32_t owner, uint32_t source) const {
    return at<uint64_t>(owner, heap.values) + (epoch & 1u) * shape.world_size + source;
  }
};

// One warp: lane 0 sends the number to each peer, in its flag, and waits for theirs.
__global__ void all_gather(variants::Profiled<Call> call) {
  kprof::Track track = kprof::open_track(call, kprof::per_warp);
  kprof::Span span = profile_start(track);
  for (uint32_t peer = 0; peer < call.shape.world_size; ++peer) {
    if (lane_id() == 0)
      store_system(call.value_of(peer, call.rank), static_cast<uint64_t>(call.epoch) << 32 | call.value);
    span = profile_lap(track, span, R_PUT, payload<R_PUT>(peer, 0u));
  }
  for (uint32_t peer = 0; peer < call.shape.world_size; ++peer) {
    const uint64_t* flag = call.value_of(call.rank, peer);
    const auto epoch_of = [flag] { return static_cast<uint32_t>(load_system(flag) >> 32); };
    if (!signals::wait_warp(epoch_of, call.epoch, call.limits(), {R_WAIT, peer, 0})) return;
    span = profile_lap(track, span, R_WAIT, payload<R_WAIT>(peer, 0u));
    if (lane_id() == 0) call.out[peer] = static_cast<uint32_t>(load_system(flag));
  }
}

constexpr variants::Variant<Call> kVariants[] = {{"all_gather", 1, {{"all_gather", all_gather}}}};

}  // namespace all_gather

#define KERNEL_NAMESPACE all_gather
#include "launch_interface.h"
