// fp8 products of groups of four warps on sm_90, as group_product.h has them for other targets.
#pragma once

namespace kprof::platform {

// The product of 32 bytes of depth of 64 rows. Lanes have the sums as Fp8Product distributes them. The operands name
// shared memory: the high words say that 8 rows take 1024 bytes, exchanged as in place_in_unit().
#define KPROF_WGMMA(tokens, sums, weights, of_tokens)                                           \
  "{.reg .pred p; .reg .b64 a, b; mov.b64 a, {" weights ", 0x40000040}; mov.b64 b, {" of_tokens \
  ", 0x40000040}; "                                                                             \
  "setp.eq.b32 p, 0, 0; wgmma.mma_async.sync.aligned.m64n" tokens "k32.f32.e4m3.e4m3 {" sums "}, a, b, p, 1, 1;}"

template <uint32_t max_tokens>
struct Wgmma;
template <>
struct Wgmma<8> {
  using Sums = float[1][4];
  KPROF_DEVICE static void multiply(Sums& sums, uint32_t weights, uint32_t tokens) {
    asm volatile(KPROF_WGMMA("8", "%0, %1, %2, %3", "%4", "%5")
                 : "+f"(sums[0][0]), "+f"(sums[0][1]), "+f"(sums[0][2]), "+f"(sums[0][3])
                 : "r"(weights), "r"(tokens));
  }
};
template <>
struct Wgmma<16> {
  using Sums = float[2][4];
  KPROF_DEVICE static void multiply(Sums& sums, uint32_t weights, uint32_t tokens) {
    asm volatile(KPROF_WGMMA("16", "%0, %1, %2, %3, %4, %5, %6, %7", "%8", "%9")
                 : "+f"(sums[0][0]), "+f"(sums[0][1]), "+f"(sums[0][2]), "+f"(sums[0][3]), "+f"(sums[1][0]),
                   "+f"(sums[1][1]), "+f"(sums[1][2]), "+f"(sums[1][3])
                 : "r"(weights), "r"(tokens));
  }
};
template <>
struct Wgmma<32> {
  using Sums = float[4][4];
  KPROF_DEVICE static void multiply(Sums& sums, uint32_t weights, uint32_t tokens) {
    asm volatile(KPROF_WGMMA("32", "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15", "%16", "%17")
                 : "+f"(sums[0][0]), "+f"(sums[0][1]), "+f"(sums[0][2]), "+f"(sums[0][3]), "+f"(sums[1][0]),
                   "+f"(sums[1][1]), "+f"(sums[1][2]), "+f"(sums[1][3]), "+f"(sums[2][0]), "+f"(sums[2][1]),
                   "+f"(sums[2][2]), "+f"(sums[2][3]), "+f"(sums[3][0]), "+f"(sums[3][1]), "+f"(sums[3][2]),
                   "+f"(sums[3][3])
                 : "r"(weights), "r"(tokens));
  }
};
#undef KPROF_WGMMA

template <uint32_t max_tokens>
struct GroupProduct : Fp8Product<max_tokens> {
  using Sums = typename Wgmma<max_tokens>::Sums;

  // Copies and wgmma reach shared memory in different ways, hence the first fence. The second one is for registers.
  KPROF_DEVICE static void meet(uint32_t group) {
    asm volatile(
        "fence.proxy.async.shared::cta;\n"
        "bar.sync %0, %1;\n"
        "wgmma.fence.sync.aligned;" ::"r"(group + 1),
        "n"(kGroupWarps * 32)
        : "memory");
  }

  // Units are aligned to 1024 bytes. All 64 rows are multiplied, whatever lies in those that there are not. Products
  // that wait for none before them come in turns.
  template <uint32_t rows, uint32_t count>
  KPROF_DEVICE static void add(Sums (&sums)[count], const Quad* weights) {
    for (uint32_t k = 0; k < kUnitDepth / 32; ++k)
      for (uint32_t u = 0; u < count; ++u) {
        const Quad* unit = weights + u * (rows + max_tokens) * kUnitQuads;
        Wgmma<max_tokens>::multiply(sums[u], operand(unit) + 2 * k, operand(unit + rows * kUnitQuads) + 2 * k);
      }
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
  }
  // Afterwards the compiler may read the sums.
  template <uint32_t count>
  KPROF_DEVICE static void await(Sums (&sums)[count]) {
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
    for (auto& of_unit : sums)
      for (auto& tile : of_unit)
        for (float& sum : tile) asm volatile("" : "+f"(sum)::"memory");
  }

 private:
  // The low word of a descriptor, in steps of 16 bytes.
  KPROF_DEVICE static uint32_t operand(const Quad* unit) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(unit)) >> 4 | 1u << 16;
  }
};

}  // namespace kprof::platform
