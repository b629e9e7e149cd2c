// NVIDIA, sm_89 and later for fp8.
#pragma once

#include "fp8.h"

namespace kprof::platform {

constexpr bool kFp8IsFnuz = false;

KPROF_DEVICE uint32_t pack_fp8_pair(float low, float high) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 890
  uint16_t pair;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
  return pair;
#else
  return fp8::from_float<false>(low) | fp8::from_float<false>(high) << 8;
#endif
}

KPROF_DEVICE float exp2_fast(float value) {
  float result;
  asm("ex2.approx.f32 %0, %1;" : "=f"(result) : "f"(value));
  return result;
}
KPROF_DEVICE float reciprocal_fast(float value) {
  float result;
  asm("rcp.approx.f32 %0, %1;" : "=f"(result) : "f"(value));
  return result;
}
KPROF_DEVICE float square_root(float value) { return __fsqrt_rn(value); }
KPROF_DEVICE float exp_of(float value) { return expf(value); }

// The lanes whose value has the same low `num_bits` bits as this lane's, as bits. All lanes of the warp call it
// together.
KPROF_DEVICE uint64_t lanes_equal(uint32_t value, uint32_t num_bits) {
  uint32_t equal = 0xffffffffu;
  for (uint32_t bit = 0; bit < num_bits; ++bit) {
    const bool is_set = (value >> bit & 1u) != 0;
    const uint32_t lanes = __ballot_sync(0xffffffffu, is_set);
    equal &= is_set ? lanes : ~lanes;
  }
  return equal;
}
KPROF_DEVICE uint32_t count_lanes(uint64_t lanes) { return __popc(static_cast<uint32_t>(lanes)); }

// Into shared memory of the block.
KPROF_DEVICE void add_shared(uint32_t* address, uint32_t value) {
  asm volatile(
      "red.relaxed.cta.shared.add.u32 [%0], %1;" ::"r"(static_cast<uint32_t>(__cvta_generic_to_shared(address))),
      "r"(value)
      : "memory");
}
// A flag in shared memory: what the warp has stored before a sync_warp() is seen by who has loaded the flag.
KPROF_DEVICE void store_flag_shared(uint32_t* flag, uint32_t value) {
  asm volatile("st.release.cta.shared.u32 [%0], %1;" ::"r"(static_cast<uint32_t>(__cvta_generic_to_shared(flag))),
               "r"(value)
               : "memory");
}
KPROF_DEVICE uint32_t load_flag_shared(const uint32_t* flag) {
  uint32_t value;
  asm volatile("ld.acquire.cta.shared.u32 %0, [%1];"
               : "=r"(value)
               : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(flag)))
               : "memory");
  return value;
}

}  // namespace kprof::platform
