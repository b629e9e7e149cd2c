// What kernels with packets record. A call takes a few microseconds and every rank waits for all others, so recording
// must not delay them. Thread 0 of a block writes its records while packets are in flight, and the last one after its
// results have left. The other warps skip this code.
#pragma once

#include <kprof/short_track.h>

#include "call.h"

namespace all_reduce {

// The bytes of this block's packets, if `num` packets are distributed thread by thread.
KPROF_DEVICE uint32_t num_bytes_of_block(uint32_t num) {
  uint32_t num_dealt = 0;
  // A division would take as long as several rounds.
  KPROF_UNROLL(1)
  for (uint32_t begin = block_id() * num_threads(); begin < num; begin += num_grid_threads())
    num_dealt += at_most(num - begin, num_threads());
  return num_dealt * packets::kDataBytes;
}

// The records of a phase: the result, then a send to and a wait for every rank (this rank's slot stays empty).
KPROF_DEVICE uint32_t num_records_of_phase(const Call& call) { return 2 * call.num_ranks() + 1; }
// And one to close the track.
KPROF_DEVICE uint32_t num_records_of(const Call& call, uint32_t num_phases) {
  return num_phases * num_records_of_phase(call) + 1;
}

using Moment = kprof::Span;
KPROF_DEVICE Moment clock_now() { return kprof::profile_now(); }
// The track of a call's records, in two steps. All threads call them: the first before they wait for the launch before,
// which hides what it takes, and the second when the packets are in flight.
KPROF_DEVICE kprof::EarlyTrack ask_for_records(const ProfiledCall& call, uint32_t num_phases, bool has_work) {
  return has_work ? kprof::ask_for_short_track(call, num_records_of(call, num_phases)) : kprof::EarlyTrack{};
}
KPROF_DEVICE kprof::ShortTrack open_records(const ProfiledCall& call, uint32_t num_phases,
                                            const kprof::EarlyTrack& early) {
  return kprof::open_short_track(call, num_records_of(call, num_phases), early);
}
// The track began when the block asked for it, which may be long before its first record.
KPROF_DEVICE void close_records(const Call& call, const kprof::ShortTrack& track, uint32_t num_phases,
                                const Moment& asked, const Moment& made) {
  kprof::close_short_track(track, num_records_of(call, num_phases) - 1, asked, made);
}

#if KPROF_ENABLED

// One phase of a call as thread 0 records it: send a packet to each peer, wait for one from each, compute a result.
// Sends are written while packets are in flight, and a wait as soon as its packet is there: while the others are not,
// nobody waits for this thread. After the last packet every instruction delays the call, so what is left is short.
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
        kprof::profile_at(track_, place_ + 1 + peer, begin, ticks, kSent,
                          kprof::payload<kSent>(peer, block_id(), num_bytes));
    }
  }

  // The thread starts with its next packet of each rank. Only the first is recorded.
  KPROF_DEVICE void next_packet(bool is_first) { is_recorded_ = is_first && kprof::is_writer(track_); }

  // It polled them: bit k of `came` stands for rank `begin` + k. The waits follow each other in the order of arrival.
  KPROF_DEVICE void write_waits(uint32_t begin, uint32_t came) {
    if (!is_recorded_ || came == 0) return;
    const kprof::Span now = kprof::profile_now();
    KPROF_UNROLL(1)
    for (; came != 0; came &= came - 1) {
      const uint32_t source = begin + lowest_lane(came);
      kprof::profile_at(track_, place_ + 1 + num_ranks_ + source, last_, kprof::ticks_between(last_, now), kWaited,
                        kprof::payload<kWaited>(0u, block_id()) + source);
      last_ = now;
    }
  }

  // Returns when the result was there.
  KPROF_DEVICE kprof::Span write_made(uint32_t num_bytes) const {
    const kprof::Span now = kprof::profile_now();
    if (kprof::is_writer(track_))
      kprof::profile_at(track_, place_, last_, kprof::ticks_between(last_, now), kMade,
                        kprof::payload<kMade>(num_bytes));
    return now;
  }

 private:
  const uint32_t num_ranks_;
  const kprof::ShortTrack track_;
  const uint32_t place_;
  const kprof::Span sent_;
  kprof::Span last_;
  bool is_recorded_ = false;
};

#else

// The same names, doing nothing. The macros do not evaluate their arguments.
template <kprof::Region, kprof::Region, kprof::Region>
struct PhaseSpans {
  KPROF_DEVICE PhaseSpans(const Call&, const kprof::ShortTrack&, uint32_t, const Moment&) {}
  KPROF_DEVICE void write_sends() const {}
  KPROF_DEVICE void next_packet() {}
  KPROF_DEVICE void write_waits() {}
  KPROF_DEVICE Moment write_made() const { return {}; }
};

#define write_sends(...) write_sends()
#define next_packet(...) next_packet()
#define write_waits(...) write_waits()
#define write_made(...) write_made()

#endif

}  // namespace all_reduce
