// Elements of fp16, bf16 and fp32 tensors, accessed as vectors whatever the tensor's alignment and size.
#pragma once

#include <kprof/platform.h>

#include <type_traits>

namespace elements {

using namespace kprof::platform;

struct Half {
  uint16_t bits;
};
struct BFloat16 {
  uint16_t bits;
};

KPROF_DEVICE float to_float(float value) { return value; }
KPROF_DEVICE float to_float(Half value) { return half_to_float(value.bits); }
KPROF_DEVICE float to_float(BFloat16 value) { return bits_as<float>(static_cast<uint32_t>(value.bits) << 16); }

KPROF_DEVICE void from_float(float value, float* result) { *result = value; }
KPROF_DEVICE void from_float(float value, Half* result) { result->bits = float_to_half(value); }
// Rounds to nearest even, in integer arithmetic, so that all targets give the same bits.
KPROF_DEVICE void from_float(float value, BFloat16* result) {
  const uint32_t word = bits_as<uint32_t>(value);
  const bool is_nan = (word & 0x7fffffffu) > 0x7f800000u;
  const uint32_t rounded = word + 0x7fffu + ((word >> 16) & 1u);
  result->bits = static_cast<uint16_t>(is_nan ? (word >> 16) | 0x40u : rounded >> 16);
}

template <typename Element, uint32_t num_bytes>
struct alignas(num_bytes) Vector {
  static constexpr uint32_t kLength = num_bytes / sizeof(Element);
  Element values[kLength];
};

// A sum of vectors: accumulated in fp32 in the order of the calls, rounded once at the end.
template <typename Vector>
struct alignas(16) Sum {
  float values[Vector::kLength];

  // Starts from -0, because -0 + x is x for every x, while +0 + -0 is +0.
  KPROF_DEVICE Sum() {
    for (float& value : values) value = -0.0f;
  }

  KPROF_DEVICE void add(const Vector& vector) {
    for (uint32_t j = 0; j < Vector::kLength; ++j) values[j] += to_float(vector.values[j]);
  }
  KPROF_DEVICE Vector rounded() const {
    Vector result;
    for (uint32_t j = 0; j < Vector::kLength; ++j) from_float(with_one_nan(values[j]), &result.values[j]);
    return result;
  }
};

// `num_elements` elements from `data` on, as vectors of `num_bytes`. The last vector may extend beyond the end:
// elements outside read as zero and are never written. If `data` is not aligned, elements move one by one.
template <typename Element, uint32_t num_bytes>
class Tensor {
 public:
  using Vec = Vector<std::remove_const_t<Element>, num_bytes>;

  KPROF_DEVICE Tensor(Element* data, uint32_t num_elements)
      : data_(data),
        num_elements_(num_elements),
        num_whole_(reinterpret_cast<uintptr_t>(data) % num_bytes == 0 ? num_elements / Vec::kLength : 0) {}

  KPROF_DEVICE uint32_t num_vectors() const { return (num_elements_ + Vec::kLength - 1) / Vec::kLength; }

  KPROF_DEVICE Vec load(uint32_t i) const {
    // Assembled as words: unpacking elements here would wait for them.
    Words words{};
    if (i < num_whole_) {
      words = reinterpret_cast<const Words*>(data_)[i];
    } else {
      const uint32_t first = i * Vec::kLength;
      for (uint32_t j = 0; j < Vec::kLength; ++j)
        if (first + j < num_elements_) words.values[j * sizeof(Element) / kWordBytes] |= in_word(data_[first + j], j);
    }
    return bits_as<Vec>(words);
  }

  KPROF_DEVICE void store(uint32_t i, const Vec& vector) const {
    if (i < num_whole_) {
      reinterpret_cast<Vec*>(data_)[i] = vector;
      return;
    }
    const uint32_t first = i * Vec::kLength;
    for (uint32_t j = 0; j < Vec::kLength; ++j)
      if (first + j < num_elements_) data_[first + j] = vector.values[j];
  }

 private:
  static constexpr uint32_t kWordBytes = sizeof(uint32_t);
  struct [[gnu::may_alias]] alignas(num_bytes) Words {
    uint32_t values[num_bytes / kWordBytes];
  };

  // Element j of a vector, at its position in the word.
  KPROF_DEVICE static uint32_t in_word(std::remove_const_t<Element> element, uint32_t j) {
    uint32_t bits = 0;
    __builtin_memcpy(&bits, &element, sizeof element);
    return bits << 8 * (j * sizeof(Element) % kWordBytes);
  }

  Element* data_;
  uint32_t num_elements_;
  uint32_t num_whole_;
};

}  // namespace elements
