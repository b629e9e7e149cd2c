// AMD. gfx940 to gfx942 use e4m3fnuz, gfx950 and later e4m3fn. Older ones have no fp8 instructions and compute e4m3fn
// in software.
#pragma once

#include "fp8.h"

namespace kprof::platform {

#if defined(__gfx940__) || defined(__gfx941__) || defined(__gfx942__)
constexpr bool kFp8IsFnuz = true;
#else
constexpr bool kFp8IsFnuz = false;
#endif

// The instruction turns values that are too large into NaN, so they are saturated first.
KPROF_DEVICE float saturated_for_fp8(float value) {
#if defined(__HIP_DEVICE_COMPILE__)
  constexpr float kLargest = kFp8IsFnuz ? 240.0f : 448.0f;
  return value != value ? value : __builtin_amdgcn_fmed3f(value, kLargest, -kLargest);
#else
  return value;
#endif
}
KPROF_DEVICE uint32_t pack_fp8_pair(float low, float high) {
#if defined(__gfx940__) || defined(__gfx941__) || defined(__gfx942__) || defined(__gfx950__)
  return static_cast<uint32_t>(
             __builtin_amdgcn_cvt_pk_fp8_f32(saturated_for_fp8(low), saturated_for_fp8(high), 0, false)) &
         0xffffu;
#else
  return fp8::from_float<kFp8IsFnuz>(low) | fp8::from_float<kFp8IsFnuz>(high) << 8;
#endif
}

// Launches of a stream run one after the other.
KPROF_DEVICE void let_next_launch_begin() {}
KPROF_DEVICE void await_launch_before() {}

// Sums of two pairs of fp16.
KPROF_DEVICE uint32_t add_half_pairs(uint32_t a, uint32_t b) {
  using Pair = _Float16 __attribute__((ext_vector_type(2)));
  return __builtin_bit_cast(uint32_t, __builtin_bit_cast(Pair, a) + __builtin_bit_cast(Pair, b));
}

#if defined(__HIP_DEVICE_COMPILE__)
KPROF_DEVICE float exp2_fast(float value) { return __builtin_amdgcn_exp2f(value); }
KPROF_DEVICE float reciprocal_fast(float value) { return __builtin_amdgcn_rcpf(value); }
#else
KPROF_DEVICE float exp2_fast(float value) { return __builtin_exp2f(value); }
KPROF_DEVICE float reciprocal_fast(float value) { return 1.0f / value; }
#endif
KPROF_DEVICE float square_root(float value) { return __builtin_sqrtf(value); }
KPROF_DEVICE float exp_of(float value) { return __builtin_expf(value); }

// The lanes whose value agrees with this lane's in the low `num_bits` bits, one bit per lane. All lanes of the warp
// call it together.
KPROF_DEVICE uint64_t lanes_equal(uint32_t value, uint32_t num_bits) {
  uint64_t equal = ~0ull;
  for (uint32_t bit = 0; bit < num_bits; ++bit) {
    const bool is_set = (value >> bit & 1u) != 0;
    const uint64_t lanes = lanes_where(is_set);
    equal &= is_set ? lanes : ~lanes;
  }
  return equal;
}
KPROF_DEVICE uint32_t count_lanes(uint64_t lanes) { return static_cast<uint32_t>(__builtin_popcountll(lanes)); }

// Atomic add in the block's shared memory.
KPROF_DEVICE void add_shared(uint32_t* address, uint32_t value) {
  __hip_atomic_fetch_add(address, value, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_WORKGROUP);
}
// A flag in shared memory. Whoever has loaded the flag sees what the warp stored before its sync_warp().
KPROF_DEVICE void store_flag_shared(uint32_t* flag, uint32_t value) {
  __hip_atomic_store(flag, value, __ATOMIC_RELEASE, __HIP_MEMORY_SCOPE_WORKGROUP);
}
KPROF_DEVICE uint32_t load_flag_shared(const uint32_t* flag) {
  return __hip_atomic_load(flag, __ATOMIC_ACQUIRE, __HIP_MEMORY_SCOPE_WORKGROUP);
}

// Through registers: the copy has arrived in shared memory when the call returns.
KPROF_DEVICE void copy_async(Quad* shared, const uint8_t* global, bool is_there) {
  *shared = is_there ? *reinterpret_cast<const Quad*>(global) : Quad{};
}
KPROF_DEVICE void end_batch() {}
template <int>
KPROF_DEVICE void await_batches() {}

// Tiles of weights for the matrix units: 16 rows of 64 fp8, one quad per lane. The order of the bytes along the reduced
// dimension does not matter as long as weights and tokens agree, so a lane takes 16 consecutive bytes.
//
// Up to 8 tokens fill half a tile. Each token is spread over two rows, its even pairs of values in one and its odd
// pairs in the next. In the resulting 16 rows 2 of every 4 values are zero, so the sparse instruction applies, which
// handles a depth of 64 at once.
constexpr uint32_t kWeightQuads = 1;
template <uint32_t max_tokens>
struct Fp8Product {
  static constexpr bool kIsSparse = max_tokens <= 8;
  static constexpr uint32_t kTokensPerTile = kIsSparse ? 8 : 16, kTiles = max_tokens / kTokensPerTile;
  static constexpr uint32_t kResults = kIsSparse ? 2 : 4;
  static constexpr uint32_t kLanes = 64;

