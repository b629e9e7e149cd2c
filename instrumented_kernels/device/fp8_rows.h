// Rows of 16-bit floats as vectors of 16 bytes, and rows of fp8 as vectors of 8.
#pragma once

#include <kprof/compute.h>

#include "elements.h"

namespace fp8_rows {

using namespace kprof::platform;

constexpr uint32_t kVectorBytes = 16;
template <typename Element>
using Vec = elements::Vector<Element, kVectorBytes>;
constexpr uint32_t kLength = Vec<elements::Half>::kLength;
using Fp8Vec = elements::Vector<uint32_t, kLength>;

// Vectors stay packed in words until they are used: unpacked they need twice the registers.
template <typename Element>
KPROF_DEVICE Vec<Element> vec_of(const Quad& quad) {
  Vec<Element> vector;
  copy_bits(&vector, quad);
  return vector;
}

KPROF_DEVICE Fp8Vec packed(const float (&values)[kLength]) {
  Fp8Vec result;
  for (uint32_t j = 0; j < kLength; j += 4)
    result.values[j / 4] = pack_fp8(values[j], values[j + 1], values[j + 2], values[j + 3]);
  return result;
}

// The elements of one row of a tensor (the weights are one row), as vectors. `is_whole`: addresses and row lengths are
// multiples of the vector; otherwise elements move one by one where necessary.
template <typename Element, bool is_whole>
class Row {
 public:
  KPROF_DEVICE Row(Element* elements, uint32_t length) : tensor_(elements, length), elements_(elements) {}

  KPROF_DEVICE uint32_t num_vectors() const { return tensor_.num_vectors(); }
  KPROF_DEVICE Quad load(uint32_t i) const {
    if (is_whole) return reinterpret_cast<const Quad*>(elements_)[i];
    Quad quad;
    copy_bits(&quad, tensor_.load(i));
    return quad;
  }
  KPROF_DEVICE void store(uint32_t i, const Quad& quad) const {
    if (is_whole) {
      reinterpret_cast<Quad*>(elements_)[i] = quad;
    } else {
      tensor_.store(i, vec_of<Element>(quad));
    }
  }

 private:
  elements::Tensor<Element, kVectorBytes> tensor_;
  Element* elements_;
};

template <bool is_whole>
KPROF_DEVICE void store(uint8_t* row, uint32_t length, uint32_t i, const Fp8Vec& vector) {
  const uint32_t first = i * kLength;
  if (is_whole || (first + kLength <= length && reinterpret_cast<uintptr_t>(row) % sizeof vector == 0)) {
    reinterpret_cast<Fp8Vec*>(row)[i] = vector;
    return;
  }
  for (uint32_t j = 0; j < kLength; ++j)
    if (first + j < length) row[first + j] = static_cast<uint8_t>(vector.values[j / 4] >> j % 4 * 8);
}

}  // namespace fp8_rows
