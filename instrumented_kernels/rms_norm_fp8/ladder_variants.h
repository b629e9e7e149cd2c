// The first steps of the ladder, one block per row: element by element, in vectors, with the row in shared memory.
#pragma once

#include "call.h"

namespace rms_norm_fp8 {

template <typename Element>
__global__ void KPROF_LAUNCH_BOUNDS(kMaxThreads) pointwise(ProfiledCall call) {
  KPROF_SHARED(float, sums, block_sums::kMaxWarps);
  kprof::Track track = kprof::open_track(call, kprof::per_block);
  kprof::Span span = profile_start(track);
  const uint32_t row = block_id(), length = call.shape.row_length;
  const Element* x = call.row_of<Element>(call.x, row);
  const Element* residual = call.row_of<Element>(call.residual, row);
  Element* sum = call.sum_row<Element>(row);
  float squares = 0.0f;
  for (uint32_t i = thread_id(); i < length; i += num_threads()) {
    const Element value = added(x[i], residual[i]);
    sum[i] = value;
    squares += to_float(value) * to_float(value);
  }
  span = profile_lap(track, span, R_ADD, payload<R_ADD>(row));
  const float factor = call.factor(block_sums::team_sum(squares, num_threads() / warp_width(), sums));
  span = profile_lap(track, span, R_REDUCE);
  const Element* weight = call.row_of<Element>(call.weight, 0);
  uint8_t* y = call.y_row(row);
  for (uint32_t i = thread_id(); i < length; i += num_threads())
    y[i] = float_to_fp8(to_float(sum[i]) * factor * to_float(weight[i]));
  profile_stop(track, span, R_NORMALISE, payload<R_NORMALISE>(row));
}

// The row in vectors. The stored row is loaded again, or taken from `kept` if there is one.
template <typename Element, bool is_whole>
KPROF_DEVICE void normalise_vectors(const Call& call, kprof::Track& track, float* sums, Quad* kept) {
  kprof::Span span = profile_start(track);
  const uint32_t row = block_id(), length = call.shape.row_length;
  const Row<const Element, is_whole> x(call.row_of<Element>(call.x, row), length);
  const Row<const Element, is_whole> residual(call.row_of<Element>(call.residual, row), length);
  const Row<Element, is_whole> sum(call.sum_row<Element>(row), length);
  float squares = 0.0f;
  for (uint32_t i = thread_id(); i < x.num_vectors(); i += num_threads()) {
    const Quad vector = added<Element>(x.load(i), residual.load(i));
    sum.store(i, vector);
    if (kept != nullptr) kept[i] = vector;
    squares += sum_of_squares<Element>(vector);
  }
  span = profile_lap(track, span, R_ADD, payload<R_ADD>(row));
  const float factor = call.factor(block_sums::team_sum(squares, num_threads() / warp_width(), sums));
  span = profile_lap(track, span, R_REDUCE);
  const Row<const Element, is_whole> weight(call.row_of<Element>(call.weight, 0), length);
  for (uint32_t i = thread_id(); i < x.num_vectors(); i += num_threads()) {
    const Quad vector = kept != nullptr ? kept[i] : sum.load(i);
    fp8_rows::store<is_whole>(call.y_row(row), length, i, normalised<Element>(vector, weight.load(i), factor));
  }
  profile_stop(track, span, R_NORMALISE, payload<R_NORMALISE>(row));
}

template <typename Element>
__global__ void KPROF_LAUNCH_BOUNDS(kMaxThreads) vectors(ProfiledCall call) {
  KPROF_SHARED(float, sums, block_sums::kMaxWarps);
  kprof::Track track = kprof::open_track(call, kprof::per_block);
  Quad* nothing = nullptr;
  if (call.is_whole != 0) {
    normalise_vectors<Element, true>(call, track, sums, nothing);
  } else {
    normalise_vectors<Element, false>(call, track, sums, nothing);
  }
}

// Rows of up to kKeptElements.
template <typename Element>
__global__ void KPROF_LAUNCH_BOUNDS(kMaxThreads) shared(ProfiledCall call) {
  KPROF_SHARED(float, sums, block_sums::kMaxWarps);
  KPROF_SHARED(Quad, kept, kKeptElements / kLength);
  kprof::Track track = kprof::open_track(call, kprof::per_block);
  if (call.is_whole != 0) {
    normalise_vectors<Element, true>(call, track, sums, kept);
  } else {
    normalise_vectors<Element, false>(call, track, sums, kept);
  }
}

}  // namespace rms_norm_fp8
