// Warps with roles: producers load weights, others load tokens, consumers multiply. A queue in shared memory connects
// them. A slot of the queue has a chunk of the depth: weights of 16 rows, and tokens.
//
//   full flags    of weights and of tokens: the turn for which the slot was filled, plus one
//   empty flag    how often the slot has been emptied
//
// For shapes that are multiples of 16-byte vectors. A producer's lane loads what the same lane of the consumer needs,
// so a slot is a copy of registers, without bank conflicts.
#pragma once

#include "call.h"

namespace skinny_gemm {

constexpr uint32_t kChunkTiles = 4;
constexpr uint32_t kMostSlots = 8;
constexpr uint32_t kMostConsumers = 4;
constexpr uint32_t kQueueThreads = 512;

// As many slots as fit into 48 KiB of shared memory together with the sums.
template <uint32_t max_tokens>
constexpr uint32_t kSlots = max_tokens <= 8    ? 6
                            : max_tokens <= 16 ? 4
                                               : 3;

template <uint32_t max_tokens>
struct Queue {
  using Product = Fp8Product<max_tokens>;

  Quad* weights;  // [slots][tiles][quads][lanes]
  Quad* tokens;   // [slots][tiles][token tiles][lanes]
  uint32_t* full_of_weights;
  uint32_t* full_of_tokens;
  uint32_t* emptied;
  uint32_t num_slots;

