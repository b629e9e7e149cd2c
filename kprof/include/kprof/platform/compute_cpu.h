// The CPU target. Which fp8 it writes is a build-time choice: -DKPROF_FP8_FNUZ=1 for e4m3fnuz.
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

inline float exp2_fast(float value) { return exp2f(value); }
inline float reciprocal_fast(float value) { return 1.0f / value; }
inline float square_root(float value) { return sqrtf(value); }
inline float exp_of(float value) { return expf(value); }

// The lanes whose value has the same low `num_bits` bits as this lane's, as bits. All lanes of the warp call it
// together.
inline uint64_t lanes_equal(uint32_t value, uint32_t num_bits) {
  const uint32_t mask = num_bits < 32 ? (1u << num_bits) - 1 : ~0u;
  return simt::lanes_equal(value & mask);
}
inline uint32_t count_lanes(uint64_t lanes) { return static_cast<uint32_t>(__builtin_popcountll(lanes)); }

// Into shared memory of the block.
inline void add_shared(uint32_t* address, uint32_t value) { __atomic_fetch_add(address, value, __ATOMIC_RELAXED); }
// A flag in shared memory: what the warp has stored before a sync_warp() is seen by who has loaded the flag.
inline void store_flag_shared(uint32_t* flag, uint32_t value) { __atomic_store_n(flag, value, __ATOMIC_RELEASE); }
inline uint32_t load_flag_shared(const uint32_t* flag) { return __atomic_load_n(flag, __ATOMIC_ACQUIRE); }

}  // namespace kprof::platform