  KPROF_DEVICE static uint32_t weight_row(uint32_t) { return lane_id() % 16; }
  KPROF_DEVICE static uint32_t first_byte() { return 16 * (lane_id() / 16); }
  KPROF_DEVICE static uint32_t token_of_lane() { return kIsSparse ? lane_id() % 16 / 2 : lane_id() % 16; }
  KPROF_DEVICE static uint32_t result_row(uint32_t) { return lane_id() % 16; }
  KPROF_DEVICE static uint32_t result_token(uint32_t i) { return kResults * (lane_id() / 16) + i; }

  KPROF_DEVICE static void add(float (&sums)[4], const Quad (&weights)[kWeightQuads], const Quad& tokens) {
#if defined(__gfx940__) || defined(__gfx941__) || defined(__gfx942__) || defined(__gfx950__)
    using Floats = float __attribute__((ext_vector_type(4)));
    using Ints2 = int __attribute__((ext_vector_type(2)));
    using Ints4 = int __attribute__((ext_vector_type(4)));
    Floats total = {sums[0], sums[1], sums[2], sums[3]};
    if constexpr (kIsSparse) {
      const bool is_odd = lane_id() % 2 != 0;
      const uint32_t halves = is_odd ? 0x07060302u : 0x05040100u;
      const Ints2 kept = {static_cast<int>(__builtin_amdgcn_perm(tokens.y, tokens.x, halves)),
                          static_cast<int>(__builtin_amdgcn_perm(tokens.w, tokens.z, halves))};
      // For each group of four, two 2-bit indices: the values that are kept.
      const int which = is_odd ? 0xeeee : 0x4444;
      const Ints4 all = {static_cast<int>(weights[0].x), static_cast<int>(weights[0].y), static_cast<int>(weights[0].z),
                         static_cast<int>(weights[0].w)};
      total = __builtin_amdgcn_smfmac_f32_16x16x64_fp8_fp8(kept, all, total, which, 0, 0);
    } else {
      total = __builtin_amdgcn_mfma_f32_16x16x32_fp8_fp8(pair(tokens.x, tokens.y), pair(weights[0].x, weights[0].y),
                                                         total, 0, 0, 0);
      total = __builtin_amdgcn_mfma_f32_16x16x32_fp8_fp8(pair(tokens.z, tokens.w), pair(weights[0].z, weights[0].w),
                                                         total, 0, 0, 0);
    }
    for (uint32_t i = 0; i < 4; ++i) sums[i] = total[i];
#else
    sums[0] += __builtin_nanf("");  // no fp8 before gfx940: the host refuses
#endif
  }
  // Call it after the last `add`.
  KPROF_DEVICE static void finish(float (&sums)[4]) {
    if constexpr (kIsSparse) {
      sums[0] += sums[1];
      sums[1] = sums[2] + sums[3];
    }
  }

 private:
  KPROF_DEVICE static long pair(uint32_t low, uint32_t high) {
    return static_cast<long>(static_cast<uint64_t>(high) << 32 | low);
  }
};

template <uint32_t max_tokens>
using UnpackedFp8Product = Fp8Product<max_tokens>;

}  // namespace kprof::platform
