// All-to-all for mixture-of-experts: dispatch tokens to the ranks of their experts, apply a placeholder for the expert,
// combine the results on the ranks of the tokens. kprof was invented for this workload. README.md has the ladder of
// variants.
//
// All but pipelined are sequences of launches; the end of a launch is their only grid-wide barrier:
//   dispatch_send -> dispatch_recv -> (expert ->) combine_send -> combine_recv
#include "combine.h"
#include "dispatch.h"
#include "pipelined.h"
#include "rank_flags.h"

namespace all_to_all {

// Advances the number of the call. One thread, after everything else of this call.
__global__ void count_call(ProfiledCall call) {
  if (thread_id() == 0) *call.num_counted() += 1;
}

using variants::launches;
using Phase = variants::Phase<Call>;

constexpr Phase kDispatchSend = {"all_to_all/dispatch_send", dispatch_send};
constexpr Phase kDispatchRecv = {"all_to_all/dispatch_recv", dispatch_recv<Partition::kByGroup>};
constexpr Phase kExpert = {"all_to_all/expert", expert};
constexpr Phase kCombineRecv = {"all_to_all/combine_recv", combine_recv<Partition::kByGroup>};

constexpr variants::Variant<Call> kVariants[] = {
    launches("rank_flags", Phase{"all_to_all/dispatch_send", dispatch_send_rows},
             Phase{"all_to_all/dispatch_flag", dispatch_flag}, Phase{"all_to_all/dispatch_recv", dispatch_recv_ranks},
             kExpert, Phase{"all_to_all/combine_send", combine_send_rows},
             Phase{"all_to_all/combine_flag", combine_flag}, Phase{"all_to_all/combine_recv", combine_recv_ranks}),
    launches("token_flags", kDispatchSend, kDispatchRecv, kExpert,
             Phase{"all_to_all/combine_send", combine_send<Partition::kByGroup, false>}, kCombineRecv),
    launches("fused", kDispatchSend, kDispatchRecv,
             Phase{"all_to_all/combine_send", combine_send<Partition::kByGroup, true>}, kCombineRecv),
    launches("balanced", kDispatchSend, Phase{"all_to_all/dispatch_recv", dispatch_recv<Partition::kFlattened>},
             Phase{"all_to_all/combine_send", combine_send<Partition::kFlattened, true>},
             Phase{"all_to_all/combine_recv", combine_recv<Partition::kFlattened>}),
    launches("pipelined", Phase{"all_to_all/pipelined", pipelined}),
    // Parts of calls, and what inspects them.
    launches("/count_call", Phase{"all_to_all/count_call", count_call}),
    launches("/gather_expert_rows", Phase{"all_to_all/gather_expert_rows", gather_expert_rows}),
};

}  // namespace all_to_all

// ---- the C interface that plan.py loads -----------------------------------------------------------------------------

#define KERNEL_NAMESPACE all_to_all
#include "launch_interface.h"

// What tests/support/delivery.py reads in the workspace: offsets in bytes, and the stride of rows in elements.
extern "C" void all_to_all_delivery(const all_to_all::Shape* shape, uint64_t* places) {
  const all_to_all::WorkspaceLayout layout(*shape);
  places[0] = layout.expert_counts.bytes();
  places[1] = layout.expert_origins.bytes();
  places[2] = layout.expert_rows.bytes();
  places[3] = all_to_all::row_stride(*shape);
  places[4] = layout.num_counted.bytes();
}
