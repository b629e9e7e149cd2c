// All-reduce: every rank gets the sum of all ranks' tensors, bitwise the same on all ranks and in all variants:
// accumulated in fp32 in the order of the ranks, rounded once. README.md has the ladder of variants.
//
// A classic ring adds every chunk in a different order, and a classic tree adds sums of sums, so neither gives the same
// bits as the others. Here the tree forwards tensors without adding, and the ring starts every chunk at rank 0.
//
// A call is one launch. Buffers alternate by the parity of the launch's number, and no rank can be two launches ahead
// of another: its result needs the data of every rank, which ranks send after they have read the launch before.
#include "bulk_variants.h"
#include "ladder_variants.h"
#include "packet_variants.h"
#include "ring_variant.h"
#include "variants.h"

namespace all_reduce {

struct Traits {
  bool has_packets;
  Division division;
  GridRule grid_rule;
};

#define ALL_REDUCE_VARIANT(kernel, options)                             \
  VARIANTS_FOR_HALVES(#kernel, "all_reduce/" #kernel, options, kernel), \
      variants::one_launch(#kernel "/fp32", "all_reduce/" #kernel, kernel<float>, options)

constexpr variants::Variant<Call> kVariants[] = {
    ALL_REDUCE_VARIANT(oneshot_serial, {}),
    ALL_REDUCE_VARIANT(oneshot_lock, {}),
    ALL_REDUCE_VARIANT(oneshot_tree, {}),
    ALL_REDUCE_VARIANT(oneshot, variants::kEarly),
    // From 4 MiB on these took up to 20 % longer where they began early: their blocks crowd on few processors then.
    ALL_REDUCE_VARIANT(twoshot_packets, {}),
    ALL_REDUCE_VARIANT(twoshot, {}),
    ALL_REDUCE_VARIANT(ring, {}),
};

// In the order of kVariants, one entry for the three element types of each.
constexpr Traits kTraits[] = {
    {false, Division::kPerSource, kOneBlock},     {false, Division::kPerSource, kBlockPerRank},
    {false, Division::kPerSource, kAnyGrid},      {true, Division::kPerSource, kAnyGrid},
    {true, Division::kPerSlice, kAnyGrid},        {false, Division::kPerSlice, kAnyGrid},
    {false, Division::kSumsAndResults, kAnyGrid},
};

}  // namespace all_reduce

#define KERNEL_NAMESPACE all_reduce
#include "launch_interface.h"

// The most elements that one launch of a variant can handle.
extern "C" uint64_t all_reduce_capacity(const all_reduce::Shape* shape, int variant) {
  const auto& traits = all_reduce::kTraits[variant / 3];
  const uint64_t element_bytes = variant % 3 == 2 ? sizeof(float) : sizeof(uint16_t);
  return all_reduce::capacity(*shape, traits.has_packets, traits.division, element_bytes);
}
extern "C" uint32_t all_reduce_grid_rule(int variant) { return all_reduce::kTraits[variant / 3].grid_rule; }
