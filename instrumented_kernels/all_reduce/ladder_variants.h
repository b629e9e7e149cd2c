// The first steps of the ladder: oneshot_serial, oneshot_lock and oneshot_tree.
#pragma once

#include "bulk_variants.h"

namespace all_reduce {

// Running sums of the whole tensor, in the workspace. The first summand is stored, later ones are added.
template <typename Element>
class RunningSums {
 public:
  using Sums = Sum<Vec<Element>>;

  KPROF_DEVICE explicit RunningSums(const Call& call) : sums_(call.in_workspace<Sums>(call.local.sums)) {}

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

// Puts the whole tensor into our slot on one rank.
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
KPROF_DEVICE void oneshot_serial_exchange(const ProfiledCall& call, kprof::Track& track) {
  [[maybe_unused]] const auto num_bytes = [&] { return call.num_elements * static_cast<uint32_t>(sizeof(Element)); };
  [[maybe_unused]] const auto num_published_bytes = [&] { return num_bytes() * (call.num_ranks() - 1); };
  kprof::Span span = profile_start(track);
  const Exchange exchange(call);
  for (uint32_t distance = 1; distance < call.num_ranks(); ++distance) {
    const uint32_t peer = call.rank_after(distance);
    put_whole<Element>(call, exchange, peer);
    span = profile_lap(track, span, R_PUT, payload<R_PUT>(peer, block_id(), num_bytes));
  }
  publish_to_all(call, exchange, kSummands);
  span = profile_lap(track, span, R_PUBLISH, payload<R_PUBLISH>(num_published_bytes));
  for (uint32_t source = 0; source < call.num_ranks(); ++source) {
    if (source != call.rank) {
      if (!await<R_WAIT>(call, exchange, kSummands, source, block_id(), span, track)) return;
    }
    add_whole<Element>(call, exchange, source);
    span = profile_lap(track, span, R_REDUCE, payload<R_REDUCE>(num_bytes));
  }
  round_whole<Element>(call);
  profile_stop(track, span, R_COPY_OUT, payload<R_COPY_OUT>(num_bytes));
}

// Only block 0 works.
ALL_REDUCE_KERNEL(oneshot_serial)

// Block b serves rank b: sends to it, and adds its data after block b - 1 has left the lock.
template <typename Element>
KPROF_DEVICE void oneshot_lock_exchange(const ProfiledCall& call, kprof::Track& track) {
  const uint32_t peer = block_id();
  [[maybe_unused]] const auto num_bytes = [&] { return call.num_elements * static_cast<uint32_t>(sizeof(Element)); };
  kprof::Span span = profile_start(track);
  const Exchange exchange(call);
  if (peer != call.rank) {
    put_whole<Element>(call, exchange, peer);
    publish(call, exchange, kSummands, peer, 0);
    span = profile_lap(track, span, R_PUT, payload<R_PUT>(peer, 0u, num_bytes));
    if (!await<R_WAIT>(call, exchange, kSummands, peer, 0, span, track)) return;
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

ALL_REDUCE_KERNEL(oneshot_lock)

// After the step with distance d a rank has its own tensor and those of the 2d - 1 ranks after it.
template <typename Element>
KPROF_DEVICE void oneshot_tree_exchange(const ProfiledCall& call, kprof::Track& track) {
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
    if (!await<R_TREE_WAIT>(call, exchange, kSummands, source, block_id(), span, track)) return;
  }
  for_each_in(share,
              [&](uint32_t i) { output.store(i, sum_of_slots<Element>(call, slots, num_vectors, i, input.load(i))); });
  profile_stop(track, span, R_REDUCE, payload<R_REDUCE>(num_share_bytes));
}

ALL_REDUCE_KERNEL(oneshot_tree)

}  // namespace all_reduce
