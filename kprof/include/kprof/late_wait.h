// A wait in a loop of its own, apart from tracks: for helpers that wait for flags, and for short tracks, which begin
// after the wait.
//
//   kprof::LateWait late(prof, kprof::per_warp);
//   const uint64_t begin = kprof::platform::realtime_ticks();
//   while ((held = load(flag)) < epoch) {
//     kprof::platform::pause();
//     late.look(begin, [&] { return kprof::WaitFor{R_WAIT, payload<R_WAIT>(peer, slot), {held, epoch}}; });
//   }
//
// The line is closed when the wait ends with its scope; after `keep` it stays, to say why the kernel gave up.
#pragma once

#include "kprof.h"

namespace kprof {

// The region of a wait, its payload as regions.h declares it, and the flag that it reads, if it does.
struct WaitFor {
  uint32_t region;
  uint32_t payload;
  Flag flag{};
};

#if KPROF_ENABLED

class LateWait {
 public:
  KPROF_DEVICE LateWait(const Buffer& buffer, TrackScope scope)
      : arena_(reinterpret_cast<const ControlBlock*>(buffer.arena)), launch_(buffer.launch), scope_(scope) {}
  KPROF_DEVICE ~LateWait() {
    if (__builtin_expect(line_ != nullptr, 0)) close_wait_line(arena_, line_);
  }
  LateWait(const LateWait&) = delete;
  LateWait& operator=(const LateWait&) = delete;

  // Tells of the wait if it lasts since `begin_ticks` (realtime) and that is long ago; later calls tell what its flag
  // holds by then. Reads the clock until then. Only the writer of the track does, and only then `what()` is called.
  template <typename What>
  KPROF_DEVICE void look(uint64_t begin_ticks, const What& what) {
    if (arena_ == nullptr || !is_writer()) return;
    if (line_ != nullptr) return tell_flag(line_, told_, what().flag.held);
    if (platform::realtime_ticks() - begin_ticks < kLateTicks) return;
    const WaitFor wait = what();
    line_ = open_wait_line(arena_, launch_, platform::block_id(), warp(), begin_ticks, wait.region, wait.payload,
                           wait.flag);
    told_ = wait.flag.held;
  }
  // The wait is given up.
  KPROF_DEVICE void keep() {
    if (line_ != nullptr) release_wait_line(arena_, line_);
    line_ = nullptr;
  }

 private:
  KPROF_DEVICE bool is_writer() const {
    return scope_ == per_warp ? platform::lane_id() == 0 : platform::thread_id() == 0;
  }
  KPROF_DEVICE uint32_t warp() const { return scope_ == per_warp ? platform::warp_id() : kBlockTrackWarp; }

  const ControlBlock* arena_;
  uint32_t launch_;
  TrackScope scope_;
  uint64_t* line_ = nullptr;
  uint32_t told_ = 0;
};

#else  // KPROF_ENABLED

struct [[maybe_unused]] LateWait {
  KPROF_DEVICE LateWait(const Buffer&, TrackScope) {}
  template <typename What>
  KPROF_DEVICE void look(uint64_t, const What&) {}
  KPROF_DEVICE void keep() {}
};

#endif  // KPROF_ENABLED

}  // namespace kprof
