// The fp8 matrix product of AMD, run on the host: 64 lanes one after the other, and the instructions written out as the
// instruction set defines them. argv: tokens that the product is made for. Prints how many sums are wrong.
//
// A matrix that is 2 of every 4 zero has 8 bytes a lane: of four places in depth, the two that the index names, low
// bits first. The other matrix has 16 bytes a lane, the dense instruction 8 of each.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <initializer_list>

#define KPROF_DEVICE inline
namespace kprof::platform {
constexpr uint32_t kLanes = 64;
uint32_t lane = 0;
uint32_t lane_id() { return lane; }
uint64_t lanes_where(bool) { return 0; }
struct Quad {
  uint32_t x, y, z, w;
};
}  // namespace kprof::platform

using Floats = float __attribute__((ext_vector_type(4)));
using Ints2 = int __attribute__((ext_vector_type(2)));
using Ints4 = int __attribute__((ext_vector_type(4)));

uint32_t __builtin_amdgcn_perm(uint32_t high, uint32_t low, uint32_t which);
int __builtin_amdgcn_cvt_pk_fp8_f32(float, float, int, bool) { return 0; }
Floats __builtin_amdgcn_smfmac_f32_16x16x64_fp8_fp8(Ints2 a, Ints4 b, Floats sums, int index, int cbsz, int abid);
Floats __builtin_amdgcn_mfma_f32_16x16x32_fp8_fp8(long a, long b, Floats sums, int, int, int);

#define __gfx942__
#define __HIP_MEMORY_SCOPE_WORKGROUP 3
#include <kprof/platform/compute_hip.h>

using namespace kprof::platform;

// Byte n of the result is the byte of (high, low) that byte n of `which` numbers.
uint32_t __builtin_amdgcn_perm(uint32_t high, uint32_t low, uint32_t which) {
  const uint64_t both = uint64_t{high} << 32 | low;
  uint32_t result = 0;
  for (int n = 0; n < 4; ++n) result |= static_cast<uint32_t>(both >> (which >> 8 * n & 7) * 8 & 0xff) << 8 * n;
  return result;
}

// What lanes give an instruction is known when all have come to it: the first round over the lanes only takes it down.
struct Given {
  uint8_t a[16][64];  // by row and depth; of the sparse matrix with its zeros
  uint8_t b[16][64];
};
Given given[2];
bool is_first_round = true;
int num_instructions = 0;

Floats sums_of(const Given& from, uint32_t depth, Floats sums) {
  for (int i = 0; i < 4; ++i)
    for (uint32_t k = 0; k < depth; ++k)
      sums[i] += fp8::to_float<true>(from.a[4 * (lane / 16) + i][k]) * fp8::to_float<true>(from.b[lane % 16][k]);
  return sums;
}

Floats __builtin_amdgcn_smfmac_f32_16x16x64_fp8_fp8(Ints2 a, Ints4 b, Floats sums, int index, int, int) {
  Given& now = given[num_instructions++];
  if (!is_first_round) return sums_of(now, 64, sums);
  uint8_t kept[8];
  memcpy(kept, &a, sizeof kept);
  for (uint32_t j = 0; j < 8; ++j) now.a[lane % 16][16 * (lane / 16) + 4 * (j / 2) + (index >> 2 * j & 3)] = kept[j];
  memcpy(&now.b[lane % 16][16 * (lane / 16)], &b, 16);
  return sums;
}

Floats __builtin_amdgcn_mfma_f32_16x16x32_fp8_fp8(long a, long b, Floats sums, int, int, int) {
  Given& now = given[num_instructions++];
  if (!is_first_round) return sums_of(now, 32, sums);
  memcpy(&now.a[lane % 16][8 * (lane / 16)], &a, 8);
  memcpy(&now.b[lane % 16][8 * (lane / 16)], &b, 8);
  return sums;
}

template <uint32_t max_tokens>
int num_wrong() {
  using Product = Fp8Product<max_tokens>;
  uint8_t weights[16][64], tokens[16][64];
  // Small integers: sums are exact in any order.
  for (auto* matrix : {&weights, &tokens})
    for (auto& row : *matrix)
      for (auto& value : row) value = static_cast<uint8_t>(fp8::from_float<true>(static_cast<float>(rand() % 15 - 7)));
  int count = 0;
  for (const bool first : {true, false}) {
    is_first_round = first;
    for (lane = 0; lane < kLanes; ++lane) {
      num_instructions = 0;
      Quad of_weights[kWeightQuads], of_tokens;
      for (uint32_t q = 0; q < kWeightQuads; ++q)
        memcpy(&of_weights[q], &weights[Product::weight_row(q)][Product::first_byte()], sizeof(Quad));
      memcpy(&of_tokens, &tokens[Product::token_of_lane()][Product::first_byte()], sizeof(Quad));
      float sums[4] = {0.0f, 0.0f, 0.0f, 0.0f};
      Product::add(sums, of_weights, of_tokens);
      Product::finish(sums);
      for (uint32_t i = 0; !first && i < Product::kResults; ++i) {
        float wanted = 0.0f;
        for (uint32_t k = 0; k < 64; ++k)
          wanted += fp8::to_float<true>(tokens[Product::result_token(i)][k]) *
                    fp8::to_float<true>(weights[Product::result_row(i)][k]);
        count += sums[i] != wanted;
      }
    }
  }
  return count;
}

int main(int, char** argv) { printf("%d\n", strcmp(argv[1], "8") == 0 ? num_wrong<8>() : num_wrong<16>()); }