  KPROF_DEVICE uint32_t slot(uint32_t chunk) const { return chunk % num_slots; }
  KPROF_DEVICE uint32_t turn(uint32_t chunk) const { return chunk / num_slots; }
  KPROF_DEVICE Quad* weights_of(uint32_t chunk) const {
    return weights + slot(chunk) * kChunkTiles * kWeightQuads * warp_width() + lane_id();
  }
  KPROF_DEVICE Quad* tokens_of(uint32_t chunk) const {
    return tokens + slot(chunk) * kChunkTiles * Product::kTiles * warp_width() + lane_id();
  }
};

// The warp waits until a flag reaches `value`. A warp of this block sets it, so the wait ends.
KPROF_DEVICE void await_flag(const uint32_t* flag, uint32_t value) {
  if (lane_id() == 0)
    while (load_flag_shared(flag) < value) pause();
  sync_warp();
}
// Orders the warp's stores and loads before the flag.
KPROF_DEVICE void set_flag(uint32_t* flag, uint32_t value) {
  sync_warp();
  if (lane_id() == 0) store_flag_shared(flag, value);
}

template <uint32_t max_tokens>
KPROF_DEVICE void produce_weights(const Call& call, const Queue<max_tokens>& queue, uint32_t producer,
                                  uint32_t num_chunks, kprof::Track& track) {
  kprof::Span span = profile_start(track);
  KPROF_UNROLL(1)
  for (uint32_t chunk = producer; chunk < num_chunks; chunk += call.num_producers) {
    Chunk<Fp8Product<max_tokens>, kChunkTiles> loaded;
    loaded.template load_weights<true>(call, block_id() * kTileRows, chunk * kChunkTiles);
    await_flag(queue.emptied + queue.slot(chunk), queue.turn(chunk));
    if (chunk >= queue.num_slots)
      span = profile_lap(track, span, R_WAIT_WEIGHT_SLOT, payload<R_WAIT_WEIGHT_SLOT>(chunk - queue.num_slots));
    Quad* slot = queue.weights_of(chunk);
    for (uint32_t j = 0; j < kChunkTiles; ++j)
      for (uint32_t q = 0; q < kWeightQuads; ++q) slot[(j * kWeightQuads + q) * warp_width()] = loaded.weights[j][q];
    set_flag(queue.full_of_weights + queue.slot(chunk), queue.turn(chunk) + 1);
    span = profile_lap(track, span, R_LOAD_WEIGHTS, payload<R_LOAD_WEIGHTS>(chunk));
  }
}

template <uint32_t max_tokens>
KPROF_DEVICE void produce_tokens(const Call& call, const Queue<max_tokens>& queue, uint32_t producer,
                                 uint32_t num_chunks, kprof::Track& track) {
  constexpr uint32_t kTiles = Fp8Product<max_tokens>::kTiles;
  kprof::Span span = profile_start(track);
  KPROF_UNROLL(1)
  for (uint32_t chunk = producer; chunk < num_chunks; chunk += call.num_token_producers) {
    Chunk<Fp8Product<max_tokens>, kChunkTiles> loaded;
    loaded.template load_tokens<true>(call, chunk * kChunkTiles);
    await_flag(queue.emptied + queue.slot(chunk), queue.turn(chunk));
    if (chunk >= queue.num_slots)
      span = profile_lap(track, span, R_WAIT_TOKEN_SLOT, payload<R_WAIT_TOKEN_SLOT>(chunk - queue.num_slots));
    Quad* slot = queue.tokens_of(chunk);
    for (uint32_t j = 0; j < kChunkTiles; ++j)
      for (uint32_t t = 0; t < kTiles; ++t) slot[(j * kTiles + t) * warp_width()] = loaded.tokens[j][t];
    set_flag(queue.full_of_tokens + queue.slot(chunk), queue.turn(chunk) + 1);
    span = profile_lap(track, span, R_LOAD_TOKENS, payload<R_LOAD_TOKENS>(chunk));
  }
}

template <uint32_t max_tokens>
KPROF_DEVICE void consume(const Queue<max_tokens>& queue, Results<Fp8Product<max_tokens>>& results, uint32_t consumer,
                          uint32_t num_consumers, uint32_t num_chunks, kprof::Track& track) {
  constexpr uint32_t kTiles = Fp8Product<max_tokens>::kTiles;
  kprof::Span span = profile_start(track);
  KPROF_UNROLL(1)
  for (uint32_t chunk = consumer; chunk < num_chunks; chunk += num_consumers) {
    const uint32_t slot = queue.slot(chunk), filled = queue.turn(chunk) + 1;
    await_flag(queue.full_of_tokens + slot, filled);
    span = profile_lap(track, span, R_WAIT_TOKENS, payload<R_WAIT_TOKENS>(chunk));
    await_flag(queue.full_of_weights + slot, filled);
    span = profile_lap(track, span, R_WAIT_WEIGHTS, payload<R_WAIT_WEIGHTS>(chunk));
    for (uint32_t j = 0; j < kChunkTiles; ++j) {
      Chunk<Fp8Product<max_tokens>, 1> held;
      for (uint32_t q = 0; q < kWeightQuads; ++q)
        held.weights[0][q] = queue.weights_of(chunk)[(j * kWeightQuads + q) * warp_width()];
      for (uint32_t t = 0; t < kTiles; ++t) held.tokens[0][t] = queue.tokens_of(chunk)[(j * kTiles + t) * warp_width()];
      results.add(held);
    }
    set_flag(queue.emptied + slot, filled);
    span = profile_lap(track, span, R_CONSUME, payload<R_CONSUME>(chunk));
  }
}

// Warps of a block that are not producers.
KPROF_DEVICE uint32_t num_consumers_of(const Call& call) {
  return num_threads() / warp_width() - call.num_producers - call.num_token_producers;
}

template <uint32_t max_tokens>
KPROF_DEVICE void play_role(const Call& call, const Queue<max_tokens>& queue, Results<Fp8Product<max_tokens>>& results,
                            kprof::Track& track) {
  const uint32_t warp = warp_id(), num_consumers = num_consumers_of(call);
  const uint32_t num_loading_tokens = num_consumers + call.num_token_producers;
  const uint32_t num_chunks = (call.num_tiles() + kChunkTiles - 1) / kChunkTiles;
  if (warp < num_consumers) {
    consume(queue, results, warp, num_consumers, num_chunks, track);
  } else if (warp < num_loading_tokens) {
    produce_tokens<max_tokens>(call, queue, warp - num_consumers, num_chunks, track);
  } else {
    produce_weights<max_tokens>(call, queue, warp - num_loading_tokens, num_chunks, track);
  }
}

template <uint32_t max_tokens>
__global__ void KPROF_LAUNCH_BOUNDS(kQueueThreads) specialised(ProfiledCall call) {
  using Product = Fp8Product<max_tokens>;
  KPROF_SHARED(Quad, weights, kSlots<max_tokens> * kChunkTiles * kTileRows * kTileDepth / 16);
  KPROF_SHARED(Quad, tokens, kSlots<max_tokens> * kChunkTiles * Product::kTiles * Product::kLanes);
  KPROF_SHARED(uint32_t, flags, 3 * kMostSlots);
  KPROF_SHARED(float, sums, kMostConsumers* max_tokens* kTileRows);
  kprof::Track track = kprof::open_track(call, kprof::per_warp);
  if (thread_id() < 3 * kMostSlots) flags[thread_id()] = 0;
  sync_block();
  const Queue<max_tokens> queue{weights, tokens, flags, flags + kMostSlots, flags + 2 * kMostSlots, call.num_slots};
  Results<Fp8Product<max_tokens>> results;
  play_role(call, queue, results, track);
  const kprof::Span span = profile_start(track);
  reduce_and_store<max_tokens>(call, results, sums, warp_id(), num_consumers_of(call), block_id() * kTileRows);
  profile_stop(track, span, R_REDUCE);
}

}  // namespace skinny_gemm
