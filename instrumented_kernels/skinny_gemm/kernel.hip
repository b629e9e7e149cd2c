// skinny_gemm: fp16 [M, N] = scale * fp8 [M, K] x fp8 [N, K]^T for up to 32 tokens. All that counts is how fast the
// weights come. README.md has the ladder of variants.
#include "direct_variants.h"
#include "groups_variant.h"
#include "ring_variant.h"
#include "specialised_variant.h"

namespace skinny_gemm {

using variants::one_launch;

#define SKINNY_GEMM_VARIANTS(max_tokens)                                                          \
  one_launch("tiled/" #max_tokens, "skinny_gemm/tiled", tiled<max_tokens>),                       \
      one_launch("split_k/" #max_tokens, "skinny_gemm/split_k", split<max_tokens, 1, false>),     \
      one_launch("specialised/" #max_tokens, "skinny_gemm/specialised", specialised<max_tokens>), \
      one_launch("tuned/" #max_tokens, "skinny_gemm/tuned", specialised<max_tokens>),             \
      one_launch("direct/" #max_tokens, "skinny_gemm/direct", split<max_tokens, (max_tokens <= 16 ? 4 : 2), true>)

// The number after `ring`: how often a block can have 16 rows.
#define SKINNY_GEMM_RING(max_tokens, row_tiles)                                                  \
  one_launch("ring" #row_tiles "/" #max_tokens, "skinny_gemm/ring", ring<max_tokens, row_tiles>, \
             {RingSize<max_tokens, row_tiles>::kBytes, true})

// The number after `groups`: the rows that a block can have.
#define SKINNY_GEMM_GROUPS(max_tokens, rows)                                                 \
  one_launch("groups" #rows "/" #max_tokens, "skinny_gemm/groups", groups<max_tokens, rows>, \
             {GroupsSize<max_tokens, rows>::kBytes, true})

// The number after the name: the most tokens that the kernel handles.
constexpr variants::Variant<Call> kVariants[] = {
    SKINNY_GEMM_VARIANTS(8),    SKINNY_GEMM_VARIANTS(16),   SKINNY_GEMM_VARIANTS(32),   SKINNY_GEMM_RING(8, 2),
    SKINNY_GEMM_RING(8, 4),     SKINNY_GEMM_RING(8, 8),     SKINNY_GEMM_RING(16, 2),    SKINNY_GEMM_RING(16, 4),
    SKINNY_GEMM_RING(16, 8),    SKINNY_GEMM_RING(32, 2),    SKINNY_GEMM_RING(32, 4),    SKINNY_GEMM_GROUPS(8, 32),
    SKINNY_GEMM_GROUPS(8, 64),  SKINNY_GEMM_GROUPS(16, 32), SKINNY_GEMM_GROUPS(16, 64), SKINNY_GEMM_GROUPS(32, 32),
    SKINNY_GEMM_GROUPS(32, 64),
};

}  // namespace skinny_gemm

#define KERNEL_NAMESPACE skinny_gemm
#include "launch_interface.h"
