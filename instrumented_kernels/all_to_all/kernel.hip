// All-to-all for mixture-of-experts: dispatch tokens to the ranks of their experts, apply a stand-in for the expert,
// combine the results where the tokens came from. The workload that kprof was invented on.
//
// Variants, each an answer to what the trace of the one before shows:
//
//   token_flags  one flag per row; block 0 counts while the others send; block b receives from source b % W. A source that
//                sends three times the rows gives three times the work to the blocks that serve it: look for the long
//                blocks in dispatch_recv, then at whom they serve.
//   fused        the expert happens on the way out, in combine_send: one launch and one pass over the rows fewer.
//   balanced     rows are dealt to warps over all sources (and experts) together, by prefix sums over the counts. Every
//                block has the same number of rows; what is left are waits for sources that are late.
//
// A call is a sequence of launches; the end of a launch is the only grid-wide barrier:
//   dispatch_send -> dispatch_recv -> (expert ->) combine_send -> combine_recv
//
// Try it:  kprof record --nproc 8 -o run.kprof -- python -m instrumented_kernels.all_to_all --shape 64,6,2048,8 --skew 3
#include <kprof/kprof.h>

#define KPROF_REGIONS "regions.h"
#include <kprof/declare_regions.h>

#include "grid.h"
#include "layout.h"
#include "rows.h"
#include "signals.h"
#include "variants.h"

namespace all_to_all {

using namespace kprof::platform;
using grid::grid_warp;
using grid::num_grid_warps;
using grid::warps_per_block;
using memory_layout::kMaxRanks;
using kprof::payload;
using kprof::profile_lap;
using kprof::profile_start;
using kprof::profile_stop;

// One call on one rank, as plan.py describes it.
struct CallArguments {
  Shape shape;
  uint32_t rank;
  uint32_t num_tokens;     // n <= M
  uint32_t epoch;          // the number of the call, from 1
  uint64_t timeout_ticks;
  const uint16_t* x;       // fp16 [n, D]
  const int32_t* indices;  // [n, K], distinct in a row
  const float* weights;    // [n, K]
  uint16_t* out;           // fp16 [n, D]
  char* workspace;
  char* heaps[kMaxRanks];  // every rank's heap, as this rank sees it
};

// The same with the layouts worked out once on the host, and the addresses that kernels ask for. Passed by value.
struct Call : CallArguments {
  HeapLayout heap;
  WorkspaceLayout local;

  explicit Call(const CallArguments& arguments)
      : CallArguments(arguments), heap(arguments.shape), local(arguments.shape) {}

  KPROF_DEVICE uint32_t parity() const { return epoch & 1u; }
  KPROF_DEVICE uint32_t num_flat_tokens() const { return num_tokens * shape.top_k; }
  KPROF_DEVICE uint32_t row_bytes() const { return shape.hidden * static_cast<uint32_t>(sizeof(uint16_t)); }
  KPROF_DEVICE uint32_t rank_of_expert(uint32_t expert) const { return expert / shape.experts_per_rank(); }

  // Rows from `source` in the heap of `owner`, for this epoch.
  KPROF_DEVICE uint64_t pair_row(uint32_t source, uint32_t position) const {
    return (static_cast<uint64_t>(parity()) * shape.world_size + source) * shape.max_rows_per_pair() + position;
  }
  KPROF_DEVICE uint64_t* counts_flag(uint32_t owner, uint32_t source) const {
    return at<uint64_t>(owner, heap.counts) + parity() * shape.world_size + source;
  }
  KPROF_DEVICE uint32_t* row_flag(uint32_t owner, uint32_t source, uint32_t position) const {
    return at<uint32_t>(owner, heap.row_flags) + pair_row(source, position);
  }
  KPROF_DEVICE RowOrigin* row_origin(uint32_t owner, uint32_t source, uint32_t position) const {
    return at<RowOrigin>(owner, heap.row_origins) + pair_row(source, position);
  }
  KPROF_DEVICE uint16_t* row(uint32_t owner, uint32_t source, uint32_t position) const {
    return at<uint16_t>(owner, heap.rows) + pair_row(source, position) * shape.row_stride();
  }
  KPROF_DEVICE uint32_t* combine_flag(uint32_t owner, uint32_t flat_token) const {
    return at<uint32_t>(owner, heap.combine_flags) + parity() * shape.max_flat_tokens() + flat_token;
  }
  KPROF_DEVICE uint16_t* combine_row(uint32_t owner, uint32_t flat_token) const {
    const uint64_t row = static_cast<uint64_t>(parity()) * shape.max_flat_tokens() + flat_token;
    return at<uint16_t>(owner, heap.combine_rows) + row * shape.row_stride();
  }

