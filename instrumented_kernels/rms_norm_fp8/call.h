// One call, and the arithmetic on vectors of a row.
#pragma once

#include <kprof/compute.h>
#include <kprof/short_track.h>

#include "block_sums.h"
#include "elements.h"
#include "fp8_rows.h"
#include "kernel.h"
#include "local_call.h"

namespace rms_norm_fp8 {

using namespace elements;
using namespace fp8_rows;
using namespace kernel;

struct Call : local_call::LocalCall<CallArguments, local_call::NoWorkspace<Shape>> {
  using LocalCall::LocalCall;

  template <typename Element>
  KPROF_DEVICE const Element* row_of(const void* tensor, uint32_t row) const {
    return static_cast<const Element*>(tensor) + static_cast<uint64_t>(row) * shape.row_length;
  }
  template <typename Element>
  KPROF_DEVICE Element* sum_row(uint32_t row) const {
    return static_cast<Element*>(sum) + static_cast<uint64_t>(row) * shape.row_length;
  }
  KPROF_DEVICE uint8_t* y_row(uint32_t row) const { return y + static_cast<uint64_t>(row) * shape.row_length; }
  // The factor of all values, in addition to their weight.
  KPROF_DEVICE float factor(float sum_of_squares) const {
    return scale / square_root(sum_of_squares / static_cast<float>(shape.row_length) + epsilon);
  }
};

using ProfiledCall = variants::Profiled<Call>;

constexpr uint32_t kMaxThreads = 512;
constexpr uint32_t kWholeVectors = 4;

// x + residual, rounded like the stored value.
template <typename Element>
KPROF_DEVICE Element added(Element x, Element residual) {
  Element result;
  from_float(to_float(x) + to_float(residual), &result);
  return result;
}
template <typename Element>
KPROF_DEVICE Quad added(const Quad& x, const Quad& residual) {
  if constexpr (std::is_same_v<Element, Half>) {
    uint32_t a[4], b[4];
    copy_bits(&a, x);
    copy_bits(&b, residual);
    for (uint32_t j = 0; j < 4; ++j) a[j] = add_half_pairs(a[j], b[j]);
    return bits_as<Quad>(a);
  }
  const Vec<Element> a = vec_of<Element>(x), b = vec_of<Element>(residual);
  Vec<Element> result;
  for (uint32_t j = 0; j < kLength; ++j) result.values[j] = added(a.values[j], b.values[j]);
  return bits_as<Quad>(result);
}
template <typename Element>
KPROF_DEVICE float sum_of_squares(const Quad& quad) {
  const Vec<Element> vector = vec_of<Element>(quad);
  float sum = 0.0f;
  for (uint32_t j = 0; j < kLength; ++j) sum += to_float(vector.values[j]) * to_float(vector.values[j]);
  return sum;
}

template <typename Element>
KPROF_DEVICE Fp8Vec normalised(const Quad& sum, const Quad& weight, float factor) {
  const Vec<Element> values = vec_of<Element>(sum), weights = vec_of<Element>(weight);
  float scaled[kLength];
  for (uint32_t j = 0; j < kLength; ++j) scaled[j] = to_float(values.values[j]) * factor * to_float(weights.values[j]);
  return fp8_rows::packed(scaled);
}

}  // namespace rms_norm_fp8
