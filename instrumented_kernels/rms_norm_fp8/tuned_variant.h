// The last step: the row stays in registers, and all its loads are in flight before a thread waits. A team of warps
// handles a row, and a block has as many teams as fit, so that short rows fill a block.
#pragma once

#include "call.h"

namespace rms_norm_fp8 {

// When to load the weights. With few rows: together with the row, because nothing else hides the memory latency. With
// many: after the row has arrived, into registers that are then free, so that two blocks fit a processor.
enum class Weights { kWithRow, kAfterRow };

// `num_held`: vectors per thread.
template <typename Element, uint32_t num_held, Weights when, bool is_whole>
KPROF_DEVICE void normalise_in_registers(const Call& call, kprof::Track& track, float* sums) {
  kprof::Span span = profile_start(track);
  const uint32_t team_threads = call.team_warps * warp_width();
  const uint32_t num_teams = num_threads() / team_threads, place = thread_id() % team_threads;
  const uint32_t wanted_row = block_id() * num_teams + thread_id() / team_threads;
  // Teams without a row keep going, because the block has barriers.
  const bool has_row = wanted_row < call.shape.num_rows;
  const uint32_t row = has_row ? wanted_row : 0, length = call.shape.row_length;
  const Row<const Element, is_whole> x(call.row_of<Element>(call.x, row), length);
  const Row<const Element, is_whole> residual(call.row_of<Element>(call.residual, row), length);
  const Row<const Element, is_whole> weight(call.row_of<Element>(call.weight, 0), length);
  const uint32_t num_vectors = has_row ? x.num_vectors() : 0;
  Quad held[num_held], others[num_held], weights[num_held];
  for (uint32_t j = 0; j < num_held; ++j) {
    const uint32_t i = place + j * team_threads;
    if (i >= num_vectors) continue;
    held[j] = x.load(i);
    others[j] = residual.load(i);
  }
  const auto load_weights = [&] {
    for (uint32_t j = 0; j < num_held; ++j)
      if (place + j * team_threads < num_vectors) weights[j] = weight.load(place + j * team_threads);
  };
  if (when == Weights::kWithRow) load_weights();
  const Row<Element, is_whole> sum(call.sum_row<Element>(row), length);
  float squares = 0.0f;
  for (uint32_t j = 0; j < num_held; ++j) {
    const uint32_t i = place + j * team_threads;
    if (i >= num_vectors) continue;
    held[j] = added<Element>(held[j], others[j]);
    sum.store(i, held[j]);
    squares += sum_of_squares<Element>(held[j]);
  }
  if (when == Weights::kAfterRow) load_weights();
  span = profile_lap(track, span, R_ADD, payload<R_ADD>(row));
  const float factor = call.factor(block_sums::team_sum(squares, call.team_warps, sums));
  span = profile_lap(track, span, R_REDUCE);
  for (uint32_t j = 0; j < num_held; ++j) {
    const uint32_t i = place + j * team_threads;
    if (i < num_vectors)
      fp8_rows::store<is_whole>(call.y_row(row), length, i, normalised<Element>(held[j], weights[j], factor));
  }
  profile_stop(track, span, R_NORMALISE, payload<R_NORMALISE>(row));
}

template <typename Element, uint32_t num_held, Weights when>
__global__ void KPROF_BLOCKS_PER_PROCESSOR(kMaxThreads, when == Weights::kAfterRow ? 2 : 1) tuned(ProfiledCall call) {
  KPROF_SHARED(float, sums, block_sums::kMaxWarps);
  kprof::Track track = kprof::open_track(call, kprof::per_block);
  // Rows that cannot move as vectors use the kernels for few rows.
  if (when == Weights::kAfterRow || call.is_whole != 0) {
    normalise_in_registers<Element, num_held, when, true>(call, track, sums);
  } else {
    normalise_in_registers<Element, num_held, when, false>(call, track, sums);
  }
}

KPROF_DEVICE void record_row(const ProfiledCall& call, const kprof::ShortTrack& early, bool is_open,
                             const kprof::Span& begun, const kprof::Span& added, const kprof::Span& reduced) {
#if KPROF_ENABLED
  const kprof::Span done = kprof::profile_now(call, R_NORMALISE);
  const kprof::ShortTrack track = is_open ? early : kprof::open_short_track(call, 3);
  if (!kprof::is_writer(track)) return;
  const uint32_t row = block_id();
  kprof::profile_at(track, 0, begun, kprof::ticks_between(begun, added), R_ADD, payload<R_ADD>(row));
  kprof::profile_at(track, 1, added, kprof::ticks_between(added, reduced), R_REDUCE);
  kprof::profile_at(track, 2, reduced, kprof::ticks_between(reduced, done), R_NORMALISE, payload<R_NORMALISE>(row));
#endif
}

// A row per block, of exactly kWholeVectors vectors per thread. `blocks`: how many fit a processor.
template <typename Element, uint32_t blocks>
__global__ void KPROF_BLOCKS_PER_PROCESSOR(kMaxThreads, blocks) whole_row(ProfiledCall call) {
  KPROF_SHARED(float, sums, block_sums::kMaxWarps);
  let_next_launch_begin();
  // With few rows, the launch before hides what it takes to open a track, mostly the fetch of the code. With many, the
  // block needs all registers until its row is done.
  constexpr bool kOpensEarly = blocks == 1;
  const kprof::ShortTrack track = kOpensEarly ? kprof::open_short_track(call, 3) : kprof::ShortTrack{};
  await_launch_before();
  const kprof::Span begun = kprof::profile_now();
  const Quad* x = reinterpret_cast<const Quad*>(call.row_of<Element>(call.x, block_id())) + thread_id();
  const Quad* residual = reinterpret_cast<const Quad*>(call.row_of<Element>(call.residual, block_id())) + thread_id();
  Quad* sum = reinterpret_cast<Quad*>(call.sum_row<Element>(block_id())) + thread_id();
  Quad held[kWholeVectors], others[kWholeVectors];
  for (uint32_t j = 0; j < kWholeVectors; ++j) held[j] = x[j * num_threads()];
  for (uint32_t j = 0; j < kWholeVectors; ++j) others[j] = residual[j * num_threads()];
  float squares = 0.0f;
  for (uint32_t j = 0; j < kWholeVectors; ++j) {
    held[j] = added<Element>(held[j], others[j]);
    sum[j * num_threads()] = held[j];
    squares += sum_of_squares<Element>(held[j]);
  }
  // The weights, on their way while the block adds up.
  const Quad* weight = static_cast<const Quad*>(call.weight) + thread_id();
  for (uint32_t j = 0; j < kWholeVectors; ++j) others[j] = weight[j * num_threads()];
  const kprof::Span summed = kprof::profile_now(call, R_ADD);
  const float factor = call.factor(block_sums::team_sum(squares, num_threads() / warp_width(), sums));
  const kprof::Span reduced = kprof::profile_now(call, R_REDUCE);
  Fp8Vec* y = reinterpret_cast<Fp8Vec*>(call.y_row(block_id())) + thread_id();
  for (uint32_t j = 0; j < kWholeVectors; ++j) y[j * num_threads()] = normalised<Element>(held[j], others[j], factor);
  record_row(call, track, kOpensEarly, begun, summed, reduced);
}

}  // namespace rms_norm_fp8
