// NVIDIA. fp8 instructions need sm_89 or later.
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

// From here on the next launch may begin, and wait, if it has LaunchOptions::is_early.
KPROF_DEVICE void let_next_launch_begin() {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
// Waits until the launch before this one has ended, for kernels with LaunchOptions::is_early.
KPROF_DEVICE void await_launch_before() {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Sums of two pairs of fp16.
KPROF_DEVICE uint32_t add_half_pairs(uint32_t a, uint32_t b) {
  uint32_t sum;
  asm("add.rn.f16x2 %0, %1, %2;" : "=r"(sum) : "r"(a), "r"(b));
  return sum;
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

// The lanes that have this bit of `value` as this lane has it.
KPROF_DEVICE uint32_t lanes_with_bit(uint32_t value, uint32_t bit) {
  const bool is_set = (value >> bit & 1u) != 0;
  const uint32_t lanes = __ballot_sync(0xffffffffu, is_set);
  return is_set ? lanes : ~lanes;
}
// A word of ones that ptxas does not know.
KPROF_DEVICE uint32_t all_lanes() {
  uint32_t up_to, after;
  asm("mov.u32 %0, %%lanemask_le;" : "=r"(up_to));
  asm("mov.u32 %0, %%lanemask_gt;" : "=r"(after));
  return up_to | after;
}
// The same in fewer instructions: ptxas moves several bits to predicates at once. It runs out of those with 10 bits.
// ~lanes is -1 - lanes here, in the unit for multiplications, which has nothing else to do. `ones` is all_lanes().
KPROF_DEVICE uint32_t lanes_with_bit_of_8(uint32_t value, uint32_t bit, uint32_t ones) {
  uint32_t lanes;
  asm volatile(
      "{.reg .pred p; .reg .b32 t; and.b32 t, %1, %2; setp.ne.u32 p, t, 0; "
      "vote.sync.ballot.b32 %0, p, 0xffffffff; @!p mad.lo.u32 %0, %0, %3, %3;}"
      : "=r"(lanes)
      : "r"(value), "r"(1u << bit), "r"(ones));
  return lanes;
}
// In one instruction: of a longer chain of "and" ptxas makes more.
KPROF_DEVICE uint32_t and_of_3(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t result;
  asm("lop3.b32 %0, %1, %2, %3, 0x80;" : "=r"(result) : "r"(a), "r"(b), "r"(c));
  return result;
}
// The lanes whose value agrees with this lane's in the low `num_bits` bits, one bit per lane. All lanes of the warp
// call it together.
KPROF_DEVICE uint64_t lanes_equal(uint32_t value, uint32_t num_bits) {
  if (num_bits == 8) {
    const uint32_t ones = all_lanes();
    uint32_t lanes[8];
    for (uint32_t bit = 0; bit < 8; ++bit) lanes[bit] = lanes_with_bit_of_8(value, bit, ones);
    return and_of_3(and_of_3(lanes[0], lanes[1], lanes[2]), and_of_3(lanes[3], lanes[4], lanes[5]),
                    lanes[6] & lanes[7]);
  }
  uint32_t equal = 0xffffffffu;
  for (uint32_t bit = 0; bit < num_bits; ++bit) equal &= lanes_with_bit(value, bit);
  return equal;
}
KPROF_DEVICE uint32_t count_lanes(uint64_t lanes) { return __popc(static_cast<uint32_t>(lanes)); }

// Atomic add in the block's shared memory.
KPROF_DEVICE void add_shared(uint32_t* address, uint32_t value) {
  asm volatile(
      "red.relaxed.cta.shared.add.u32 [%0], %1;" ::"r"(static_cast<uint32_t>(__cvta_generic_to_shared(address))),
      "r"(value)
      : "memory");
}
// A flag in shared memory. Whoever has loaded the flag sees what the warp stored before its sync_warp().
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

// Copies 16 bytes to shared memory in the background, or zeros if they are not there. The copies of a thread since its
// last end_batch() are a batch; await_batches<n>() waits until all but the last n of this thread have arrived.
KPROF_DEVICE void copy_async(Quad* shared, const uint8_t* global, bool is_there) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(
                   static_cast<uint32_t>(__cvta_generic_to_shared(shared))),
               "l"(global), "r"(is_there ? 16 : 0)
               : "memory");
}
KPROF_DEVICE void end_batch() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int left>
KPROF_DEVICE void await_batches() {
  asm volatile("cp.async.wait_group %0;" ::"n"(left) : "memory");
}

// Tiles of weights for the matrix units: 16 rows of 64 fp8, two quads per lane. The order of the bytes along the
// reduced dimension does not matter as long as weights and tokens agree, so a lane takes 16 consecutive bytes. sm_90
// has fp8 in wgmma only; there ptxas unpacks both operands to fp16: exact products, summed in fp32.
constexpr uint32_t kWeightQuads = 2;
template <uint32_t max_tokens>
struct Fp8Product {
  static constexpr uint32_t kTiles = max_tokens / 8, kTokensPerTile = 8, kResults = 4;
  static constexpr uint32_t kLanes = 32;

  KPROF_DEVICE static uint32_t weight_row(uint32_t quad) { return lane_id() / 4 + 8 * quad; }
  KPROF_DEVICE static uint32_t first_byte() { return 16 * (lane_id() % 4); }
  KPROF_DEVICE static uint32_t token_of_lane() { return lane_id() / 4; }
  KPROF_DEVICE static uint32_t result_row(uint32_t i) { return lane_id() / 4 + 8 * (i / 2); }
  KPROF_DEVICE static uint32_t result_token(uint32_t i) { return 2 * (lane_id() % 4) + i % 2; }

  KPROF_DEVICE static void add(float (&sums)[4], const Quad (&weights)[kWeightQuads], const Quad& tokens) {
    step(sums, weights[0].x, weights[1].x, weights[0].y, weights[1].y, tokens.x, tokens.y);
    step(sums, weights[0].z, weights[1].z, weights[0].w, weights[1].w, tokens.z, tokens.w);
  }
  KPROF_DEVICE static void finish(float (&)[4]) {}

 private:
  KPROF_DEVICE static void step(float (&sums)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                                uint32_t b1) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 890
    asm("mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
#else
    sums[0] += __int_as_float(0x7fc00000);  // no fp8 before sm_89: the host refuses
#endif
  }
};

// The same sums, but both operands are unpacked here. ptxas schedules that differently; which one is faster depends on
// the kernel.
template <uint32_t max_tokens>
struct UnpackedFp8Product : Fp8Product<max_tokens> {
  KPROF_DEVICE static void add(float (&sums)[4], const Quad (&weights)[kWeightQuads], const Quad& tokens) {
    step(sums, weights[0].x, weights[1].x, tokens.x);
    step(sums, weights[0].y, weights[1].y, tokens.y);
    step(sums, weights[0].z, weights[1].z, tokens.z);
    step(sums, weights[0].w, weights[1].w, tokens.w);
  }

 private:
  // Two values.
  KPROF_DEVICE static uint32_t halves_of(uint32_t pair) {
    uint32_t halves = 0;
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 890
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(static_cast<uint16_t>(pair)));
#endif
    return halves;
  }
  // Four values of two rows of weights and of a token.
  KPROF_DEVICE static void step(float (&sums)[4], uint32_t above, uint32_t below, uint32_t tokens) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 890
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(halves_of(above)), "r"(halves_of(below)), "r"(halves_of(above >> 16)), "r"(halves_of(below >> 16)),
          "r"(halves_of(tokens)), "r"(halves_of(tokens >> 16)));
#else
    sums[0] += __int_as_float(0x7fc00000);  // no fp8 before sm_89: the host refuses
#endif
  }
};

}  // namespace kprof::platform
