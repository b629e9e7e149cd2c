// The CPU target. Its fp8 is e4m3fn, or e4m3fnuz with -DKPROF_FP8_FNUZ=1.
#pragma once

#include <math.h>

#include "fp8.h"

#ifndef KPROF_FP8_FNUZ
#define KPROF_FP8_FNUZ 0
#endif

namespace kprof::platform {

constexpr bool kFp8IsFnuz = KPROF_FP8_FNUZ != 0;

inline uint32_t pack_fp8_pair(float low, float high) {
  return fp8::from_float<kFp8IsFnuz>(low) | fp8::from_float<kFp8IsFnuz>(high) << 8;
}

// Launches run one after the other.
inline void let_next_launch_begin() {}
inline void await_launch_before() {}

// Sums of two pairs of fp16. fp32 has so many bits that rounding twice gives what rounding once gives.
inline uint32_t add_half_pairs(uint32_t a, uint32_t b) {
  const auto sum = [&](int shift) -> uint32_t {
    return float_to_half(half_to_float(static_cast<uint16_t>(a >> shift)) +
                         half_to_float(static_cast<uint16_t>(b >> shift)));
  };
  return sum(0) | sum(16) << 16;
}
inline float exp2_fast(float value) { return exp2f(value); }
inline float reciprocal_fast(float value) { return 1.0f / value; }
inline float square_root(float value) { return sqrtf(value); }
inline float exp_of(float value) { return expf(value); }

// The lanes whose value agrees with this lane's in the low `num_bits` bits, one bit per lane. All lanes of the warp
// call it together.
inline uint64_t lanes_equal(uint32_t value, uint32_t num_bits) {
  const uint32_t mask = num_bits < 32 ? (1u << num_bits) - 1 : ~0u;
  return simt::lanes_equal(value & mask);
}
inline uint32_t count_lanes(uint64_t lanes) { return static_cast<uint32_t>(__builtin_popcountll(lanes)); }

// Atomic add in the block's shared memory.
inline void add_shared(uint32_t* address, uint32_t value) { __atomic_fetch_add(address, value, __ATOMIC_RELAXED); }
// A flag in shared memory. Whoever has loaded the flag sees what the warp stored before its sync_warp().
inline void store_flag_shared(uint32_t* flag, uint32_t value) { __atomic_store_n(flag, value, __ATOMIC_RELEASE); }
inline uint32_t load_flag_shared(const uint32_t* flag) { return __atomic_load_n(flag, __ATOMIC_ACQUIRE); }

// Copies are there at once.
inline void copy_async(Quad* shared, const uint8_t* global, bool is_there) {
  *shared = Quad{};
  if (is_there) memcpy(shared, global, sizeof *shared);
}
inline void end_batch() {}
template <int>
void await_batches() {}

// Tiles of weights: 16 rows of 64 fp8. Warps of 32 lanes distribute them as on NVIDIA, warps of 64 as on AMD.
constexpr bool kIsNarrow = simt::kWarpWidth == 32;
constexpr uint32_t kWeightQuads = kIsNarrow ? 2 : 1;
template <uint32_t max_tokens>
struct Fp8Product {
  static constexpr uint32_t kTokensPerTile = kIsNarrow || max_tokens < 16 ? 8 : 16;
  static constexpr uint32_t kTiles = max_tokens / kTokensPerTile;
  static constexpr uint32_t kResults = kIsNarrow || max_tokens >= 16 ? 4 : 2;
  static constexpr uint32_t kLanes = simt::kWarpWidth;

  static uint32_t weight_row(uint32_t quad) { return kIsNarrow ? lane_id() / 4 + 8 * quad : lane_id() % 16; }
  static uint32_t group() { return kIsNarrow ? lane_id() % 4 : lane_id() / 16; }
  static uint32_t first_byte() { return 16 * group(); }
  static uint32_t token_of_lane() { return kIsNarrow ? lane_id() / 4 : lane_id() % 16 % kTokensPerTile; }
  static uint32_t result_row(uint32_t i) { return kIsNarrow ? lane_id() / 4 + 8 * (i / 2) : lane_id() % 16; }
  static uint32_t result_token(uint32_t i) { return kIsNarrow ? 2 * group() + i % 2 : kResults * group() + i; }

  // Each lane reads the operands of the others.
  static void add(float (&sums)[4], const Quad (&weights)[kWeightQuads], const Quad& tokens) {
    const Own own{weights, &tokens};
    const Own* lanes[simt::kWarpWidth];
    simt::pointers_of_lanes(&own, lanes);
    for (uint32_t i = 0; i < kResults; ++i) {
      const uint32_t row = result_row(i), token = result_token(i);
      for (uint32_t group = 0; group < 4; ++group) {
        const uint32_t of_row = kIsNarrow ? row % 8 * 4 + group : row + 16 * group;
        const uint32_t of_token = kIsNarrow ? token * 4 + group : token + 16 * group;
        sums[i] += dot(lanes[of_row]->weights[kIsNarrow ? row / 8 : 0], *lanes[of_token]->tokens);
      }
    }
    sync_warp();
  }
  static void finish(float (&)[4]) {}

 private:
  struct Own {
    const Quad* weights;
    const Quad* tokens;
  };
  static float dot(const Quad& a, const Quad& b) {
    uint8_t left[16], right[16];
    memcpy(left, &a, sizeof a);
    memcpy(right, &b, sizeof b);
    float sum = 0.0f;
    for (uint32_t j = 0; j < 16; ++j) sum += fp8::to_float<kFp8IsFnuz>(left[j]) * fp8::to_float<kFp8IsFnuz>(right[j]);
    return sum;
  }
};

template <uint32_t max_tokens>
using UnpackedFp8Product = Fp8Product<max_tokens>;

}  // namespace kprof::platform
