// All-reduce: every rank gets the sum of all ranks' tensors, bitwise the same on all ranks and in all variants: accumulated in
// fp32 in the order of the ranks, rounded once.
//
// The ladder, each step an answer to what the trace of the one before shows:
//
//   oneshot_serial   one block: put to all, wait for the ranks in order, add each as it comes
//   oneshot_lock     one block per source; they add to the same sums under a lock, which is handed on in rank order
//   oneshot_tree     log2(W) steps, twice as many tensors in each; then everybody has all of them and adds
//   oneshot          all at once, in packets that are their own flags: one trip through the link and no fence
//   twoshot_packets  each rank sums a slice and broadcasts it, in packets: 2/W of the bytes for one more trip
//   twoshot          the same with flags behind whole chunks, which takes two fences
//   ring             the sums travel from rank 0 to the last one and back, in as many chunks as there are blocks
//
// A classic ring adds every chunk in another order, and a classic tree adds sums of sums: neither gives the bits of the others.
// Here the tree passes tensors on unadded and the ring starts every chunk at rank 0.
//
// A call is one launch. Buffers alternate by the parity of the launch's number, and no rank can be two launches ahead of
// another: its result needs what every rank put, which comes after all that those ranks read in the launch before.
//
// Try it:  kprof record --nproc 4 -o run.kprof -- python -m instrumented_kernels.all_reduce --variant oneshot_lock
// A reading of NVIDIA's real-time clock takes long beside a trip through the link.
#define KPROF_CLOCK_CYCLES 1
#include <kprof/kprof.h>

#define KPROF_REGIONS "regions.h"
#include <kprof/declare_regions.h>

#include "elements.h"
#include "grid.h"
#include "launch_counter.h"
#include "layout.h"
#include "packets.h"
#include "signals.h"
#include "variants.h"

namespace all_reduce {

using namespace kprof::platform;
using elements::BFloat16;
using elements::Half;
using elements::Sum;
using elements::Vector;
using grid::grid_thread;
using grid::num_grid_threads;
using kprof::payload;
using kprof::profile_lap;
using kprof::profile_start;
using kprof::profile_stop;
using packets::Packet;

// One call on one rank, as plan.py describes it. Nothing in it changes from call to call on the same tensor.
struct CallArguments {
  Shape shape;
  uint32_t rank;
  uint32_t num_elements;
  uint64_t timeout_ticks;
  const void* input;
  void* output;            // may be the input; no other overlap
  char* workspace;
  char* heaps[kMaxRanks];  // every rank's heap, as this rank sees it
};

// The same with the layouts worked out once on the host.
struct Call : CallArguments {
  HeapLayout heap;
  WorkspaceLayout local;

  explicit Call(const CallArguments& arguments)
      : CallArguments(arguments), heap(arguments.shape), local(arguments.shape) {}

  KPROF_DEVICE uint32_t num_ranks() const { return shape.world_size; }
  // The ranks after this one, in a circle, so that not everybody writes to the same rank at first.
  KPROF_DEVICE uint32_t rank_after(uint32_t distance) const {
    const uint32_t after = rank + distance;  // no distance is longer than once around
    return after < shape.world_size ? after : after - shape.world_size;
  }
  KPROF_DEVICE uint64_t* counter() const { return memory_layout::at<uint64_t>(workspace, local.counter); }
  KPROF_DEVICE uint32_t* turn(uint32_t source) const {
    return memory_layout::at<uint32_t>(workspace, local.turns) + source;
  }
  KPROF_DEVICE signals::WaitLimits limits() const {
    return {memory_layout::at<signals::Timeout>(workspace, local.timeout), timeout_ticks};
  }
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

// One launch as it runs: its epoch, and where things lie in this epoch's half of the heaps.
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
  // What `source` has put for block `block` of `owner` in a round.
  KPROF_DEVICE uint32_t* flag(uint32_t owner, uint32_t round, uint32_t source, uint32_t block) const {
    const uint32_t row = ((epoch_ & 1u) * kNumRounds + round) * call_.num_ranks() + source;
    return memory_layout::at<uint32_t>(call_.heaps[owner], call_.heap.flags) + row * kMaxBlocks + block;
  }

 private:
  KPROF_DEVICE char* half(uint32_t owner, Offset offset, uint32_t num_bytes) const {
    return call_.heaps[owner] + offset.bytes() + static_cast<uint64_t>(epoch_ & 1u) * num_bytes;
  }

  const Call& call_;
  const uint32_t epoch_;
};

struct Range {
  uint32_t begin;
  uint32_t end;

