// What compute kernels need from a target in addition to platform.h: fp8, matrix units, and shared memory.
//
//   fp8        kFp8IsFnuz, float_to_fp8(), pack_fp8() (four values to nearest even, saturated; NaN stays NaN). OCP
//              e4m3fn, or e4m3fnuz where the matrix units of the architecture take that (gfx940 to gfx942; the CPU
//              target with -DKPROF_FP8_FNUZ=1)
//   numbers    square_root(), exp_of(); exp2_fast() and reciprocal_fast(), to about 1e-6
//   launches   let_next_launch_begin(), await_launch_before(): for kernels with LaunchOptions::is_early
//   lanes      lanes_equal(), add_shared(), warp_sum()
//   flags      store_flag_shared(), load_flag_shared(): release and acquire between warps of a block, in shared memory
//   matrices   Fp8Product<tokens>: tiles of 16 rows of weights times up to 8, 16 or 32 tokens, summed in fp32;
//              UnpackedFp8Product: the same, scheduled differently on NVIDIA; GroupProduct: up to 64 rows of weights,
//              by a group of four warps, from shared memory (platform/group_product.h), which is wgmma on sm_90
#pragma once

#include "platform.h"

// The target's part; its header in platform/ names the file.
#include KPROF_COMPUTE_OF_TARGET
#include "platform/group_product.h"

namespace kprof::platform {

// Converts four floats to fp8, the first in the lowest byte.
KPROF_DEVICE uint32_t pack_fp8(float a, float b, float c, float d) {
  return pack_fp8_pair(a, b) | pack_fp8_pair(c, d) << 16;
}

KPROF_DEVICE uint8_t float_to_fp8(float value) { return static_cast<uint8_t>(pack_fp8_pair(value, 0.0f)); }

// The sum over all lanes of the warp, in every lane. Always added in the same order.
KPROF_DEVICE float warp_sum(float value) {
  for (uint32_t distance = warp_width() / 2; distance != 0; distance /= 2) {
    value += bits_as<float>(shuffle(bits_as<uint32_t>(value), lane_id() ^ distance));
  }
  return value;
}

}  // namespace kprof::platform
