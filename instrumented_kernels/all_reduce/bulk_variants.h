// Variants in which whole blocks move vectors and announce them with flags: shared code, and twoshot.
#pragma once

#include "call.h"

namespace all_reduce {

template <typename Element>
using Vec = Vector<Element, kVectorBytes>;

// The kernel that runs `name_exchange`, and then counts the launch.
#define ALL_REDUCE_KERNEL(name)                                     \
  template <typename Element>                                       \
  __global__ void name(ProfiledCall call) {                         \
    kprof::Track track = kprof::open_track(call, kprof::per_block); \
    name##_exchange<Element>(call, track);                          \
    launch_counter::finish(call.counter());                         \
  }

constexpr uint32_t kSummands = 0;  // rounds of flags
constexpr uint32_t kResults = 1;

// Signals `peer` that everything this block has put for it so far has arrived.
KPROF_DEVICE void publish(const Call& call, const Exchange& exchange, uint32_t round, uint32_t peer, uint32_t block) {
  signals::publish_block([&] { store_system(exchange.flag(peer, round, call.rank, block), exchange.epoch()); });
}

// The same for all ranks.
KPROF_DEVICE void publish_to_all(const Call& call, const Exchange& exchange, uint32_t round) {
  signals::publish_block([&] {
    for (uint32_t distance = 1; distance < call.num_ranks(); ++distance)
      store_system(exchange.flag(call.rank_after(distance), round, call.rank, block_id()), exchange.epoch());
  });
}

// The block waits for the data that `source` put for block `block`, and records the wait. False after a timeout.
template <uint32_t region>
KPROF_DEVICE bool await(const ProfiledCall& call, const Exchange& exchange, uint32_t round, uint32_t source,
                        uint32_t block, kprof::Span& span, kprof::Track& track) {
  const uint32_t* flag = exchange.flag(call.rank, round, source, block);
  const bool has_come = signals::wait_block([&] {
    return signals::poll([flag] { return load_system(flag); }, exchange.epoch(), call.limits(),
                         {region, source, block});
  });
  if (!has_come) return false;
  span = profile_lap(track, span, region, payload<region>(source, block));
  return true;
}

// The block waits for the data of all ranks. All flags are loaded before the first is checked.
template <uint32_t region>
KPROF_DEVICE bool await_all(const ProfiledCall& call, const Exchange& exchange, uint32_t round, kprof::Span& span,
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

// The sum over ranks of vector `i`. This rank's vector is `own`; the others are in slots of `stride` vectors.
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
      // Selecting between the two references would move `ahead` to memory.
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
KPROF_DEVICE void twoshot_exchange(const ProfiledCall& call, kprof::Track& track) {
  kprof::Span span = profile_start(track);
  const Exchange exchange(call);
  const auto input = call.input_as<Element, kVectorBytes>();
  const auto output = call.output_as<Element, kVectorBytes>();
  const uint32_t num_vectors = input.num_vectors();
  const uint32_t slice = slice_length(num_vectors, call.num_ranks());
  const Range share = share_of_block(slice);
  const uint32_t num_share_bytes = share.size() * kVectorBytes;
  const uint32_t results = call.num_ranks() * slice;
  // The part of the share that lies in slice `owner`. The last slices may be shorter.
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
  // All were signalled at the same moment, so the sends have the same start.
  for (uint32_t distance = 1; distance < call.num_ranks(); ++distance) {
    profile_stop(track, span, R_BROADCAST,
                 payload<R_BROADCAST>(call.rank_after(distance), block_id(), num_share_bytes));
  }
  span = profile_start(track);
  if (!await_all<R_BROADCAST_WAIT>(call, exchange, kResults, span, track)) return;
  for (uint32_t distance = 1; distance < call.num_ranks(); ++distance) {
    const uint32_t first = call.rank_after(distance) * slice;
    for_each_in(share_of(call.rank_after(distance)),
                [&](uint32_t i) { output.store(first + i, slots[results + first + i]); });
  }
  profile_stop(track, span, R_COPY_OUT, payload<R_COPY_OUT>(num_share_bytes * (call.num_ranks() - 1)));
}

ALL_REDUCE_KERNEL(twoshot)

}  // namespace all_reduce
