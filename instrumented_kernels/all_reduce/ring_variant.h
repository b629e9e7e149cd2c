// The ring: fp32 sums travel from rank 0 to the last rank, and results continue from there.
#pragma once

#include "bulk_variants.h"

namespace all_reduce {

// The heap has fp32 sums of the whole tensor, followed by its results.
template <typename Element>
KPROF_DEVICE void ring_exchange(const ProfiledCall& call, kprof::Track& track) {
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
    if (!await<R_WAIT>(call, exchange, kSummands, previous, block_id(), span, track)) return;
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
  if (!await<R_BROADCAST_WAIT>(call, exchange, kResults, previous, block_id(), span, track)) return;
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

ALL_REDUCE_KERNEL(ring)

}  // namespace all_reduce
