// All-to-all for mixture-of-experts: dispatch tokens to the ranks of their experts, apply a placeholder for the expert,
// combine the results on the ranks of the tokens. kprof was invented for this workload.
//
// Each variant removes what the trace of the one before shows:
//
//   rank_flags   one flag per (source, destination), stored by a separate launch when all rows have left; one block
//                receives a source's rows. Look at dispatch_recv: W busy blocks, all others empty.
//   token_flags  one flag per row; block 0 counts while the others send; block b receives from source b % W. If a
//   source
//                sends three times the rows, the blocks that serve it have three times the work: look for the long
//                blocks in dispatch_recv, then for the source that they serve.
//   fused        combine_send applies the expert: one launch and one pass over the rows fewer.
//   balanced     divides rows among warps over all sources (and experts) together, by prefix sums over the counts.
//   Every
//                block has the same number of rows; only waits for late sources are left.
//   pipelined    one launch without a barrier: rows go back while others still arrive (pipelined.h).
//
// All but pipelined are sequences of launches; the end of a launch is their only grid-wide barrier:
//   dispatch_send -> dispatch_recv -> (expert ->) combine_send -> combine_recv
//
// Try it:
//   kprof record --nproc 8 -o run.kprof -- python -m instrumented_kernels.all_to_all --shape 64,6,2048,8 --skew 3
#include "combine.h"
#include "dispatch.h"
#include "pipelined.h"
#include "rank_flags.h"

namespace all_to_all {

// Advances the number of the call. One thread, after everything else of this call.
__global__ void count_call(ProfiledCall call) {
  if (thread_id() == 0) *call.num_counted() += 1;
}

using Phase = variants::Phase<Call>;

constexpr Phase kDispatchSend = {"all_to_all/dispatch_send", dispatch_send};
constexpr Phase kExpert = {"all_to_all/expert", expert};
constexpr Phase kCombineRecv = {"all_to_all/combine_recv", combine_recv<Partition::kByGroup>};

constexpr variants::Variant<Call> kVariants[] = {
    {"rank_flags",
     7,
     {{"all_to_all/dispatch_send", dispatch_send_rows},
      {"all_to_all/dispatch_flag", dispatch_flag},
      {"all_to_all/dispatch_recv", dispatch_recv_ranks},
      kExpert,
      {"all_to_all/combine_send", combine_send_rows},
      {"all_to_all/combine_flag", combine_flag},
      {"all_to_all/combine_recv", combine_recv_ranks}}},
    {"token_flags",
     5,
     {kDispatchSend,
      {"all_to_all/dispatch_recv", dispatch_recv<Partition::kByGroup>},
      kExpert,
      {"all_to_all/combine_send", combine_send<Partition::kByGroup, false>},
      kCombineRecv}},
    {"fused",
     4,
     {kDispatchSend,
      {"all_to_all/dispatch_recv", dispatch_recv<Partition::kByGroup>},
      {"all_to_all/combine_send", combine_send<Partition::kByGroup, true>},
      kCombineRecv}},
    {"balanced",
     4,
     {kDispatchSend,
      {"all_to_all/dispatch_recv", dispatch_recv<Partition::kFlattened>},
      {"all_to_all/combine_send", combine_send<Partition::kFlattened, true>},
      {"all_to_all/combine_recv", combine_recv<Partition::kFlattened>}}},
    {"pipelined", 1, {{"all_to_all/pipelined", pipelined}}},
};

}  // namespace all_to_all

// ---- the C interface that plan.py loads -----------------------------------------------------------------------------

#define KERNEL_NAMESPACE all_to_all
#include "launch_interface.h"

// The offset in bytes of the dispatched rows in the workspace, and the stride of these rows in elements.
extern "C" void all_to_all_delivery(const all_to_all::Shape* shape, uint64_t* places) {
  const all_to_all::WorkspaceLayout layout(*shape);
  places[0] = layout.expert_counts.bytes();
  places[1] = layout.expert_origins.bytes();
  places[2] = layout.expert_rows.bytes();
  places[3] = all_to_all::row_stride(*shape);
}
// Loads the kernel that counts calls, because no kernel should be loaded while a graph is captured. Returns whether it
// can run.
extern "C" int all_to_all_prepare_counting() {
  return kprof::platform::max_resident_blocks(all_to_all::count_call, 1) > 0 ? 1 : 0;
}
// The last launch of a call whose number is counted on the device.
extern "C" int all_to_all_count_call(const all_to_all::CallArguments* call, void* stream) {
  const all_to_all::ProfiledCall unprofiled(*call, kprof::make_buffer(kprof::LaunchBuffer{}));
  return KPROF_LAUNCH(all_to_all::count_call, 1, 1, stream, 0, unprofiled);
}
// The offset in bytes of this counter in the workspace.
extern "C" uint64_t all_to_all_num_counted_at(const all_to_all::Shape* shape) {
  return all_to_all::WorkspaceLayout(*shape).num_counted.bytes();
}
// Copies the rows that `pipelined` left where they arrived into the order of the experts, to inspect them.
extern "C" int all_to_all_gather_expert_rows(const all_to_all::CallArguments* call, int num_blocks,
                                             int threads_per_block, void* stream) {
  const all_to_all::ProfiledCall unprofiled(*call, kprof::make_buffer(kprof::LaunchBuffer{}));
  return KPROF_LAUNCH(all_to_all::gather_expert_rows, num_blocks, threads_per_block, stream, 0, unprofiled);
}
