// rms_norm_fp8: r = x + residual, and r normalised by its root mean square, weighted, scaled and rounded to fp8, in one
// pass over memory. README.md has the ladder of variants.
#include "ladder_variants.h"
#include "tuned_variant.h"

namespace rms_norm_fp8 {

// The number after `few` and `many`: vectors per thread.
constexpr variants::Variant<Call> kVariants[] = {
    VARIANTS_FOR_HALVES("pointwise", "rms_norm_fp8/pointwise", {}, pointwise),
    VARIANTS_FOR_HALVES("vectors", "rms_norm_fp8/vectors", {}, vectors),
    VARIANTS_FOR_HALVES("shared", "rms_norm_fp8/shared", {}, shared),
    VARIANTS_FOR_HALVES("few1", "rms_norm_fp8/tuned", {}, tuned, 1, Weights::kWithRow),
    VARIANTS_FOR_HALVES("few2", "rms_norm_fp8/tuned", {}, tuned, 2, Weights::kWithRow),
    VARIANTS_FOR_HALVES("few4", "rms_norm_fp8/tuned", {}, tuned, 4, Weights::kWithRow),
    VARIANTS_FOR_HALVES("many4", "rms_norm_fp8/tuned", {}, tuned, 4, Weights::kAfterRow),
    VARIANTS_FOR_HALVES("whole1", "rms_norm_fp8/tuned", variants::kEarly, whole_row, 1),
    VARIANTS_FOR_HALVES("whole2", "rms_norm_fp8/tuned", variants::kEarly, whole_row, 2),
};

}  // namespace rms_norm_fp8

#define KERNEL_NAMESPACE rms_norm_fp8
#include "launch_interface.h"
