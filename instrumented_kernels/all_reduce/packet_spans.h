// What kernels with packets record. A call takes a few microseconds and every rank waits for all others, so recording
// must not delay them: on the critical path it only reads the clock, into registers. Thread 0 of a block writes its
// records while its packets are in flight, and the last ones after its results have left. The other warps skip this
// code.
#pragma once

#include <kprof/short_track.h>

#include "call.h"

namespace all_reduce {

// The bytes of this block's packets, if `num` packets are distributed thread by thread.
KPROF_DEVICE uint32_t num_bytes_of_block(uint32_t num) {
  const uint32_t num_left = num % num_grid_threads();
  const uint32_t first = block_id() * num_threads();
  const uint32_t last_round = num_left < first ? 0 : num_left - first;
  const uint32_t num_dealt =
      num / num_grid_threads() * num_threads() + (last_round < num_threads() ? last_round : num_threads());
  return num_dealt * packets::kDataBytes;
}

// The records of a phase: a send to and a wait for every rank (this rank's slot stays empty), and the result.
KPROF_DEVICE uint32_t num_records_of_phase(const Call& call) { return 2 * call.num_ranks() + 1; }

// With ALL_REDUCE_ONLY_CLOCKS, for `python -m benchmarks.all_reduce cost`, kernels read two clocks and record nothing,
// also without kprof: recording cannot cost less.
#ifndef ALL_REDUCE_ONLY_CLOCKS
#define ALL_REDUCE_ONLY_CLOCKS 0
#endif

#if ALL_REDUCE_ONLY_CLOCKS
struct Moment {
  uint64_t ticks;
};
KPROF_DEVICE Moment clock_now() { return {cycle_ticks()}; }
KPROF_DEVICE kprof::ShortTrack open_records(const ProfiledCall&, uint32_t) { return {}; }
// Never true, but the compiler does not know and has to read both clocks.
KPROF_DEVICE void close_records(const Call& call, const kprof::ShortTrack&, uint32_t, const Moment& sent) {
  if (cycle_ticks() + 1 == sent.ticks) *call.counter() = 0;
}
#else
using Moment = kprof::Span;
KPROF_DEVICE Moment clock_now() { return kprof::profile_now(); }
// The track of a call's records. All threads call it.
KPROF_DEVICE kprof::ShortTrack open_records([[maybe_unused]] const ProfiledCall& call,
                                            [[maybe_unused]] uint32_t num_records) {
  return kprof::open_short_track(call, num_records);
}
KPROF_DEVICE void close_records(const Call&, const kprof::ShortTrack& track, uint32_t slot, const Moment& sent) {
  kprof::close_short_track(track, slot, sent);
}
#endif

#if KPROF_ENABLED && !ALL_REDUCE_ONLY_CLOCKS

// One phase of a call as thread 0 records it: send a packet to each peer, wait for one from each, compute a result.
// Sends are written while packets are in flight. The rest stays in registers until the results have left.
template <kprof::Region kSent, kprof::Region kWaited, kprof::Region kMade>
class PhaseSpans {
 public:
  KPROF_DEVICE PhaseSpans(const Call& call, const kprof::ShortTrack& track, uint32_t phase, const kprof::Span& sent)
      : num_ranks_(call.num_ranks()),
        track_(track),
        place_(phase * num_records_of_phase(call)),
        sent_(sent),
        last_(sent) {}

  // When the last packet arrived.
  KPROF_DEVICE kprof::Span last_arrival() const { return last_; }

  // Packets left for all peers for which `has(peer)` is true, at the same time.
  template <typename Has>
  KPROF_DEVICE void write_sends(const Call& call, const kprof::Span& begin, uint32_t num_bytes, Has has) const {
    if (!kprof::is_writer(track_)) return;
    const uint32_t ticks = kprof::ticks_between(begin, sent_);
    KPROF_UNROLL(1)
    for (uint32_t peer = 0; peer < num_ranks_; ++peer) {
      if (peer != call.rank && has(peer))
        kprof::profile_at(track_, place_ + peer, begin, ticks, kSent,
                          kprof::payload<kSent>(peer, block_id(), num_bytes));
    }
  }

  // The thread starts with its next packet of each rank. Only the first is recorded.
  KPROF_DEVICE void next_packet(bool is_first) { is_first_ = is_first; }

