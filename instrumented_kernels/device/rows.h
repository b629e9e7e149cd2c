// One warp moves and combines rows of 16-bit floats: 16 bytes per lane where addresses allow, then single elements.
//
// A lane has kBatch loads in flight before it stores the first. With one load at a time a row of 14 KiB costs 28 times
// the memory latency, which nothing hides if there are few rows per warp.
#pragma once

#include <kprof/platform.h>

namespace rows {

using namespace kprof::platform;

constexpr uint32_t kVectorHalves = 8;
constexpr uint32_t kBatch = 8;

// A vector of halves, unpacked for arithmetic.
struct Halves {
  uint16_t values[kVectorHalves];
};

KPROF_DEVICE bool is_aligned(const void* address) { return (reinterpret_cast<uintptr_t>(address) & 15u) == 0; }

// The number of elements of a row that can move as vectors. The rest move one by one.
KPROF_DEVICE uint32_t vector_part(const void* a, const void* b, uint32_t num_halves) {
  return is_aligned(a) && is_aligned(b) ? num_halves - num_halves % kVectorHalves : 0;
}

// The elements that a warp covers with one vector per lane, and with a batch.
KPROF_DEVICE uint32_t vectors_step() { return warp_width() * kVectorHalves; }
KPROF_DEVICE uint32_t batch_step() { return kBatch * vectors_step(); }

KPROF_DEVICE uint16_t scaled(uint16_t value, float factor) { return float_to_half(half_to_float(value) * factor); }

// This lane's kBatch vectors of a row, from element `begin` to `end`. Beyond the end the last vector is loaded again,
// and not stored: loads without a branch stay in registers.
struct Batch {
  Quad quads[kBatch];

  KPROF_DEVICE void load(const uint16_t* row, uint32_t begin, uint32_t end) {
    KPROF_UNROLL(kBatch)
    for (uint32_t j = 0; j < kBatch; ++j) quads[j] = load_quad(row + in_row(place(begin, j), end));
  }
  KPROF_DEVICE void store(uint16_t* row, uint32_t begin, uint32_t end) const {
    KPROF_UNROLL(kBatch)
    for (uint32_t j = 0; j < kBatch; ++j)
      if (const uint32_t i = place(begin, j); i < end) store_quad(row + i, quads[j]);
  }
  KPROF_DEVICE void scale(float factor) {
    KPROF_UNROLL(kBatch)
    for (uint32_t j = 0; j < kBatch; ++j) {
      auto halves = bits_as<Halves>(quads[j]);
      KPROF_UNROLL(kVectorHalves)
      for (uint32_t v = 0; v < kVectorHalves; ++v) halves.values[v] = scaled(halves.values[v], factor);
      quads[j] = bits_as<Quad>(halves);
    }
  }

