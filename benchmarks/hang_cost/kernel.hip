// What it costs that a span may turn out to be a wait that lasts long, and that a span is announced when it begins: the
// same work without profiling, with a span, with a span that calls still_waiting, and with one of an announced region.
//
// token_copy   rows of 14 KiB, one event per warp and row: what a user's kernel sees
// tight_loop   nothing but events, four in a row: what the call costs in each
// long_waits   every event waits for 100 us, so that every one of them opens a line and closes it
#include <kprof/kprof.h>

#define KPROF_REGIONS "regions.h"
#include <kprof/declare_regions.h>

using namespace kprof::platform;

namespace {

enum Scheme { kNone, kSpan, kMayWait, kAnnounced };

constexpr uint64_t kLongWaitTicks = kRealtimeTicksPerSecond / 10000;

struct alignas(16) Vector {
  uint32_t words[4];
};

// One event around `work`, in the given scheme.
template <Scheme scheme, typename Work>
KPROF_DEVICE void measured(kprof::Track& track, uint32_t token, Work work) {
  if constexpr (scheme == kNone) {
    work();
  } else if constexpr (scheme == kSpan) {
    const kprof::Span span = kprof::profile_start(track);
    work();
    kprof::profile_stop(track, span, R_TOKEN, kprof::payload<R_TOKEN>(0u, token));
  } else if constexpr (scheme == kAnnounced) {
    const uint32_t payload = kprof::payload<R_ANNOUNCED>(0u, token);
    const kprof::Span span = kprof::profile_start(track, R_ANNOUNCED, payload);
    work();
    kprof::profile_stop(track, span, R_ANNOUNCED, payload);
  } else {
    kprof::WaitSpan span = kprof::profile_start(track);
    work();
    kprof::still_waiting(track, span, R_TOKEN, kprof::payload<R_TOKEN>(0u, token));
    kprof::profile_stop(track, span, R_TOKEN, kprof::payload<R_TOKEN>(0u, token));
  }
}

template <Scheme scheme>
KPROF_DEVICE kprof::Track open(const kprof::Buffer& prof) {
  if constexpr (scheme == kNone) return kprof::Track(kprof::kNowhere);
  return kprof::open_track(prof, kprof::per_warp);
}

template <Scheme scheme>
__global__ void token_copy(Vector* target, const Vector* source, uint32_t num_tokens, uint32_t vectors_per_token,
                           kprof::Buffer prof) {
  kprof::Track track = open<scheme>(prof);
  const uint32_t warps = num_threads() / warp_width();
  for (uint32_t token = block_id() * warps + warp_id(); token < num_tokens; token += num_blocks() * warps) {
    const uint64_t first = static_cast<uint64_t>(token) * vectors_per_token;
    measured<scheme>(track, token, [&] {
      for (uint32_t i = lane_id(); i < vectors_per_token; i += warp_width()) target[first + i] = source[first + i];
    });
  }
}

template <Scheme scheme>
__global__ void tight_loop(uint32_t* out, uint32_t num_events, kprof::Buffer prof) {
  kprof::Track track = open<scheme>(prof);
  uint32_t sum = 0;
  KPROF_UNROLL(4)
  for (uint32_t i = 0; i < num_events; ++i) measured<scheme>(track, i, [&] { sum += i; });
  if (sum == 1) out[thread_id()] = sum;
}

template <Scheme scheme>
__global__ void long_waits(uint32_t num_events, kprof::Buffer prof) {
  kprof::Track track = open<scheme>(prof);
  for (uint32_t i = 0; i < num_events; ++i) {
    const uint64_t begin = realtime_ticks();
    kprof::WaitSpan span = kprof::profile_start(track);
    while (realtime_ticks() - begin < kLongWaitTicks) {
      pause();
      if constexpr (scheme == kMayWait) kprof::still_waiting(track, span, R_TOKEN, kprof::payload<R_TOKEN>(0u, i));
    }
    if constexpr (scheme != kNone) kprof::profile_stop(track, span, R_TOKEN, kprof::payload<R_TOKEN>(0u, i));
  }
}

}  // namespace

#define KPROF_DISPATCH(kernel, ...)                                                     \
  switch (scheme) {                                                                     \
    case kNone:                                                                         \
      return KPROF_LAUNCH(kernel<kNone>, blocks, threads, stream, 0, __VA_ARGS__);      \
    case kSpan:                                                                         \
      return KPROF_LAUNCH(kernel<kSpan>, blocks, threads, stream, 0, __VA_ARGS__);      \
    case kMayWait:                                                                      \
      return KPROF_LAUNCH(kernel<kMayWait>, blocks, threads, stream, 0, __VA_ARGS__);   \
    case kAnnounced:                                                                    \
      return KPROF_LAUNCH(kernel<kAnnounced>, blocks, threads, stream, 0, __VA_ARGS__); \
    default:                                                                            \
      return -1;                                                                        \
  }

extern "C" int run_token_copy(int scheme, int blocks, int threads, void* target, const void* source,
                              uint32_t num_tokens, uint32_t vectors_per_token, const kprof::LaunchBuffer* buffer,
                              void* stream) {
  KPROF_DISPATCH(token_copy, static_cast<Vector*>(target), static_cast<const Vector*>(source), num_tokens,
                 vectors_per_token, kprof::make_buffer(*buffer))
}

extern "C" int run_tight_loop(int scheme, int blocks, int threads, void* out, uint32_t num_events,
                              const kprof::LaunchBuffer* buffer, void* stream) {
  KPROF_DISPATCH(tight_loop, static_cast<uint32_t*>(out), num_events, kprof::make_buffer(*buffer))
}

extern "C" int run_long_waits(int scheme, int blocks, int threads, uint32_t num_events,
                              const kprof::LaunchBuffer* buffer, void* stream) {
  KPROF_DISPATCH(long_waits, num_events, kprof::make_buffer(*buffer))
}