  KPROF_DEVICE uint32_t size() const { return end - begin; }
};

// The part of `num` things that this block handles; blocks of the same number handle the same on all ranks.
KPROF_DEVICE Range share_of_block(uint32_t num) {
  const uint64_t total = num;
  return {static_cast<uint32_t>(total * block_id() / num_blocks()),
          static_cast<uint32_t>(total * (block_id() + 1) / num_blocks())};
}

KPROF_DEVICE uint32_t slice_length(uint32_t num, uint32_t num_slices) { return (num + num_slices - 1) / num_slices; }

// ---- packets: every thread for itself ---------------------------------------------------------------------------------

// Packets that are polled together. More would take registers, and instructions that a cold launch has to fetch.
constexpr uint32_t kAhead = 4;

// Takes packet i of every rank's slot in `slots` (each `stride` packets long): `visit(source, data)` in rank order, when all of
// a group of kAhead ranks have come. In place of the own rank's there is `own`; sources for which `has(source)` is false
// are left out. `arrived(source)` is called in the order of arrival. False after a timeout.
template <typename Data, typename Has, typename Arrived, typename Visit>
KPROF_DEVICE bool take_packets(const Call& call, const Exchange& exchange, uint32_t region, Packet* slots, uint32_t stride,
                               const Data& own, Has has, Arrived arrived, Visit visit) {
  for (uint32_t begin = 0; begin < call.num_ranks(); begin += kAhead) {
    const auto cell = [&](uint32_t k) { return slots + static_cast<uint64_t>(begin + k) * stride; };
    const auto is_wanted = [&](uint32_t k) {
      return begin + k < call.num_ranks() && begin + k != call.rank && has(begin + k);
    };
    Packet ahead[kAhead];
    uint32_t missing = 0;
    KPROF_UNROLL(kAhead)
    for (uint32_t k = 0; k < kAhead; ++k) missing |= static_cast<uint32_t>(is_wanted(k)) << k;
    signals::Waited waited{region, call.rank, block_id()};
    const auto read = [&] {
      const uint32_t missing_before = missing;
      KPROF_UNROLL(kAhead)
      for (uint32_t k = 0; k < kAhead; ++k)
        if ((missing >> k & 1u) != 0) ahead[k] = packets::peek(cell(k));
      KPROF_UNROLL(kAhead)
      for (uint32_t k = 0; k < kAhead; ++k) {
        if ((missing >> k & 1u) == 0) continue;
        if (packets::is_complete(ahead[k])) missing &= ~(1u << k);
        waited.peer = begin + k;
      }
      KPROF_UNROLL(1)
      for (uint32_t k = 0; k < kAhead; ++k)
        if (((missing_before & ~missing) >> k & 1u) != 0) arrived(begin + k);
      return missing == 0 ? exchange.epoch() : 0u;
    };
    if (!signals::poll(read, exchange.epoch(), call.limits(), waited)) return false;
    KPROF_UNROLL(kAhead)
    for (uint32_t k = 0; k < kAhead; ++k) {
      if (begin + k == call.rank && has(begin + k)) visit(begin + k, own);
      if (!is_wanted(k)) continue;
      visit(begin + k, packets::data_of<Data>(ahead[k]));
      packets::empty(cell(k));
    }
  }
  return true;
}

// Of `num` things that are dealt thread by thread, how many this block handles.
KPROF_DEVICE uint32_t num_dealt_to_block(uint32_t num) {
  const uint32_t num_left = num % num_grid_threads();
  const uint32_t first = block_id() * num_threads();
  const uint32_t last_round = num_left < first ? 0 : num_left - first;
  return num / num_grid_threads() * num_threads() + (last_round < num_threads() ? last_round : num_threads());
}

template <typename Element>
KPROF_DEVICE void oneshot_exchange(const Call& call, kprof::Track& track) {
  using Data = packets::Data<Element>;
  kprof::Span span = profile_start(track);
  const Exchange exchange(call);
  const auto input = call.input_as<Element, packets::kDataBytes>();
  const auto output = call.output_as<Element, packets::kDataBytes>();
  const uint32_t num_packets = input.num_vectors();
  if (block_id() * num_threads() >= num_packets) return;
  [[maybe_unused]] const uint32_t num_own_bytes = num_dealt_to_block(num_packets) * packets::kDataBytes;
  // A thread's first packet stays in registers: in a small tensor it is the only one.
  const uint32_t first = grid_thread();
  const Data first_data = packets::sendable(input.load(first));
  const auto data_at = [&](uint32_t i) { return i == first ? first_data : packets::sendable(input.load(i)); };
  for (uint32_t distance = 1; distance < call.num_ranks(); ++distance) {
    const uint32_t peer = call.rank_after(distance);
    Packet* target = exchange.packets_of(peer) + static_cast<uint64_t>(call.rank) * num_packets;
    for (uint32_t i = first; i < num_packets; i += num_grid_threads()) packets::send(target + i, data_at(i));
    span = profile_lap(track, span, R_PUT, payload<R_PUT>(peer, block_id(), num_own_bytes));
  }
  Packet* slots = exchange.packets_of(call.rank);
  for (uint32_t i = first; i < num_packets; i += num_grid_threads()) {
    Sum<Data> sum;
    const auto arrived = [&]([[maybe_unused]] uint32_t source) {
      if (i == first) {
        span = profile_lap(track, span, R_WAIT, payload<R_WAIT>(source, block_id()));
      }
    };
    const bool is_complete = take_packets(
        call, exchange, R_WAIT, slots + i, num_packets, data_at(i), [](uint32_t) { return true; }, arrived,
        [&](uint32_t, const Data& data) { sum.add(data); });
    if (!is_complete) return;
    output.store(i, sum.rounded());
  }
  profile_stop(track, span, R_REDUCE, payload<R_REDUCE>(num_own_bytes));
}

template <typename Element>
__global__ void oneshot(ProfiledCall call) {
  kprof::Track track = kprof::open_track(call, kprof::per_block);
  oneshot_exchange<Element>(call, track);
  launch_counter::finish(call.counter());
}

// Slice s of the tensor belongs to rank s. Slot s of the heap holds what rank s put of our slice; behind all slots, slot s
// holds the sums of rank s.
template <typename Element>
KPROF_DEVICE void twoshot_packets_exchange(const Call& call, kprof::Track& track) {
  using Data = packets::Data<Element>;
  kprof::Span span = profile_start(track);
  const Exchange exchange(call);
  const auto input = call.input_as<Element, packets::kDataBytes>();
  const auto output = call.output_as<Element, packets::kDataBytes>();
  const uint32_t num_packets = input.num_vectors();
  const uint32_t slice = slice_length(num_packets, call.num_ranks());
  const uint32_t first_of_block = block_id() * num_threads();
  if (first_of_block >= slice) return;
  [[maybe_unused]] const uint32_t num_own_bytes = num_dealt_to_block(slice) * packets::kDataBytes;
  const uint32_t first = grid_thread();
  const auto holds = [&](uint32_t owner, uint32_t i) { return owner * slice + i < num_packets; };
  for (uint32_t distance = 1; distance < call.num_ranks(); ++distance) {
    const uint32_t peer = call.rank_after(distance);
    Packet* target = exchange.packets_of(peer) + call.rank * slice;
    for (uint32_t i = first; i < slice && holds(peer, i); i += num_grid_threads())
      packets::send(target + i, packets::sendable(input.load(peer * slice + i)));
    if (holds(peer, first_of_block)) {
      span = profile_lap(track, span, R_PUT, payload<R_PUT>(peer, block_id(), num_own_bytes));
    }
  }
  Packet* slots = exchange.packets_of(call.rank);
  for (uint32_t i = first; i < slice && holds(call.rank, i); i += num_grid_threads()) {
    const uint32_t place = call.rank * slice + i;
    Sum<Data> sum;
    const auto arrived = [&]([[maybe_unused]] uint32_t source) {
      if (i == first) {
        span = profile_lap(track, span, R_WAIT, payload<R_WAIT>(source, block_id()));
      }
    };
    const bool is_complete = take_packets(
        call, exchange, R_WAIT, slots + i, slice, packets::sendable(input.load(place)), [](uint32_t) { return true; },
        arrived, [&](uint32_t, const Data& data) { sum.add(data); });
    if (!is_complete) return;
    const Data result = packets::sendable(sum.rounded());
    for (uint32_t distance = 1; distance < call.num_ranks(); ++distance)
      packets::send(exchange.packets_of(call.rank_after(distance)) + call.num_ranks() * slice + place, result);
    output.store(place, result);
  }
  if (holds(call.rank, first_of_block)) {
    span = profile_lap(track, span, R_REDUCE, payload<R_REDUCE>(num_own_bytes));
    // They left one by one with the sums; here they are told apart.
    for (uint32_t distance = 1; distance < call.num_ranks(); ++distance) {
      span = profile_lap(track, span, R_BROADCAST,
                         payload<R_BROADCAST>(call.rank_after(distance), block_id(), num_own_bytes));
    }
  }
  for (uint32_t i = first; i < slice; i += num_grid_threads()) {
    const auto arrived = [&]([[maybe_unused]] uint32_t source) {
      if (i == first) {
        span = profile_lap(track, span, R_BROADCAST_WAIT, payload<R_BROADCAST_WAIT>(source, block_id()));
      }
    };
    const bool is_complete = take_packets(
        call, exchange, R_BROADCAST_WAIT, slots + call.num_ranks() * slice + i, slice, Data{},
        [&](uint32_t source) { return holds(source, i); }, arrived, [&](uint32_t source, const Data& data) {
          if (source != call.rank) output.store(source * slice + i, data);
        });
    if (!is_complete) return;
  }
  profile_stop(track, span, R_COPY_OUT, payload<R_COPY_OUT>(num_own_bytes * (call.num_ranks() - 1)));
}

template <typename Element>
__global__ void twoshot_packets(ProfiledCall call) {
  kprof::Track track = kprof::open_track(call, kprof::per_block);
  twoshot_packets_exchange<Element>(call, track);
  launch_counter::finish(call.counter());
}

// ---- bulk: whole blocks move vectors and announce them with flags -------------------------------------------------------

template <typename Element>
using Vec = Vector<Element, kVectorBytes>;

constexpr uint32_t kSummands = 0;  // rounds of flags
constexpr uint32_t kResults = 1;

// Tells `peer` that all this block has put for it so far is there.
KPROF_DEVICE void publish(const Call& call, const Exchange& exchange, uint32_t round, uint32_t peer, uint32_t block) {
  signals::publish_block([&] { store_system(exchange.flag(peer, round, call.rank, block), exchange.epoch()); });
}

// The same to all ranks.
KPROF_DEVICE void publish_to_all(const Call& call, const Exchange& exchange, uint32_t round) {
  signals::publish_block([&] {
    for (uint32_t distance = 1; distance < call.num_ranks(); ++distance)
      store_system(exchange.flag(call.rank_after(distance), round, call.rank, block_id()), exchange.epoch());
  });
}

// The block waits for what `source` put for block `block`.
KPROF_DEVICE bool await(const Call& call, const Exchange& exchange, uint32_t round, uint32_t source, uint32_t block,
                        uint32_t region) {
  const uint32_t* flag = exchange.flag(call.rank, round, source, block);
  return signals::wait_block([&] {
    return signals::poll([flag] { return load_system(flag); }, exchange.epoch(), call.limits(), {region, source, block});
  });
}

// The block waits for what all ranks put for it; all flags are asked for before the first is looked at.
template <uint32_t region>
KPROF_DEVICE bool await_all(const Call& call, const Exchange& exchange, uint32_t round, kprof::Span& span,
                            kprof::Track& track) {
  return signals::wait_block([&] {
    for (uint32_t begin = 0; begin < call.num_ranks(); begin += kAhead) {
      uint32_t ahead[kAhead];
      KPROF_UNROLL(kAhead)
      for (uint32_t k = 0; k < kAhead; ++k)
        if (begin + k < call.num_ranks())
          ahead[k] = load_system(exchange.flag(call.rank, round, begin + k, block_id()));
      KPROF_UNROLL(kAhead)
      for (uint32_t k = 0; k < kAhead; ++k) {
        const uint32_t source = begin + k;
        if (source >= call.num_ranks() || source == call.rank) continue;
        const uint32_t* flag = exchange.flag(call.rank, round, source, block_id());
        const auto read = [flag] { return load_system(flag); };
        if (ahead[k] < exchange.epoch() &&
            !signals::poll(read, exchange.epoch(), call.limits(), {region, source, block_id()}))
          return false;
        span = profile_lap(track, span, region, payload<region>(source, block_id()));
      }
    }
    return true;
  });
}

// Calls `work(i)` for the range, thread by thread.
template <typename Work>
KPROF_DEVICE void for_each_in(const Range& range, Work work) {
  KPROF_UNROLL(4)
  for (uint32_t i = range.begin + thread_id(); i < range.end; i += num_threads()) work(i);
}

// sum over ranks of vector `i`, the own one given, the others in slots of `stride` vectors.
template <typename Element>
KPROF_DEVICE Vec<Element> sum_of_slots(const Call& call, const Vec<Element>* slots, uint32_t stride, uint32_t i,
                                       const Vec<Element>& own) {
  Sum<Vec<Element>> sum;
  for (uint32_t begin = 0; begin < call.num_ranks(); begin += kAhead) {
    Vec<Element> ahead[kAhead];
    KPROF_UNROLL(kAhead)
    for (uint32_t k = 0; k < kAhead; ++k)
      if (begin + k < call.num_ranks() && begin + k != call.rank)
        ahead[k] = slots[static_cast<uint64_t>(begin + k) * stride + i];
    KPROF_UNROLL(kAhead)
    for (uint32_t k = 0; k < kAhead; ++k) {
      if (begin + k >= call.num_ranks()) continue;
      // A choice between the two references would put `ahead` into memory.
      if (begin + k == call.rank) {
        sum.add(own);
      } else {
        sum.add(ahead[k]);
      }
    }
  }
  return sum.rounded();
}

template <typename Element>
KPROF_DEVICE void twoshot_exchange(const Call& call, kprof::Track& track) {
  kprof::Span span = profile_start(track);
  const Exchange exchange(call);
  const auto input = call.input_as<Element, kVectorBytes>();
  const auto output = call.output_as<Element, kVectorBytes>();
  const uint32_t num_vectors = input.num_vectors();
  const uint32_t slice = slice_length(num_vectors, call.num_ranks());
  const Range share = share_of_block(slice);
  const uint32_t num_share_bytes = share.size() * kVectorBytes;
  const uint32_t results = call.num_ranks() * slice;
  // The part of the share that slice `owner` has: the last slices may be shorter.
  const auto share_of = [&](uint32_t owner) {
    const uint32_t first = owner * slice;
    const uint32_t length = first < num_vectors ? num_vectors - first : 0;
    return Range{share.begin, share.end < length ? share.end : (length < share.begin ? share.begin : length)};
  };
  for (uint32_t distance = 1; distance < call.num_ranks(); ++distance) {
    const uint32_t peer = call.rank_after(distance);
    Vec<Element>* target = exchange.bulk_of<Vec<Element>>(peer) + call.rank * slice;
    for_each_in(share_of(peer), [&](uint32_t i) { target[i] = input.load(peer * slice + i); });
    span = profile_lap(track, span, R_PUT, payload<R_PUT>(peer, block_id(), num_share_bytes));
  }
  publish_to_all(call, exchange, kSummands);
  span = profile_lap(track, span, R_PUBLISH, payload<R_PUBLISH>(num_share_bytes * (call.num_ranks() - 1)));
  if (!await_all<R_WAIT>(call, exchange, kSummands, span, track)) return;
  const Vec<Element>* slots = exchange.bulk_of<Vec<Element>>(call.rank);
  for_each_in(share_of(call.rank), [&](uint32_t i) {
    const uint32_t place = call.rank * slice + i;
    const Vec<Element> result = sum_of_slots<Element>(call, slots, slice, i, input.load(place));
    for (uint32_t distance = 1; distance < call.num_ranks(); ++distance)
      exchange.bulk_of<Vec<Element>>(call.rank_after(distance))[results + place] = result;
    output.store(place, result);
  });
  span = profile_lap(track, span, R_REDUCE, payload<R_REDUCE>(num_share_bytes));
  publish_to_all(call, exchange, kResults);
  for (uint32_t distance = 1; distance < call.num_ranks(); ++distance) {
    span = profile_lap(track, span, R_BROADCAST,
                       payload<R_BROADCAST>(call.rank_after(distance), block_id(), num_share_bytes));
  }
  if (!await_all<R_BROADCAST_WAIT>(call, exchange, kResults, span, track)) return;
  for (uint32_t distance = 1; distance < call.num_ranks(); ++distance) {
    const uint32_t first = call.rank_after(distance) * slice;
    for_each_in(share_of(call.rank_after(distance)),
                [&](uint32_t i) { output.store(first + i, slots[results + first + i]); });
  }
  profile_stop(track, span, R_COPY_OUT, payload<R_COPY_OUT>(num_share_bytes * (call.num_ranks() - 1)));
}

template <typename Element>
__global__ void twoshot(ProfiledCall call) {
  kprof::Track track = kprof::open_track(call, kprof::per_block);
  twoshot_exchange<Element>(call, track);
  launch_counter::finish(call.counter());
}

// ---- the ladder below -----------------------------------------------------------------------------------------------------

// Running sums of the whole tensor in the workspace. The first summand is stored, later ones are added.
template <typename Element>
class RunningSums {
 public:
  using Sums = Sum<Vec<Element>>;