 private:
  KPROF_DEVICE static uint32_t in_row(uint32_t i, uint32_t end) { return i < end ? i : end - kVectorHalves; }
  KPROF_DEVICE static uint32_t place(uint32_t begin, uint32_t j) {
    return begin + lane_id() * kVectorHalves + j * vectors_step();
  }
};

KPROF_DEVICE void copy(uint16_t* target, const uint16_t* source, uint32_t num_halves) {
  const uint32_t vectors_end = vector_part(target, source, num_halves);
  Batch batch;
  for (uint32_t begin = 0; begin < vectors_end; begin += batch_step()) {
    batch.load(source, begin, vectors_end);
    batch.store(target, begin, vectors_end);
  }
  for (uint32_t i = vectors_end + lane_id(); i < num_halves; i += warp_width()) target[i] = source[i];
}

// target = half(source * factor) for each target. The source is read once. All lanes call `target(i)` together, and all
// targets have the same alignment.
template <typename Target>
KPROF_DEVICE void scale_to_each(Target target, uint32_t num_targets, const uint16_t* source, uint32_t num_halves,
                                float factor) {
  const uint32_t vectors_end = vector_part(target(0), source, num_halves);
  Batch batch;
  for (uint32_t begin = 0; begin < vectors_end; begin += batch_step()) {
    batch.load(source, begin, vectors_end);
    batch.scale(factor);
    for (uint32_t t = 0; t < num_targets; ++t) batch.store(target(t), begin, vectors_end);
  }
  for (uint32_t t = 0; t < num_targets; ++t) {
    uint16_t* row = target(t);
    for (uint32_t i = vectors_end + lane_id(); i < num_halves; i += warp_width()) row[i] = scaled(source[i], factor);
  }
}

// target = half(source * factor). target may be source.
KPROF_DEVICE void scale(uint16_t* target, const uint16_t* source, uint32_t num_halves, float factor) {
  scale_to_each([target](uint32_t) { return target; }, 1, source, num_halves, factor);
}

KPROF_DEVICE void add_row(float (&sums)[kVectorHalves], float weight, const Halves& halves) {
  KPROF_UNROLL(kVectorHalves)
  for (uint32_t v = 0; v < kVectorHalves; ++v) sums[v] += weight * half_to_float(halves.values[v]);
}

// Up to kBatch rows of a weighted sum, from row `first` on. Their weights are read once, before anything waits for a
// row.
struct Terms {
  uint32_t first;
  uint32_t count;
  float weights[kBatch];

  KPROF_DEVICE Terms(const float* all, uint32_t begin, uint32_t num_rows)
      : first(begin), count(num_rows - begin < kBatch ? num_rows - begin : kBatch) {
    KPROF_UNROLL(kBatch)
    for (uint32_t j = 0; j < kBatch; ++j) weights[j] = j < count ? all[begin + j] : 0.0f;
  }

  // sums += weight * row for the vectors at element i of each row. All loads are in flight before the first is used.
  template <typename Row>
  KPROF_DEVICE void add_to(float (&sums)[kVectorHalves], Row row, uint32_t i) const {
    Quad quads[kBatch];
    KPROF_UNROLL(kBatch)
    for (uint32_t j = 0; j < kBatch; ++j) quads[j] = load_quad(row(first + (j < count ? j : count - 1)) + i);
    KPROF_UNROLL(kBatch)
    for (uint32_t j = 0; j < kBatch; ++j)
      if (j < count) add_row(sums, weights[j], bits_as<Halves>(quads[j]));
  }
};

// A part of a row, in elements; parts begin at multiples of kVectorHalves.
struct Part {
  uint32_t begin;
  uint32_t end;
};

// target = half(sum over k of weights[k] * source row k) for a part of the row, accumulated in fp32 in the order of k
// and rounded once. `row(k)` is the address of source row k. Loops over vectors of the row, so the number of registers
// does not depend on D.
template <typename Row>
KPROF_DEVICE void weighted_sum(uint16_t* target, Row row, const float* weights, uint32_t num_rows, Part part) {
  const uint32_t vectors_end =
      is_aligned(target) && is_aligned(row(0)) ? part.end - part.end % kVectorHalves : part.begin;
  const Terms leading(weights, 0, num_rows);
  for (uint32_t i = part.begin + lane_id() * kVectorHalves; i < vectors_end; i += vectors_step()) {
    float sums[kVectorHalves] = {};
    leading.add_to(sums, row, i);
    for (uint32_t k = kBatch; k < num_rows; k += kBatch) Terms(weights, k, num_rows).add_to(sums, row, i);
    Halves result;
    KPROF_UNROLL(kVectorHalves)
    for (uint32_t v = 0; v < kVectorHalves; ++v) result.values[v] = float_to_half(sums[v]);
    store_quad(target + i, bits_as<Quad>(result));
  }
  for (uint32_t i = vectors_end + lane_id(); i < part.end; i += warp_width()) {
    float sum = 0.0f;
    for (uint32_t k = 0; k < num_rows; ++k) sum += weights[k] * half_to_float(row(k)[i]);
    target[i] = float_to_half(sum);
  }
}

}  // namespace rows