  KPROF_DEVICE uint32_t* send_counts() const { return in_workspace<uint32_t>(local.send_counts); }
  KPROF_DEVICE uint32_t* expert_counts() const { return in_workspace<uint32_t>(local.expert_counts); }
  KPROF_DEVICE RowOrigin* expert_origin(uint32_t local_expert, uint32_t row) const {
    return in_workspace<RowOrigin>(local.expert_origins) + expert_row_idx(local_expert, row);
  }
  KPROF_DEVICE uint16_t* expert_row(uint32_t local_expert, uint32_t row) const {
    return in_workspace<uint16_t>(local.expert_rows) +
           expert_row_idx(local_expert, row) * shape.row_stride();
  }
  KPROF_DEVICE signals::WaitLimits limits() const {
    return {in_workspace<signals::Timeout>(local.timeout), timeout_ticks};
  }

 private:
  KPROF_DEVICE uint64_t expert_row_idx(uint32_t local_expert, uint32_t row) const {
    return static_cast<uint64_t>(local_expert) * shape.max_rows_per_expert() + row;
  }
  template <typename T>
  KPROF_DEVICE T* at(uint32_t owner, Offset offset) const {
    return memory_layout::at<T>(heaps[owner], offset);
  }
  template <typename T>
  KPROF_DEVICE T* in_workspace(Offset offset) const {
    return memory_layout::at<T>(workspace, offset);
  }
};

using ProfiledCall = variants::Profiled<Call>;

// ---- dispatch ---------------------------------------------------------------------------------------------------

// Block 0: how many rows each rank will get, told to all before the rows have left.
KPROF_DEVICE void count_and_send(const Call& call, kprof::Track& track) {
  KPROF_SHARED(uint32_t, counts, kMaxRanks);
  kprof::Span span = profile_start(track);
  for (uint32_t r = thread_id(); r < call.shape.world_size; r += num_threads()) counts[r] = 0;
  for (uint32_t e = thread_id(); e < call.shape.experts_per_rank(); e += num_threads()) call.expert_counts()[e] = 0;
  sync_block();
  for (uint32_t flat = thread_id(); flat < call.num_flat_tokens(); flat += num_threads())
    add_device(&counts[call.rank_of_expert(static_cast<uint32_t>(call.indices[flat]))], 1u);
  sync_block();
  span = profile_lap(track, span, R_COUNT, payload<R_COUNT>(call.num_flat_tokens()));
  for (uint32_t peer = warp_id(); peer < call.shape.world_size; peer += warps_per_block()) {
    // The count travels in the flag itself, so one relaxed store is all: there is nothing else to order.
    if (lane_id() == 0)
      store_system(call.counts_flag(peer, call.rank), static_cast<uint64_t>(call.epoch) << 32 | counts[peer]);
    span = profile_lap(track, span, R_SEND_COUNTS, payload<R_SEND_COUNTS>(peer, 0u));
  }
}

// Block 0 again, after all rows have left: the next launch needs every source's count.
KPROF_DEVICE void wait_for_counts(const Call& call, kprof::Track& track) {
  for (uint32_t peer = warp_id(); peer < call.shape.world_size; peer += warps_per_block()) {
    const uint64_t* flag = call.counts_flag(call.rank, peer);
    const kprof::Span span = profile_start(track);
    signals::wait_warp([flag] { return static_cast<uint32_t>(load_system(flag) >> 32); }, call.epoch, call.limits(),
                       {R_WAIT_COUNTS, peer, 0});
    profile_stop(track, span, R_WAIT_COUNTS, payload<R_WAIT_COUNTS>(peer, 0u));
  }
}

// One warp sends one (token, k): row, origin, flag.
KPROF_DEVICE void send_row(const Call& call, uint32_t flat_token, kprof::Track& track) {
  const kprof::Span span = profile_start(track);
  const uint32_t expert = static_cast<uint32_t>(call.indices[flat_token]);
  const uint32_t peer = call.rank_of_expert(expert);
  uint32_t position = 0;
  if (lane_id() == 0) position = add_device(&call.send_counts()[peer], 1u);
  position = broadcast(position);
  const uint16_t* source = call.x + static_cast<uint64_t>(flat_token / call.shape.top_k) * call.shape.hidden;
  rows::copy(call.row(peer, call.rank, position), source, call.shape.hidden);
  if (lane_id() == 0)
    *call.row_origin(peer, call.rank, position) = {flat_token, expert % call.shape.experts_per_rank()};
  signals::publish_warp(call.row_flag(peer, call.rank, position), call.epoch);
  profile_stop(track, span, R_DISPATCH_SEND, payload<R_DISPATCH_SEND>(peer, position));
}

__global__ void dispatch_send(ProfiledCall call) {
  kprof::Track track = kprof::open_track(call, kprof::per_warp);
  // Block 0 counts, the others send; a single block does one after the other.
  const uint32_t num_counting = num_blocks() > 1 ? 1 : 0;
  if (block_id() == 0) count_and_send(call, track);
  if (block_id() >= num_counting) {
    const uint32_t first = grid_warp() - num_counting * warps_per_block();
    const uint32_t stride = num_grid_warps() - num_counting * warps_per_block();
    for (uint32_t flat = first; flat < call.num_flat_tokens(); flat += stride) send_row(call, flat, track);
  }
  if (block_id() == 0) wait_for_counts(call, track);
}

// One warp receives one row: waits for its flag, then copies it behind the other rows of its expert.
KPROF_DEVICE bool receive_row(const Call& call, uint32_t source, uint32_t position, kprof::Track& track) {
  const uint32_t* flag = call.row_flag(call.rank, source, position);
  kprof::Span span = profile_start(track);
  const bool has_arrived = signals::wait_warp([flag] { return load_system(flag); }, call.epoch, call.limits(),
                                              {R_DISPATCH_WAIT, source, position});
  span = profile_lap(track, span, R_DISPATCH_WAIT, payload<R_DISPATCH_WAIT>(source, position));
  if (!has_arrived) return false;
  const RowOrigin origin = *call.row_origin(call.rank, source, position);
  uint32_t row = 0;
  if (lane_id() == 0) row = add_device(&call.expert_counts()[origin.place], 1u);
  row = broadcast(row);
  rows::copy(call.expert_row(origin.place, row), call.row(call.rank, source, position), call.shape.hidden);
  if (lane_id() == 0) *call.expert_origin(origin.place, row) = {origin.flat_token, source};
  profile_stop(track, span, R_DISPATCH_COPY, payload<R_DISPATCH_COPY>(source, call.row_bytes()));
  return true;
}

// How rows are dealt to warps.
enum class Deal {
  kByGroup,    // every source (expert) on its own: simple, and uneven when the groups are
  kFlattened,  // over all groups together: the same for every warp, but for one row
};

// Calls `work(group, i)` for this warp's share of all rows, until it returns false. `size_of(group)` is the same in all
// warps; the prefix sum over it costs less than telling somebody.
template <typename SizeOf, typename Work>
KPROF_DEVICE void deal_flattened(uint32_t num_groups, SizeOf size_of, Work work) {
  uint32_t idx = grid_warp();
  uint32_t begin = 0;
  for (uint32_t group = 0; group < num_groups; ++group) {
    const uint32_t end = begin + size_of(group);
    for (; idx < end; idx += num_grid_warps())
      if (!work(group, idx - begin)) return;
    begin = end;
  }
}

// Sources are dealt to blocks round robin. Fewer blocks than sources: a block serves several.
template <typename SizeOf, typename Work>
KPROF_DEVICE void deal_sources_to_blocks(uint32_t num_sources, SizeOf size_of, Work work) {
  const uint32_t num_served_at_once = num_blocks() < num_sources ? num_blocks() : num_sources;
  const uint32_t blocks_per_source = num_blocks() / num_served_at_once;
  const uint32_t block_of_source = block_id() / num_served_at_once;
  if (block_of_source >= blocks_per_source) return;
  const uint32_t stride = blocks_per_source * warps_per_block();
  for (uint32_t source = block_id() % num_served_at_once; source < num_sources; source += num_served_at_once)
    for (uint32_t i = block_of_source * warps_per_block() + warp_id(); i < size_of(source); i += stride)
      if (!work(source, i)) return;
}

template <Deal deal>
__global__ void dispatch_recv(ProfiledCall call) {
  kprof::Track track = kprof::open_track(call, kprof::per_warp);
  if (block_id() == 0)  // nobody sends any more: restore the zeros for the next call
    for (uint32_t r = thread_id(); r < call.shape.world_size; r += num_threads()) call.send_counts()[r] = 0;
  const auto num_rows = [&](uint32_t source) {
    return static_cast<uint32_t>(load_system(call.counts_flag(call.rank, source)));
  };
  const auto receive = [&](uint32_t source, uint32_t i) { return receive_row(call, source, i, track); };
  if constexpr (deal == Deal::kFlattened) {
    deal_flattened(call.shape.world_size, num_rows, receive);
  } else {
    deal_sources_to_blocks(call.shape.world_size, num_rows, receive);
  }
}

// ---- the stand-in for the expert ----------------------------------------------------------------------------------

// Calls `work(local_expert, row)` for this warp's share of the rows of all local experts.
template <Deal deal, typename Work>
KPROF_DEVICE void for_each_expert_row(const Call& call, Work work) {
  const uint32_t num_experts = call.shape.experts_per_rank();
  if constexpr (deal == Deal::kFlattened) {
    deal_flattened(num_experts, [&](uint32_t e) { return call.expert_counts()[e]; },
                   [&](uint32_t e, uint32_t row) { return work(e, row), true; });
  } else {
    for (uint32_t e = 0; e < num_experts; ++e)
      for (uint32_t row = grid_warp(); row < call.expert_counts()[e]; row += num_grid_warps()) work(e, row);
  }
}

// y = x * (1 + rank), rounded to fp16: cheap, and wrong when a row went to the wrong rank.
KPROF_DEVICE float expert_factor(const Call& call) { return 1.0f + static_cast<float>(call.rank); }

__global__ void expert(ProfiledCall call) {
  kprof::Track track = kprof::open_track(call, kprof::per_warp);
  for_each_expert_row<Deal::kByGroup>(call, [&](uint32_t local_expert, uint32_t row) {
    const kprof::Span span = profile_start(track);
    uint16_t* values = call.expert_row(local_expert, row);
    rows::scale(values, values, call.shape.hidden, expert_factor(call));
    profile_stop(track, span, R_EXPERT, payload<R_EXPERT>(local_expert, row));
  });
}

// ---- combine ------------------------------------------------------------------------------------------------------

template <Deal deal, bool has_expert>
__global__ void combine_send(ProfiledCall call) {
  kprof::Track track = kprof::open_track(call, kprof::per_warp);
  for_each_expert_row<deal>(call, [&](uint32_t local_expert, uint32_t row) {
    const kprof::Span span = profile_start(track);
    const RowOrigin origin = *call.expert_origin(local_expert, row);
    uint16_t* target = call.combine_row(origin.place, origin.flat_token);
    const uint16_t* source = call.expert_row(local_expert, row);
    if constexpr (has_expert) {
      rows::scale(target, source, call.shape.hidden, expert_factor(call));
    } else {
      rows::copy(target, source, call.shape.hidden);
    }
    signals::publish_warp(call.combine_flag(origin.place, origin.flat_token), call.epoch);
    profile_stop(track, span, R_COMBINE_SEND, payload<R_COMBINE_SEND>(origin.place, origin.flat_token));
  });
}

// One warp per token: wait for its K rows, then sum them in the order of k.
__global__ void combine_recv(ProfiledCall call) {
  kprof::Track track = kprof::open_track(call, kprof::per_warp);
  const uint32_t top_k = call.shape.top_k;
  for (uint32_t token = grid_warp(); token < call.num_tokens; token += num_grid_warps()) {
    const uint32_t first_flat = token * top_k;
    kprof::Span span = profile_start(track);
    for (uint32_t flat = first_flat; flat < first_flat + top_k; ++flat) {
      const uint32_t peer = call.rank_of_expert(static_cast<uint32_t>(call.indices[flat]));
      const uint32_t* flag = call.combine_flag(call.rank, flat);
      const bool has_arrived = signals::wait_warp([flag] { return load_system(flag); }, call.epoch, call.limits(),
                                                  {R_COMBINE_WAIT, peer, flat});
      span = profile_lap(track, span, R_COMBINE_WAIT, payload<R_COMBINE_WAIT>(peer, flat));
      if (!has_arrived) return;
    }
    rows::weighted_sum(
        call.out + static_cast<uint64_t>(token) * call.shape.hidden,
        [&](uint32_t k) { return call.combine_row(call.rank, first_flat + k); }, call.weights + first_flat, top_k,
        call.shape.hidden);
    profile_stop(track, span, R_COMBINE_REDUCE, payload<R_COMBINE_REDUCE>(top_k * call.row_bytes()));
  }
}

using Phase = variants::Phase<Call>;

constexpr Phase kDispatchSend = {"all_to_all/dispatch_send", dispatch_send};
constexpr Phase kCombineRecv = {"all_to_all/combine_recv", combine_recv};

constexpr variants::Variant<Call> kVariants[] = {
    {"token_flags",
     5,
     {kDispatchSend,
      {"all_to_all/dispatch_recv", dispatch_recv<Deal::kByGroup>},
      {"all_to_all/expert", expert},
      {"all_to_all/combine_send", combine_send<Deal::kByGroup, false>},
      kCombineRecv}},
    {"fused",
     4,
     {kDispatchSend,
      {"all_to_all/dispatch_recv", dispatch_recv<Deal::kByGroup>},
      {"all_to_all/combine_send", combine_send<Deal::kByGroup, true>},
      kCombineRecv}},
    {"balanced",
     4,
     {kDispatchSend,
      {"all_to_all/dispatch_recv", dispatch_recv<Deal::kFlattened>},
      {"all_to_all/combine_send", combine_send<Deal::kFlattened, true>},
      kCombineRecv}},
};

}  // namespace all_to_all

// ---- the C interface that plan.py loads -----------------------------------------------------------------------------

#define KERNEL_NAMESPACE all_to_all
#include "launch_interface.h"

using all_to_all::Shape;

extern "C" uint64_t all_to_all_heap_bytes(const Shape* shape) { return all_to_all::HeapLayout(*shape).end.bytes(); }
extern "C" uint64_t all_to_all_workspace_bytes(const Shape* shape) {
  return all_to_all::WorkspaceLayout(*shape).end.bytes();
}
extern "C" void all_to_all_workspace_offsets(const Shape* shape, uint64_t* offsets) {
  const all_to_all::WorkspaceLayout layout(*shape);
  offsets[0] = layout.expert_counts.bytes();
  offsets[1] = layout.expert_origins.bytes();
  offsets[2] = layout.expert_rows.bytes();
}
