// fp8 in integer arithmetic, for targets without an instruction. e4m3: a sign, 4 bits of exponent, 3 of mantissa.
//
//              bias   largest        NaN          zeros     unit of subnormals
//   e4m3fn     7      0x7e =  448    0x7f, 0xff   two       2^-9
//   e4m3fnuz   8      0x7f =  240    0x80         one       2^-10
#pragma once

#include <stdint.h>

#include "bits.h"

namespace kprof::platform::fp8 {

// Rounds to nearest even. Values beyond the largest, and infinities, saturate.
template <bool is_fnuz>
KPROF_DEVICE uint32_t from_float(float value) {
  constexpr uint32_t kInfinity = 0x7f800000u, kBias = is_fnuz ? 8 : 7;
  constexpr uint32_t kLargest = is_fnuz ? 0x43700000u : 0x43e00000u;
  constexpr uint32_t kSmallestNormal = (127 + 1 - kBias) << 23;
  // A power of two whose last mantissa bit is the unit of subnormals: adding it makes the FPU round to that unit.
  constexpr uint32_t kRounder = (127 + 23 + 1 - kBias - 3) << 23;
  const uint32_t word = bits_as<uint32_t>(value);
  const uint32_t sign = word >> 24 & 0x80u;
  uint32_t magnitude = word & 0x7fffffffu;
  if (magnitude > kInfinity) return is_fnuz ? 0x80u : sign | 0x7fu;
  magnitude = magnitude < kLargest ? magnitude : kLargest;
  uint32_t code;
  if (magnitude >= kSmallestNormal) {
    code = ((magnitude + 0x7ffffu + (magnitude >> 20 & 1u)) >> 20) - ((127 - kBias) << 3);
  } else {
    code = bits_as<uint32_t>(bits_as<float>(magnitude) + bits_as<float>(kRounder)) - kRounder;
  }
  return is_fnuz && code == 0 ? 0u : sign | code;
}

template <bool is_fnuz>
KPROF_DEVICE float to_float(uint8_t bits) {
  constexpr uint32_t kBias = is_fnuz ? 8 : 7;
  const uint32_t magnitude = bits & 0x7fu;
  const bool is_nan = is_fnuz ? bits == 0x80u : magnitude == 0x7fu;
  if (is_nan) return bits_as<float>(0x7fc00000u);
  const float unit = bits_as<float>((127 + 1 - kBias - 3) << 23);
  const float positive =
      magnitude < 8 ? static_cast<float>(magnitude) * unit : bits_as<float>((magnitude << 20) + ((127 - kBias) << 23));
  return (bits & 0x80u) != 0 ? -positive : positive;
}

}  // namespace kprof::platform::fp8
