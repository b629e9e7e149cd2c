// Groups of four warps multiply together, because Hopper multiplies fp8 only so (wgmma), and from shared memory. As in
// `ring`, a block has its share of the rows and copies are several stages ahead. Here the groups divide the depth, and
// each has a ring: what a thread copies, other warps of its group multiply.
#pragma once

#include "call.h"

namespace skinny_gemm {

// An event costs as much as in `ring`.
constexpr uint32_t kGroupStagesPerEvent = 8;

// What a group holds: stages of `kUnits` times 128 bytes of depth of up to `rows` rows of weights, and of the tokens. A
// block with few rows has more groups and larger stages to keep the memory busy; of the others two fit a processor.
template <uint32_t max_tokens, uint32_t rows>
struct GroupsSize {
  using Product = GroupProduct<max_tokens>;
  static constexpr bool kIsWide = Product::kLanes == 32, kHasFewRows = rows <= kFewGroupRows;
  static constexpr uint32_t kUnits = kHasFewRows ? 2 : 1;
  static constexpr uint32_t kBlocks = kIsWide && !kHasFewRows ? 2 : 1;
  static constexpr uint32_t kGroups = !kIsWide ? kGroupsOf64 : (kHasFewRows ? kGroupsOf32 : kGroupsOf32ManyRows);
  static constexpr uint32_t kThreads = kGroups * kGroupWarps * Product::kLanes;
  static constexpr uint32_t kWeightQuads = rows * kUnitQuads, kUnitQuadsOfBoth = (rows + max_tokens) * kUnitQuads;
  static constexpr uint32_t kStageQuads = kUnits * kUnitQuadsOfBoth;
  static constexpr uint32_t kRowBytes = kUnitQuads * sizeof(Quad);
  // The units multiply 64 rows, and read beyond what is there.
  static constexpr uint32_t kRowsBeyond = kGroupRows > rows + max_tokens ? kGroupRows - rows - max_tokens : 0;
  // The driver takes 1 KiB of each block.
  static constexpr uint32_t kMostBytes = (kMaxSharedBytes + 1024) / kBlocks - 1024 - kRowsBeyond * kRowBytes;
  static constexpr uint32_t kStages = kMostBytes / (kGroups * kStageQuads * sizeof(Quad));
  static_assert(kStages >= 3, "one stage is multiplied, and one overwritten, while another is on its way");
  static constexpr uint32_t kRing = kStages * kStageQuads;
  static constexpr uint32_t kBytes = kGroups * kRing * sizeof(Quad) + kRowsBeyond * kRowBytes;
  static_assert(kBytes >= kGroups * rows * max_tokens * sizeof(float), "the sums lie where the rings were");
};

// A thread's part of what its group does. Stages are asked for and multiplied one after the other. What differs between
// them is kept, not computed for each: short loops count where blocks have few rows.
template <uint32_t max_tokens, uint32_t rows>
class Group {
 public:
  using Size = GroupsSize<max_tokens, rows>;
  using Product = GroupProduct<max_tokens>;
  using Sums = typename Product::Sums;

  KPROF_DEVICE Group(const Call& call, Range share, Quad* memory)
      : depth_(call.shape.depth),
        // Told to the compiler as one for all lanes: wgmma takes no other addresses.
        id_(broadcast(warp_id() / kGroupWarps)),
        memory_(memory),
        weights_(call.weights + static_cast<uint64_t>(share.begin + row()) * depth_),
        tokens_(call.tokens + static_cast<uint64_t>(row()) * depth_),
        num_rows_(static_cast<int32_t>(share.size() - row())),
        num_tokens_(static_cast<int32_t>(call.shape.num_tokens - row())),
        byte_(id_ * kStageDepth + quad() * sizeof(Quad)),
        place_(id_ * Size::kRing + place_in_unit(row(), quad())) {}

  KPROF_DEVICE uint32_t id() const { return id_; }
  // Of every group, so that all meet equally often. What is beyond the depth is zero.
  KPROF_DEVICE uint32_t num_stages() const { return (depth_ + kDepthOfAll - 1) / kDepthOfAll; }

  // Every call ends a batch, so that the last ones are counted, too.
  KPROF_DEVICE void ask_for(uint32_t stage) {
    if (stage < num_stages()) copy_stage();
    end_batch();
  }
  KPROF_DEVICE void begin_to_multiply(uint32_t stage, Sums (&sums)[Size::kUnits]) const {
    Product::template add<rows>(sums, memory_ + id_ * Size::kRing + stage % Size::kStages * Size::kStageQuads);
  }

