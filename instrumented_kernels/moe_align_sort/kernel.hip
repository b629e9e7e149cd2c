// moe_align_sort: what comes before a grouped GEMM. (token, k) ids sorted by expert, every expert's run padded to whole
// blocks; the expert of every block. Stable, so the result is exact. README.md has the ladder of variants.
#include "chained.h"
#include "dcp.h"
#include "single_block.h"

namespace moe_align_sort {

using variants::kEarly;
using variants::launches;
using Phase = variants::Phase<Call>;

constexpr Phase kClear = {"moe_align_sort/clear", clear};
constexpr Phase kCountFew = {"moe_align_sort/count", count<Few>, kEarly};

// Every variant for few experts and for many.
constexpr variants::Variant<Call> kVariants[] = {
    launches("single_block/few", Phase{"moe_align_sort/single_block", single_block<Few>}),
    launches("single_block/many", Phase{"moe_align_sort/single_block", single_block<Many>}),
    launches("dcp/few", kClear, Phase{"moe_align_sort/dcp", dcp<Few>}),
    launches("dcp/many", kClear, Phase{"moe_align_sort/dcp", dcp<Many>}),
    // Counting is the same for batches of all sizes.
    launches("chained/small", kClear, kCountFew, Phase{"moe_align_sort/place", place<FewInSmallTiles>, kEarly}),
    launches("chained/few", kClear, kCountFew, Phase{"moe_align_sort/place", place<Few>, kEarly}),
    launches("chained/large", kClear, kCountFew, Phase{"moe_align_sort/place", place<FewInLargeTiles>, kEarly}),
    launches("chained/many", kClear, Phase{"moe_align_sort/count", count<Many>, kEarly},
             Phase{"moe_align_sort/place", place<Many>, kEarly}),
};

}  // namespace moe_align_sort

#define KERNEL_NAMESPACE moe_align_sort
#include "launch_interface.h"