  KPROF_DEVICE explicit RunningSums(const Call& call)
      : sums_(memory_layout::at<Sums>(call.workspace, call.local.sums)) {}

  KPROF_DEVICE void add(uint32_t i, const Vec<Element>& vector, bool is_first) const {
    Sums sum;
    if (!is_first) sum = sums_[i];
    sum.add(vector);
    sums_[i] = sum;
  }
  KPROF_DEVICE Vec<Element> rounded(uint32_t i) const { return sums_[i].rounded(); }

 private:
  Sums* sums_;
};

// The whole tensor goes to one rank's slot for us.
template <typename Element>
KPROF_DEVICE void put_whole(const Call& call, const Exchange& exchange, uint32_t peer) {
  const auto input = call.input_as<Element, kVectorBytes>();
  const uint32_t num_vectors = input.num_vectors();
  Vec<Element>* target = exchange.bulk_of<Vec<Element>>(peer) + static_cast<uint64_t>(call.rank) * num_vectors;
  for_each_in({0, num_vectors}, [&](uint32_t i) { target[i] = input.load(i); });
}

template <typename Element>
KPROF_DEVICE void add_whole(const Call& call, const Exchange& exchange, uint32_t source) {
  const auto input = call.input_as<Element, kVectorBytes>();
  const uint32_t num_vectors = input.num_vectors();
  const RunningSums<Element> sums(call);
  const Vec<Element>* slot = exchange.bulk_of<Vec<Element>>(call.rank) + static_cast<uint64_t>(source) * num_vectors;
  for_each_in({0, num_vectors},
              [&](uint32_t i) { sums.add(i, source == call.rank ? input.load(i) : slot[i], source == 0); });
}

template <typename Element>
KPROF_DEVICE void round_whole(const Call& call) {
  const auto output = call.output_as<Element, kVectorBytes>();
  const RunningSums<Element> sums(call);
  for_each_in({0, output.num_vectors()}, [&](uint32_t i) { output.store(i, sums.rounded(i)); });
}

template <typename Element>
KPROF_DEVICE void oneshot_serial_exchange(const Call& call, kprof::Track& track) {
  const uint32_t num_bytes = call.num_elements * static_cast<uint32_t>(sizeof(Element));
  kprof::Span span = profile_start(track);
  const Exchange exchange(call);
  for (uint32_t distance = 1; distance < call.num_ranks(); ++distance) {
    const uint32_t peer = call.rank_after(distance);
    put_whole<Element>(call, exchange, peer);
    span = profile_lap(track, span, R_PUT, payload<R_PUT>(peer, block_id(), num_bytes));
  }
  publish_to_all(call, exchange, kSummands);
  span = profile_lap(track, span, R_PUBLISH, payload<R_PUBLISH>(num_bytes * (call.num_ranks() - 1)));
  for (uint32_t source = 0; source < call.num_ranks(); ++source) {
    if (source != call.rank) {
      if (!await(call, exchange, kSummands, source, block_id(), R_WAIT)) return;
      span = profile_lap(track, span, R_WAIT, payload<R_WAIT>(source, block_id()));
    }
    add_whole<Element>(call, exchange, source);
    span = profile_lap(track, span, R_REDUCE, payload<R_REDUCE>(num_bytes));
  }
  round_whole<Element>(call);
  profile_stop(track, span, R_COPY_OUT, payload<R_COPY_OUT>(num_bytes));
}

// Only block 0 of a launch does anything.
template <typename Element>
__global__ void oneshot_serial(ProfiledCall call) {
  kprof::Track track = kprof::open_track(call, kprof::per_block);
  oneshot_serial_exchange<Element>(call, track);
  launch_counter::finish(call.counter());
}

// Block b serves rank b: sends to it, and adds what came from it when block b - 1 has left the lock.
template <typename Element>
KPROF_DEVICE void oneshot_lock_exchange(const Call& call, kprof::Track& track) {
  const uint32_t peer = block_id();
  const uint32_t num_bytes = call.num_elements * static_cast<uint32_t>(sizeof(Element));
  kprof::Span span = profile_start(track);
  const Exchange exchange(call);
  if (peer != call.rank) {
    put_whole<Element>(call, exchange, peer);
    publish(call, exchange, kSummands, peer, 0);
    span = profile_lap(track, span, R_PUT, payload<R_PUT>(peer, 0u, num_bytes));
    if (!await(call, exchange, kSummands, peer, 0, R_WAIT)) return;
    span = profile_lap(track, span, R_WAIT, payload<R_WAIT>(peer, 0u));
  }
  const bool is_mine = signals::wait_block([&] {
    const auto read = [&] { return load_system(call.turn(peer - 1)); };
    return peer == 0 || signals::poll(read, exchange.epoch(), call.limits(), {R_LOCK_ACQUIRE, call.rank, peer});
  });
  if (!is_mine) return;
  span = profile_lap(track, span, R_LOCK_ACQUIRE);
  add_whole<Element>(call, exchange, peer);
  signals::publish_block([&] { store_system(call.turn(peer), exchange.epoch()); });
  span = profile_lap(track, span, R_LOCK_HOLD, payload<R_LOCK_HOLD>(num_bytes));
  if (peer != call.num_ranks() - 1) return;
  round_whole<Element>(call);
  profile_stop(track, span, R_COPY_OUT, payload<R_COPY_OUT>(num_bytes));
}

template <typename Element>
__global__ void oneshot_lock(ProfiledCall call) {
  kprof::Track track = kprof::open_track(call, kprof::per_block);
  oneshot_lock_exchange<Element>(call, track);
  launch_counter::finish(call.counter());
}

// After the step of distance d a rank holds the tensors of itself and of the 2d - 1 ranks after it.
template <typename Element>
KPROF_DEVICE void oneshot_tree_exchange(const Call& call, kprof::Track& track) {
  kprof::Span span = profile_start(track);
  const Exchange exchange(call);
  const auto input = call.input_as<Element, kVectorBytes>();
  const auto output = call.output_as<Element, kVectorBytes>();
  const uint32_t num_vectors = input.num_vectors();
  const Range share = share_of_block(num_vectors);
  const uint32_t num_share_bytes = share.size() * kVectorBytes;
  const Vec<Element>* slots = exchange.bulk_of<Vec<Element>>(call.rank);
  for (uint32_t distance = 1; distance < call.num_ranks(); distance *= 2) {
    const uint32_t peer = call.rank_after(call.num_ranks() - distance);
    const uint32_t num_left = call.num_ranks() - distance;
    const uint32_t num_tensors = distance < num_left ? distance : num_left;
    Vec<Element>* targets = exchange.bulk_of<Vec<Element>>(peer);
    for (uint32_t k = 0; k < num_tensors; ++k) {
      const uint64_t slot = static_cast<uint64_t>(call.rank_after(k)) * num_vectors;
      for_each_in(share, [&](uint32_t i) { targets[slot + i] = k == 0 ? input.load(i) : slots[slot + i]; });
    }
    publish(call, exchange, kSummands, peer, block_id());
    span = profile_lap(track, span, R_TREE_PUT, payload<R_TREE_PUT>(peer, block_id(), num_tensors * num_share_bytes));
    const uint32_t source = call.rank_after(distance);
    if (!await(call, exchange, kSummands, source, block_id(), R_TREE_WAIT)) return;
    span = profile_lap(track, span, R_TREE_WAIT, payload<R_TREE_WAIT>(source, block_id()));
  }
  for_each_in(share, [&](uint32_t i) {
    output.store(i, sum_of_slots<Element>(call, slots, num_vectors, i, input.load(i)));
  });
  profile_stop(track, span, R_REDUCE, payload<R_REDUCE>(num_share_bytes));
}

template <typename Element>
__global__ void oneshot_tree(ProfiledCall call) {
  kprof::Track track = kprof::open_track(call, kprof::per_block);
  oneshot_tree_exchange<Element>(call, track);
  launch_counter::finish(call.counter());
}

// The heap holds fp32 sums of the whole tensor, and behind them its results.
template <typename Element>
KPROF_DEVICE void ring_exchange(const Call& call, kprof::Track& track) {
  using Sums = Sum<Vec<Element>>;
  kprof::Span span = profile_start(track);
  const Exchange exchange(call);
  const auto input = call.input_as<Element, kVectorBytes>();
  const auto output = call.output_as<Element, kVectorBytes>();
  const uint32_t num_vectors = input.num_vectors();
  const Range share = share_of_block(num_vectors);
  const uint32_t num_share_bytes = share.size() * kVectorBytes;
  const uint32_t next = call.rank_after(1);
  const uint32_t previous = call.rank_after(call.num_ranks() - 1);
  const bool is_last = call.rank == call.num_ranks() - 1;
  const Sums* sums = exchange.bulk_of<Sums>(call.rank);
  const Vec<Element>* results = reinterpret_cast<const Vec<Element>*>(sums + num_vectors);
  Sums* next_sums = exchange.bulk_of<Sums>(next);
  Vec<Element>* next_results = reinterpret_cast<Vec<Element>*>(next_sums + num_vectors);
  if (call.rank > 0) {
    if (!await(call, exchange, kSummands, previous, block_id(), R_WAIT)) return;
    span = profile_lap(track, span, R_WAIT, payload<R_WAIT>(previous, block_id()));
  }
  for_each_in(share, [&](uint32_t i) {
    Sums sum;
    if (call.rank > 0) sum = sums[i];
    sum.add(input.load(i));
    if (!is_last) {
      next_sums[i] = sum;
    } else {
      output.store(i, sum.rounded());
      if (call.num_ranks() > 1) next_results[i] = sum.rounded();
    }
  });
  if (call.num_ranks() == 1) return;
  publish(call, exchange, is_last ? kResults : kSummands, next, block_id());
  if (is_last) {
    profile_stop(track, span, R_BROADCAST, payload<R_BROADCAST>(next, block_id(), num_share_bytes));
    return;
  }
  span = profile_lap(track, span, R_PUT, payload<R_PUT>(next, block_id(), num_share_bytes));
  if (!await(call, exchange, kResults, previous, block_id(), R_BROADCAST_WAIT)) return;
  span = profile_lap(track, span, R_BROADCAST_WAIT, payload<R_BROADCAST_WAIT>(previous, block_id()));
  const bool passes_on = next != call.num_ranks() - 1;
  for_each_in(share, [&](uint32_t i) {
    const Vec<Element> result = results[i];
    if (passes_on) next_results[i] = result;
    output.store(i, result);
  });
  span = profile_lap(track, span, R_COPY_OUT, payload<R_COPY_OUT>(num_share_bytes));
  if (!passes_on) return;
  publish(call, exchange, kResults, next, block_id());
  profile_stop(track, span, R_BROADCAST, payload<R_BROADCAST>(next, block_id(), num_share_bytes));
}

template <typename Element>
__global__ void ring(ProfiledCall call) {
  kprof::Track track = kprof::open_track(call, kprof::per_block);
  ring_exchange<Element>(call, track);
  launch_counter::finish(call.counter());
}

// ---- what there is to launch ------------------------------------------------------------------------------------------------

// The grid that a variant is made for; 0: any.
enum GridRule : uint32_t { kAnyGrid = 0, kOneBlock = 1, kBlockPerRank = 2 };

struct Traits {
  Division division;
  GridRule grid_rule;
};

#define ALL_REDUCE_VARIANT(function)                                                                 \
  {#function "/fp16", 1, {{"all_reduce/" #function, function<Half>}}},                               \
      {#function "/bf16", 1, {{"all_reduce/" #function, function<BFloat16>}}}, {                     \
    #function "/fp32", 1, { { "all_reduce/" #function, function<float> } }                           \
  }

constexpr variants::Variant<Call> kVariants[] = {
    ALL_REDUCE_VARIANT(oneshot_serial), ALL_REDUCE_VARIANT(oneshot_lock),    ALL_REDUCE_VARIANT(oneshot_tree),
    ALL_REDUCE_VARIANT(oneshot),        ALL_REDUCE_VARIANT(twoshot_packets), ALL_REDUCE_VARIANT(twoshot),
    ALL_REDUCE_VARIANT(ring),
};

// In the order of kVariants, one for the three element types of each.
constexpr Traits kTraits[] = {
    {Division::kBulkPerSource, kOneBlock},    {Division::kBulkPerSource, kBlockPerRank},
    {Division::kBulkPerSource, kAnyGrid},     {Division::kPacketsPerSource, kAnyGrid},
    {Division::kPacketsPerSlice, kAnyGrid},   {Division::kBulkPerSlice, kAnyGrid},
    {Division::kSumsAndResults, kAnyGrid},
};

}  // namespace all_reduce

#define KERNEL_NAMESPACE all_reduce
#include "launch_interface.h"

using all_reduce::Shape;

extern "C" uint64_t all_reduce_heap_bytes(const Shape* shape) { return all_reduce::HeapLayout(*shape).end.bytes(); }
extern "C" uint64_t all_reduce_workspace_bytes(const Shape* shape) {
  return all_reduce::WorkspaceLayout(*shape).end.bytes();
}
// The most elements that one launch of a variant takes.
extern "C" uint64_t all_reduce_capacity(const Shape* shape, int variant) {
  const uint64_t element_bytes = variant % 3 == 2 ? sizeof(float) : sizeof(uint16_t);
  return all_reduce::capacity(*shape, all_reduce::kTraits[variant / 3].division, element_bytes);
}
extern "C" uint32_t all_reduce_grid_rule(int variant) { return all_reduce::kTraits[variant / 3].grid_rule; }
