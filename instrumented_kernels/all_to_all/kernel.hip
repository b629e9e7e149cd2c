// All-to-all for mixture-of-experts: dispatch tokens to the ranks of their experts, apply a stand-in for the expert,
// combine the results where the tokens came from. The workload that kprof was invented on.
//
// Variants, each an answer to what the trace of the one before shows:
//
//   rank_flags   one flag per (source, destination), stored by a launch of its own when all rows have left; one block
//                receives a source's rows. Look at dispatch_recv: W busy blocks, all others empty.
//   token_flags  one flag per row; block 0 counts while the others send; block b receives from source b % W. A source
//   that
//                sends three times the rows gives three times the work to the blocks that serve it: look for the long
//                blocks in dispatch_recv, then at whom they serve.
//   fused        the expert happens on the way out, in combine_send: one launch and one pass over the rows fewer.
//   balanced     rows are dealt to warps over all sources (and experts) together, by prefix sums over the counts. Every
//                block has the same number of rows; what is left are waits for sources that are late.
//   pipelined    one launch without a barrier: rows go back while others still arrive (pipelined.h).
//
// The others are sequences of launches; the end of a launch is their only grid-wide barrier:
//   dispatch_send -> dispatch_recv -> (expert ->) combine_send -> combine_recv
//
// Try it:  kprof record --nproc 8 -o run.kprof -- python -m instrumented_kernels.all_to_all --shape 64,6,2048,8 --skew
// 3
#include "combine.h"
#include "dispatch.h"
#include "pipelined.h"
#include "rank_flags.h"

namespace all_to_all {

// The next call has the next number. One thread, after all that belongs to this call.
__global__ void count_call(ProfiledCall call) {
  if (thread_id() == 0) *call.num_counted() += 1;
}

using Phase = variants::Phase<Call>;

constexpr Phase kDispatchSend = {"all_to_all/dispatch_send", dispatch_send};
constexpr Phase kExpert = {"all_to_all/expert", expert};
constexpr Phase kCombineRecv = {"all_to_all/combine_recv", combine_recv<Deal::kByGroup>};

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
      {"all_to_all/dispatch_recv", dispatch_recv<Deal::kByGroup>},
      kExpert,
      {"all_to_all/combine_send", combine_send<Deal::kByGroup, false>},
      kCombineRecv}},
    {"fused",
     4,
     {kDispatchSend,
      {"all_to_all/dispatch_recv", dispatch_recv<Deal::kByGroup>},
      {"all_to_all/combine_send", combine_send<Deal::kByGroup, true>},
      kCombineRecv}},
    {"balanced",
     4,
     {kDispatchSend,
      {"all_to_all/dispatch_recv", dispatch_recv<Deal::kFlattened>},
      {"all_to_all/combine_send", combine_send<Deal::kFlattened, true>},
      {"all_to_all/combine_recv", combine_recv<Deal::kFlattened>}}},
    {"pipelined", 1, {{"all_to_all/pipelined", pipelined}}},
};

}  // namespace all_to_all

// ---- the C interface that plan.py loads -----------------------------------------------------------------------------

#define KERNEL_NAMESPACE all_to_all
#include "launch_interface.h"

// Where the workspace holds what dispatch delivered, in bytes, and the elements from a row there to the next.
extern "C" void all_to_all_delivery(const all_to_all::Shape* shape, uint64_t* places) {
  const all_to_all::WorkspaceLayout layout(*shape);
  places[0] = layout.expert_counts.bytes();
  places[1] = layout.expert_origins.bytes();
  places[2] = layout.expert_rows.bytes();
  places[3] = all_to_all::row_stride(*shape);
}
// Loads what counts calls: a kernel should not be loaded while a graph is captured. Returns whether it can run.
extern "C" int all_to_all_prepare_counting() {
  return kprof::platform::max_resident_blocks(all_to_all::count_call, 1) > 0 ? 1 : 0;
}
// The last launch of a call that is counted on the device.
extern "C" int all_to_all_count_call(const all_to_all::CallArguments* call, void* stream) {
  const all_to_all::ProfiledCall unprofiled(*call, kprof::make_buffer(kprof::LaunchBuffer{}));
  return KPROF_LAUNCH(all_to_all::count_call, 1, 1, stream, 0, unprofiled);
}
// Where the workspace counts these calls, in bytes.
extern "C" uint64_t all_to_all_num_counted_at(const all_to_all::Shape* shape) {
  return all_to_all::WorkspaceLayout(*shape).num_counted.bytes();
}
// Brings the rows that `pipelined` left where they arrived into the order of the experts; for a look at them.
extern "C" int all_to_all_gather_expert_rows(const all_to_all::CallArguments* call, int num_blocks,
                                             int threads_per_block, void* stream) {
  const all_to_all::ProfiledCall unprofiled(*call, kprof::make_buffer(kprof::LaunchBuffer{}));
  return KPROF_LAUNCH(all_to_all::gather_expert_rows, num_blocks, threads_per_block, stream, 0, unprofiled);
}
