// AMD. gfx940 to gfx942 take e4m3fnuz, gfx950 and later e4m3fn; older ones have no fp8, and get e4m3fn by arithmetic.
#pragma once

#include "fp8.h"

#if defined(__gfx940__) || defined(__gfx941__) || defined(__gfx942__)
#define KPROF_FP8_FNUZ 1
#else
#define KPROF_FP8_FNUZ 0
#endif

namespace kprof::platform {

constexpr bool kFp8IsFnuz = KPROF_FP8_FNUZ != 0;

// The instruction makes NaN of what is too large, so it is saturated before.
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

#if defined(__HIP_DEVICE_COMPILE__)
KPROF_DEVICE float exp2_fast(float value) { return __builtin_amdgcn_exp2f(value); }
KPROF_DEVICE float reciprocal_fast(float value) { return __builtin_amdgcn_rcpf(value); }
#else
KPROF_DEVICE float exp2_fast(float value) { return __builtin_exp2f(value); }
KPROF_DEVICE float reciprocal_fast(float value) { return 1.0f / value; }
#endif
KPROF_DEVICE float square_root(float value) { return __builtin_sqrtf(value); }
KPROF_DEVICE float exp_of(float value) { return __builtin_expf(value); }

// The lanes whose value has the same low `num_bits` bits as this lane's, as bits. All lanes of the warp call it
// together.
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

// Into shared memory of the block.
KPROF_DEVICE void add_shared(uint32_t* address, uint32_t value) {
  __hip_atomic_fetch_add(address, value, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_WORKGROUP);
}
// A flag in shared memory: what the warp has stored before a sync_warp() is seen by who has loaded the flag.
KPROF_DEVICE void store_flag_shared(uint32_t* flag, uint32_t value) {
  __hip_atomic_store(flag, value, __ATOMIC_RELEASE, __HIP_MEMORY_SCOPE_WORKGROUP);
}
KPROF_DEVICE uint32_t load_flag_shared(const uint32_t* flag) {
  return __hip_atomic_load(flag, __ATOMIC_ACQUIRE, __HIP_MEMORY_SCOPE_WORKGROUP);
}

}  // namespace kprof::platform