 private:
  static constexpr uint32_t kStageDepth = Size::kUnits * kUnitDepth, kDepthOfAll = Size::kGroups * kStageDepth;
  static constexpr uint32_t kThreads = kGroupWarps * Product::kLanes, kRowsAtOnce = kThreads / kUnitQuads;

  // The first row that this thread copies, and its quad of each.
  KPROF_DEVICE static uint32_t row() { return thread_id() % kThreads / kUnitQuads; }
  KPROF_DEVICE static uint32_t quad() { return thread_id() % kUnitQuads; }
  KPROF_DEVICE void copy_stage() {
    Quad* place = memory_ + place_;
    for (uint32_t u = 0; u < Size::kUnits; ++u, place += Size::kUnitQuadsOfBoth) {
      const uint32_t byte = byte_ + u * kUnitDepth;
      const bool is_there = byte < depth_;
      copy_rows<rows>(place, weights_ + (is_there ? byte : 0), num_rows_, is_there);
      copy_rows<max_tokens>(place + Size::kWeightQuads, tokens_ + (is_there ? byte : 0), num_tokens_, is_there);
    }
    byte_ += kDepthOfAll;
    place_ += Size::kStageQuads;
    if (++slot_ == Size::kStages) slot_ = 0, place_ -= Size::kRing;
  }
  // Rows that there are not are not copied: what lies there spoils only results that nobody wants. A thread's rows have
  // the same place within 8.
  template <uint32_t most>
  KPROF_DEVICE void copy_rows(Quad* place, const uint8_t* from, int32_t num_rows, bool is_there) const {
    for (uint32_t first = 0; first < most; first += kRowsAtOnce, from += kRowsAtOnce * uint64_t{depth_})
      if (static_cast<int32_t>(first) < num_rows) copy_async(place + first * kUnitQuads, from, is_there);
  }

  uint32_t depth_;
  uint32_t id_;
  Quad* memory_;
  // From this thread's first row on.
  const uint8_t* weights_;
  const uint8_t* tokens_;
  int32_t num_rows_;
  int32_t num_tokens_;
  // Of the next stage to ask for.
  uint32_t byte_;
  uint32_t place_;
  uint32_t slot_ = 0;
};

template <uint32_t max_tokens, uint32_t rows>
__global__ void KPROF_BLOCKS_PER_PROCESSOR((GroupsSize<max_tokens, rows>::kThreads),
                                           (GroupsSize<max_tokens, rows>::kBlocks)) groups(ProfiledCall call) {
  using Size = GroupsSize<max_tokens, rows>;
  using Product = GroupProduct<max_tokens>;
  KPROF_LARGE_SHARED(Quad, memory, (Size::kBytes / sizeof(Quad)));
  let_next_launch_begin();
  // The launch before hides what it takes to open a track and to divide the work.
  kprof::Track track = kprof::open_track(call, kprof::per_block);
  const Range share = share_of_block(call.shape.num_rows);
  Group<max_tokens, rows> group(call, share, memory);
  await_launch_before();
  Results<Product> results;
  kprof::Span span = profile_start(track);
  for (uint32_t stage = 0; stage + 1 < Size::kStages; ++stage) group.ask_for(stage);
  const uint32_t num_stages = group.num_stages();
  KPROF_UNROLL(1)
  for (uint32_t stage = 0; stage < num_stages; ++stage) {
    await_batches<Size::kStages - 2>();
    typename Product::Sums sums[Size::kUnits] = {};
    Product::meet(group.id());
    group.begin_to_multiply(stage, sums);
    // Where the stage before was: the whole group has multiplied it.
    group.ask_for(stage + Size::kStages - 1);
    Product::await(sums);
    for (const auto& of_unit : sums) results.add(of_unit);
    if ((stage + 1) % kGroupStagesPerEvent == 0 || stage + 1 == num_stages)
      span = profile_lap(track, span, R_MULTIPLY, payload<R_MULTIPLY>(stage));
  }
  await_batches<0>();
  sync_block();  // nobody multiplies any more
  float* const of_groups = reinterpret_cast<float*>(memory);
  const uint32_t first_row = warp_id() % kGroupWarps * kTileRows;
  if (first_row < rows)
    results.for_each([&](uint32_t token, uint32_t row, float sum) {
      of_groups[(group.id() * max_tokens + token) * rows + first_row + row] = sum;
    });
  store_sums<max_tokens, rows>(call, of_groups, Size::kGroups, share);
  profile_stop(track, span, R_REDUCE);
}

}  // namespace skinny_gemm
