// Rows of 16-bit floats, moved and combined by one warp: 16 bytes a lane where addresses allow, then single elements.
#pragma once

#include <kprof/platform.h>

namespace rows {

using namespace kprof::platform;

constexpr uint32_t kVectorHalves = 8;

struct alignas(16) HalfVector {
  uint16_t values[kVectorHalves];
};

KPROF_DEVICE bool is_aligned(const void* address) { return (reinterpret_cast<uintptr_t>(address) & 15u) == 0; }

// Elements of a row that can be moved as vectors; the rest goes one by one.
KPROF_DEVICE uint32_t vector_part(const void* a, const void* b, uint32_t num_halves) {
  return is_aligned(a) && is_aligned(b) ? num_halves - num_halves % kVectorHalves : 0;
}

KPROF_DEVICE void copy(uint16_t* target, const uint16_t* source, uint32_t num_halves) {
  const uint32_t vectors_end = vector_part(target, source, num_halves);
  for (uint32_t i = lane_id() * kVectorHalves; i < vectors_end; i += warp_width() * kVectorHalves)
    *reinterpret_cast<HalfVector*>(target + i) = *reinterpret_cast<const HalfVector*>(source + i);
  for (uint32_t i = vectors_end + lane_id(); i < num_halves; i += warp_width()) target[i] = source[i];
}

KPROF_DEVICE uint16_t scaled(uint16_t value, float factor) { return float_to_half(half_to_float(value) * factor); }

// target = half(source * factor); target may be source.
KPROF_DEVICE void scale(uint16_t* target, const uint16_t* source, uint32_t num_halves, float factor) {
  const uint32_t vectors_end = vector_part(target, source, num_halves);
  for (uint32_t i = lane_id() * kVectorHalves; i < vectors_end; i += warp_width() * kVectorHalves) {
    HalfVector vector = *reinterpret_cast<const HalfVector*>(source + i);
    for (uint32_t j = 0; j < kVectorHalves; ++j) vector.values[j] = scaled(vector.values[j], factor);
    *reinterpret_cast<HalfVector*>(target + i) = vector;
  }
  for (uint32_t i = vectors_end + lane_id(); i < num_halves; i += warp_width())
    target[i] = scaled(source[i], factor);
}

// target = half(sum over k of weights[k] * source row k), accumulated in fp32 in the order of k, rounded once.
// `row(k)` gives the address of source row k. D is walked in vectors, so registers do not grow with it.
template <typename Row>
KPROF_DEVICE void weighted_sum(uint16_t* target, Row row, const float* weights, uint32_t num_rows,
                               uint32_t num_halves) {
  const uint32_t vectors_end = vector_part(target, row(0), num_halves);
  for (uint32_t i = lane_id() * kVectorHalves; i < vectors_end; i += warp_width() * kVectorHalves) {
    float sums[kVectorHalves] = {};
    for (uint32_t k = 0; k < num_rows; ++k) {
      const HalfVector vector = *reinterpret_cast<const HalfVector*>(row(k) + i);
      for (uint32_t j = 0; j < kVectorHalves; ++j) sums[j] += weights[k] * half_to_float(vector.values[j]);
    }
    HalfVector result;
    for (uint32_t j = 0; j < kVectorHalves; ++j) result.values[j] = float_to_half(sums[j]);
    *reinterpret_cast<HalfVector*>(target + i) = result;
  }
  for (uint32_t i = vectors_end + lane_id(); i < num_halves; i += warp_width()) {
    float sum = 0.0f;
    for (uint32_t k = 0; k < num_rows; ++k) sum += weights[k] * half_to_float(row(k)[i]);
    target[i] = float_to_half(sum);
  }
}

}  // namespace rows
