// rms_norm_fp8: r = x + residual, and r normalised by its root mean square, weighted, scaled and rounded to fp8, in one
// pass over memory.
//
// The ladder; each step removes what the trace of the one before shows:
//
//   pointwise   a block per row, two bytes per load: most of the time goes into asking for data
//   vectors     16 bytes per load; the row is loaded again for its second use
//   shared      the row is kept in shared memory between its two uses
//   tuned       the row is kept in registers, everything is asked for at once; warps per row by shape
//
// Try it:  kprof record -o run.kprof -- python -m instrumented_kernels.rms_norm_fp8 --variant vectors
#include "ladder_variants.h"
#include "tuned_variant.h"

namespace rms_norm_fp8 {

#define RMS_NORM_VARIANT(name, kernel)                         \
  {name "/fp16", 1, {{"rms_norm_fp8/" name, kernel<Half>}}}, { \
    name "/bf16", 1, {                                         \
      {                                                        \
        "rms_norm_fp8/" name, kernel<BFloat16>                 \
      }                                                        \
    }                                                          \
  }

#define RMS_NORM_TUNED(name, num_held, when)                                           \
  {name "/fp16", 1, {{"rms_norm_fp8/tuned", tuned<Half, num_held, Weights::when>}}}, { \
    name "/bf16", 1, {                                                                 \
      {                                                                                \
        "rms_norm_fp8/tuned", tuned<BFloat16, num_held, Weights::when>                 \
      }                                                                                \
    }                                                                                  \
  }

#define RMS_NORM_WHOLE(name, blocks)                                                 \
  {name "/fp16", 1, {{"rms_norm_fp8/tuned", whole_row<Half, blocks>, {0, true}}}}, { \
    name "/bf16", 1, {                                                               \
      {                                                                              \
        "rms_norm_fp8/tuned", whole_row<BFloat16, blocks>, { 0, true }               \
      }                                                                              \
    }                                                                                \
  }

// The number after `few` and `many`: vectors per thread.
constexpr variants::Variant<Call> kVariants[] = {
    RMS_NORM_VARIANT("pointwise", pointwise), RMS_NORM_VARIANT("vectors", vectors), RMS_NORM_VARIANT("shared", shared),
    RMS_NORM_TUNED("few1", 1, kWithRow),      RMS_NORM_TUNED("few2", 2, kWithRow),  RMS_NORM_TUNED("few4", 4, kWithRow),
    RMS_NORM_TUNED("many4", 4, kAfterRow),    RMS_NORM_WHOLE("whole1", 1),          RMS_NORM_WHOLE("whole2", 2),
};

}  // namespace rms_norm_fp8

#define KERNEL_NAMESPACE rms_norm_fp8
#include "launch_interface.h"
