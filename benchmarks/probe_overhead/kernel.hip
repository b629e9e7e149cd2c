// What an event costs: the same work with no profiling, with kprof and with the classic scheme, in one source.
//
// token_copy   8192 rows of 14 KiB, one event per warp and row (or per block and round): what a user's kernel sees
// tight_loop   nothing but events: what the event itself costs
//
// The classic scheme is the one of the first intra-kernel profilers: one global atomic per event, then four 8-byte stores
// with a load between them, 32 bytes an event.
#include <kprof/kprof.h>

#define KPROF_REGIONS "regions.h"
#include <kprof/declare_regions.h>

using namespace kprof::platform;

namespace {

enum Scheme { kNone, kPerWarp, kPerBlock, kClassic };

struct alignas(16) Vector {
  uint32_t words[4];
};

struct Classic {
  int64_t* buffer;
};

KPROF_DEVICE int64_t classic_start(int64_t* buffer) {
  const int64_t i = add_device(reinterpret_cast<uint32_t*>(buffer), 1u);
  buffer[1 + i * 4] = static_cast<int64_t>(realtime_ticks());
  return i;
}
KPROF_DEVICE void classic_stop(int64_t* buffer, int64_t i, int64_t tag, int64_t id) {
  buffer[1 + i * 4 + 1] = static_cast<int64_t>(realtime_ticks()) - buffer[1 + i * 4];
  buffer[1 + i * 4 + 2] = tag;
  buffer[1 + i * 4 + 3] = id;
}

// One event around `work`, in the given scheme.
template <Scheme scheme, typename Work>
KPROF_DEVICE void measured(kprof::Track& track, int64_t* classic, uint32_t token, Work work) {
  if constexpr (scheme == kNone) {
    work();
  } else if constexpr (scheme == kClassic) {
    int64_t i = 0;
    if (lane_id() == 0) i = classic_start(classic);
    work();
    if (lane_id() == 0) classic_stop(classic, i, 1, block_id());
  } else {
    const kprof::Span span = kprof::profile_start(track);
    work();
    kprof::profile_stop(track, span, R_TOKEN, token);
  }
}

template <Scheme scheme>
KPROF_DEVICE kprof::Track open(const kprof::Buffer& prof) {
  if constexpr (scheme == kPerWarp) return kprof::open_track(prof, kprof::per_warp);
  if constexpr (scheme == kPerBlock) return kprof::open_track(prof, kprof::per_block);
  return kprof::Track{};
}

template <Scheme scheme>
__global__ void token_copy(Vector* target, const Vector* source, uint32_t num_tokens, uint32_t vectors_per_token,
                           int64_t* classic, kprof::Buffer prof) {
  kprof::Track track = open<scheme>(prof);
  const uint32_t warps = num_threads() / warp_width();
  for (uint32_t token = block_id() * warps + warp_id(); token < num_tokens; token += num_blocks() * warps) {
    const uint64_t first = static_cast<uint64_t>(token) * vectors_per_token;
    measured<scheme>(track, classic, token, [&] {
      for (uint32_t i = lane_id(); i < vectors_per_token; i += warp_width()) target[first + i] = source[first + i];
    });
  }
}

template <Scheme scheme>
__global__ void tight_loop(uint32_t* out, uint32_t num_events, int64_t* classic, kprof::Buffer prof) {
  kprof::Track track = open<scheme>(prof);
  uint32_t sum = 0;
  for (uint32_t i = 0; i < num_events; ++i) measured<scheme>(track, classic, i, [&] { sum += i; });
  if (sum == 1) out[thread_id()] = sum;
}

}  // namespace

#define KPROF_DISPATCH(kernel, ...)                                                                          \
  switch (scheme) {                                                                                         \
    case kNone: return KPROF_LAUNCH(kernel<kNone>, blocks, threads, stream, 0, __VA_ARGS__);                \
    case kPerWarp: return KPROF_LAUNCH(kernel<kPerWarp>, blocks, threads, stream, 0, __VA_ARGS__);          \
    case kPerBlock: return KPROF_LAUNCH(kernel<kPerBlock>, blocks, threads, stream, 0, __VA_ARGS__);        \
    case kClassic: return KPROF_LAUNCH(kernel<kClassic>, blocks, threads, stream, 0, __VA_ARGS__);          \
    default: return -1;                                                                                     \
  }

extern "C" int probe_token_copy(int scheme, int blocks, int threads, void* target, const void* source, uint32_t num_tokens,
                                uint32_t vectors_per_token, void* classic, const kprof::LaunchBuffer* buffer, void* stream) {
  KPROF_DISPATCH(token_copy, static_cast<Vector*>(target), static_cast<const Vector*>(source), num_tokens,
                 vectors_per_token, static_cast<int64_t*>(classic), kprof::make_buffer(*buffer))
}

extern "C" int probe_tight_loop(int scheme, int blocks, int threads, void* out, uint32_t num_events, void* classic,
                                const kprof::LaunchBuffer* buffer, void* stream) {
  KPROF_DISPATCH(tight_loop, static_cast<uint32_t*>(out), num_events, static_cast<int64_t*>(classic),
                 kprof::make_buffer(*buffer))
}