  // It starts with the next group of ranks.
  KPROF_DEVICE void next_group() {
    KPROF_UNROLL(kAhead)
    for (uint32_t k = 0; k < kAhead; ++k) arrivals_[k] = kNeverCame;
  }

  // It polled them: bit k of `came` stands for rank k of the group.
  KPROF_DEVICE void note_arrivals(uint32_t came) {
    if (!is_first_) came = 0;
    const kprof::Span now = kprof::profile_now();
    const uint32_t ticks = at_most(kprof::ticks_between(sent_, now), kMostTicks) & kTicksMask;
    KPROF_UNROLL(kAhead)
    for (uint32_t k = 0; k < kAhead; ++k)
      if ((came >> k & 1u) != 0) arrivals_[k] = ticks | k;
    if (came != 0) last_ = now;
  }

  // Writes the waits for the group that begins with rank `begin`, back to back in the order of arrival.
  KPROF_DEVICE void write_waits(uint32_t begin) {
    if (!kprof::is_writer(track_)) return;
    sort_arrivals();
    uint32_t waited_ticks = waited_ticks_;
    KPROF_UNROLL(kAhead)
    for (uint32_t n = 0; n < kAhead; ++n) {
      const bool has_come = arrivals_[n] != kNeverCame;
      const uint32_t source = begin + (arrivals_[n] & ~kTicksMask);
      const uint32_t ticks = arrivals_[n] & kTicksMask;
      const uint32_t duration_ticks = ticks == kMostTicks ? kprof::kDurationSaturated : ticks - waited_ticks;
      kprof::profile_at(track_, place_ + num_ranks_ + source, kprof::span_after(sent_, waited_ticks), duration_ticks,
                        kWaited, kprof::payload<kWaited>(0u, block_id()) + source, has_come);
      if (has_come) waited_ticks = ticks;
    }
    waited_ticks_ = waited_ticks;
  }

  KPROF_DEVICE void write_made(uint32_t num_bytes) const {
    const kprof::Span now = kprof::profile_now();
    if (!kprof::is_writer(track_)) return;
    kprof::profile_at(track_, place_ + 2 * num_ranks_, last_, kprof::ticks_between(last_, now), kMade,
                      kprof::payload<kMade>(num_bytes));
  }

 private:
  // An arrival: ticks since the sends, with the rank's index in the group in the lowest bits.
  static constexpr uint32_t kTicksMask = ~(kAhead - 1);
  static constexpr uint32_t kNeverCame = ~0u;
  static constexpr uint32_t kMostTicks = kTicksMask - kAhead;  // two seconds at 2 GHz
  static_assert(kAhead == 4, "sorted by a network, and four consecutive cycles are taken for one");

  KPROF_DEVICE void sort_arrivals() {
    const auto order = [&](uint32_t i, uint32_t j) {
      const uint32_t earlier = at_most(arrivals_[i], arrivals_[j]);
      arrivals_[j] = arrivals_[i] < arrivals_[j] ? arrivals_[j] : arrivals_[i];
      arrivals_[i] = earlier;
    };
    order(0, 1);
    order(2, 3);
    order(0, 2);
    order(1, 3);
    order(1, 2);
  }

  const uint32_t num_ranks_;
  const kprof::ShortTrack track_;
  const uint32_t place_;
  const kprof::Span sent_;
  kprof::Span last_;
  bool is_first_ = false;
  uint32_t waited_ticks_ = 0;  // since the sends: the end of the wait that was written last
  uint32_t arrivals_[kAhead];
};

#else

// The same names, doing nothing. The macros do not evaluate their arguments.
template <kprof::Region, kprof::Region, kprof::Region>
struct PhaseSpans {
  KPROF_DEVICE PhaseSpans(const Call&, const kprof::ShortTrack&, uint32_t, const Moment&) {}
  KPROF_DEVICE void write_sends() const {}
  KPROF_DEVICE void next_packet() {}
  KPROF_DEVICE void next_group() {}
  KPROF_DEVICE void note_arrivals() {}
  KPROF_DEVICE void write_waits() {}
  KPROF_DEVICE void write_made() const {}
};

#define write_sends(...) write_sends()
#define next_packet(...) next_packet()
#define note_arrivals(...) note_arrivals()
#define write_waits(...) write_waits()
#define write_made(...) write_made()

#endif

}  // namespace all_reduce
