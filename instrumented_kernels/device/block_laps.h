// Spans of a block that follow each other without a gap. They stay in shared memory until the block ends.
//
// For kernels that are short of registers, or vote: an open track takes registers until the end, and after its rare
// calls ptxas no longer knows that the lanes of a warp are together.
//
//   KPROF_SHARED(block_laps::Memory<2>, laps_memory, 1);
//   const block_laps::BlockLaps<2> laps(laps_memory);
//   laps.open(call);                                    // a short track, before the block waits for something
//   await_launch_before();
//   laps.begin();                                       // the first span
//   laps.lap(0, R_LOOK_BACK, payload<R_LOOK_BACK>(n));  // it ends, the second begins
//   laps.lap(1, R_PLACE);
//   laps.record();
#pragma once

#include <kprof/short_track.h>

namespace block_laps {

using namespace kprof::platform;

template <uint32_t num_laps>
struct Memory {
#if KPROF_ENABLED
  struct Lap {
    uint64_t begin_ticks;
    uint32_t region;
    uint32_t payload;
  };
  Lap laps[num_laps + 1];  // behind the last one only the time at which it ends
  kprof::ShortTrack track;
#if KPROF_DELAYS
  uint32_t delay;
#endif
#endif
};

// All threads of the block call each of these once, and `lap` with the numbers from 0 to num_laps - 1. The first thread
// works.
template <uint32_t num_laps>
class BlockLaps {
 public:
#if KPROF_ENABLED
  KPROF_DEVICE explicit BlockLaps(Memory<num_laps>* memory) : memory_(memory) {}

  KPROF_DEVICE void open(const kprof::Buffer& prof) const {
    // One slot more, for what closing the track may write.
    const kprof::ShortTrack track = kprof::open_short_track(prof, num_laps + 1);
    if (thread_id() != 0) return;
    memory_->track = track;
#if KPROF_DELAYS
    memory_->delay = prof.arena == 0 ? 0 : kprof::delay_of(prof, block_id());
#endif
  }

  KPROF_DEVICE void begin() const {
    if (thread_id() == 0) memory_->laps[0].begin_ticks = kprof::profile_now().start_ticks;
  }

  template <typename Id>
  KPROF_DEVICE void lap(uint32_t number, Id region, uint32_t payload = 0) const {
    if (thread_id() != 0) return;
    memory_->laps[number].region = static_cast<uint32_t>(region);
    memory_->laps[number].payload = payload;
#if KPROF_DELAYS
    kprof::delay_span(memory_->delay, static_cast<uint32_t>(region));
#endif
    memory_->laps[number + 1].begin_ticks = kprof::profile_now().start_ticks;
  }

  KPROF_DEVICE void record() const {
    if (thread_id() != 0) return;
    const kprof::ShortTrack track = memory_->track;
    if (!kprof::is_writer(track)) return;
    // Not unrolled: code that is fetched once more costs more than these few jumps.
    KPROF_UNROLL(1)
    for (uint32_t number = 0; number < num_laps; ++number) {
      const auto& lap = memory_->laps[number];
      const kprof::Span begin{lap.begin_ticks}, end{memory_->laps[number + 1].begin_ticks};
      kprof::profile_at(track, number, begin, kprof::ticks_between(begin, end), lap.region, lap.payload);
    }
    kprof::close_short_track(track, num_laps, kprof::Span{memory_->laps[0].begin_ticks},
                             kprof::Span{memory_->laps[num_laps].begin_ticks});
  }

 private:
  Memory<num_laps>* memory_;
#else
  KPROF_DEVICE explicit BlockLaps(const Memory<num_laps>*) {}
  KPROF_DEVICE void open(const kprof::Buffer&) const {}
  KPROF_DEVICE void begin() const {}
  template <typename Id>
  KPROF_DEVICE void lap(uint32_t, Id, uint32_t = 0) const {}
  KPROF_DEVICE void record() const {}
#endif
};

}  // namespace block_laps
