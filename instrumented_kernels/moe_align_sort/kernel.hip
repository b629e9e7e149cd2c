// moe_align_sort: what comes before a grouped GEMM. (token, k) ids sorted by expert, every expert's run padded to whole
// blocks; the expert of every block. Stable, so the result is exact.
//
// The ladder; each step removes what the trace of the one before shows:
//
//   single_block   one block counts, scans and places: one processor works, the others look on
//   dcp            distributed counting, cumsum, parallel placement: all work, and meet at two barriers of the grid
//   chained        one launch counts, one places, and blocks look back at the counts of the blocks before them
//
// Try it:  kprof record -o run.kprof -- python -m instrumented_kernels.moe_align_sort --variant dcp
#include "chained.h"
#include "dcp.h"
#include "single_block.h"

namespace moe_align_sort {

// Every variant for few experts and for many.
constexpr variants::Variant<Call> kVariants[] = {
    {"single_block/few", 1, {{"moe_align_sort/single_block", single_block<Few>}}},
    {"single_block/many", 1, {{"moe_align_sort/single_block", single_block<Many>}}},
    {"dcp/few", 2, {{"moe_align_sort/clear", clear}, {"moe_align_sort/dcp", dcp<Few>}}},
    {"dcp/many", 2, {{"moe_align_sort/clear", clear}, {"moe_align_sort/dcp", dcp<Many>}}},
    {"chained/few",
     3,
     {{"moe_align_sort/clear", clear}, {"moe_align_sort/count", count<Few>}, {"moe_align_sort/place", place<Few>}}},
    // Counting is the same as for small batches.
    {"chained/large",
     3,
     {{"moe_align_sort/clear", clear},
      {"moe_align_sort/count", count<Few>},
      {"moe_align_sort/place", place<FewInLargeTiles>}}},
    {"chained/many",
     3,
     {{"moe_align_sort/clear", clear}, {"moe_align_sort/count", count<Many>}, {"moe_align_sort/place", place<Many>}}},
};

}  // namespace moe_align_sort

#define KERNEL_NAMESPACE moe_align_sort
#include "launch_interface.h"
