// What an event costs: the same work with no profiling, with kprof and with the classic scheme, in one source.
//
// token_copy   8192 rows of 14 KiB, one event per warp and row (or per block and round): what a user's kernel sees
// tight_loop   nothing but events, four in a row: what the event itself costs; and with the loop around each one
// passes       the rows copied again and again, one event per block and pass: to compare with the time of the launch
// spans        spans of a few lengths whose payload is what the real-time clock says about the same span
// readings     both clocks again and again: how far the real-time clock is from counting in even steps
//
// Compiled twice: with the real-time clock and with -DKPROF_CLOCK_CYCLES=1.
//
// The classic scheme is the one of the first intra-kernel profilers: one global atomic per event, then four 8-byte
// stores with a load between them, 32 bytes an event.
#include <kprof/kprof.h>

#define KPROF_REGIONS "regions.h"
#include <kprof/declare_regions.h>

using namespace kprof::platform;

namespace {

// kOpened: tracks are opened, and record nothing. kClocks: the first blocks read two clocks per event and have no
// track, so that recording them cannot cost less.
enum Scheme { kNone, kPerWarp, kPerBlock, kClassic, kPerWarpComplete, kOpened, kClocks };

constexpr uint32_t kBlocksWithClocks = 8;

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
  if constexpr (scheme == kNone || scheme == kOpened) {
    work();
  } else if constexpr (scheme == kClocks) {
    const bool has_clocks = block_id() < kBlocksWithClocks;
    const uint64_t begin = has_clocks ? realtime_ticks() : 0;
    work();
    // Never true, but the compiler does not know and has to read both clocks.
    if (has_clocks && realtime_ticks() + 1 == begin) *classic = 0;
  } else if constexpr (scheme == kClassic) {
    int64_t i = 0;
    if (lane_id() == 0) i = classic_start(classic);
    work();
    if (lane_id() == 0) classic_stop(classic, i, 1, block_id());
  } else {
    const kprof::Span span = kprof::profile_start(track);
    work();
    kprof::profile_stop(track, span, scheme == kPerWarpComplete ? R_ARRIVED : R_TOKEN, token);
  }
}

template <Scheme scheme>
KPROF_DEVICE kprof::Track open(const kprof::Buffer& prof) {
  if constexpr (scheme == kPerBlock) return kprof::open_track(prof, kprof::per_block);
  if constexpr (scheme == kPerWarp || scheme == kPerWarpComplete || scheme == kOpened)
    return kprof::open_track(prof, kprof::per_warp);
  return kprof::Track(kprof::kNowhere);
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

template <Scheme scheme, int unrolled>
KPROF_DEVICE void only_events(uint32_t* out, uint32_t num_events, int64_t* classic, const kprof::Buffer& prof) {
  kprof::Track track = open<scheme>(prof);
  uint32_t sum = 0;
  KPROF_UNROLL(unrolled)
  for (uint32_t i = 0; i < num_events; ++i) measured<scheme>(track, classic, i, [&] { sum += i; });
  if (sum == 1) out[thread_id()] = sum;
}

template <Scheme scheme>
__global__ void tight_loop(uint32_t* out, uint32_t num_events, int64_t* classic, kprof::Buffer prof) {
  only_events<scheme, 4>(out, num_events, classic, prof);
}

template <Scheme scheme>
__global__ void tight_loop_of_one(uint32_t* out, uint32_t num_events, int64_t* classic, kprof::Buffer prof) {
  only_events<scheme, 1>(out, num_events, classic, prof);
}

__global__ void passes(Vector* target, const Vector* source, uint32_t num_vectors, uint32_t num_passes,
                       kprof::Buffer prof) {
  kprof::Track track = kprof::open_track(prof, kprof::per_block);
  kprof::Span span = kprof::profile_start(track);
  for (uint32_t pass = 0; pass < num_passes; ++pass) {
    for (uint32_t i = block_id() * num_threads() + thread_id(); i < num_vectors; i += num_blocks() * num_threads())
      target[i] = source[i];
    sync_block();
    span = kprof::profile_lap(track, span, R_PASS, pass);
  }
}

// Arithmetic, not a wait for the real-time clock: that would begin and end all spans in step with its ticks.
KPROF_DEVICE float busy(float x, uint32_t num_steps) {
  KPROF_UNROLL(1)
  for (uint32_t i = 0; i < num_steps; ++i) x = x * 1.0000001f + 0.5f;
  return x;
}

// With the cycle counter. What profile_start and profile_stop do, but both clocks are read at once, and by the same two
// instructions at both ends (all 64 bits matter: of 32, nvcc reads one in another way, which takes 20 ns more).
__global__ void spans(float* out, uint32_t num_spans, const uint32_t* span_steps, kprof::Buffer prof) {
  kprof::Track track = kprof::open_track(prof, kprof::per_warp);
  float x = static_cast<float>(block_id());
  for (uint32_t i = 0; i < num_spans; ++i) {
    const uint32_t num_steps = span_steps[(i + block_id()) % num_spans];
    uint64_t begin = 0, begin_cycles = 0, end = 0, end_cycles = 0;
    read_anchor(&begin, &begin_cycles);
    x = busy(x, num_steps);
    if (x == 1.0f) *out = x;  // never, and only known when the work is done
    read_anchor(&end, &end_cycles);
    const uint64_t elapsed = end - begin;
    kprof::emit(track, R_SPAN, begin_cycles, end_cycles,
                elapsed < UINT32_MAX ? static_cast<uint32_t>(elapsed) : UINT32_MAX);
  }
}

struct Reading {
  uint64_t realtime, cycles;
};

__global__ void readings(Reading* out, uint32_t num_readings) {
  if (thread_id() != 0) return;
  for (uint32_t i = 0; i < num_readings; ++i) {
    const uint64_t realtime = realtime_ticks();
    out[block_id() * num_readings + i] = Reading{realtime, cycle_ticks()};
  }
}

}  // namespace

#define KPROF_DISPATCH(kernel, ...)                                                           \
  switch (scheme) {                                                                           \
    case kNone:                                                                               \
      return KPROF_LAUNCH(kernel<kNone>, blocks, threads, stream, 0, __VA_ARGS__);            \
    case kPerWarp:                                                                            \
      return KPROF_LAUNCH(kernel<kPerWarp>, blocks, threads, stream, 0, __VA_ARGS__);         \
    case kPerBlock:                                                                           \
      return KPROF_LAUNCH(kernel<kPerBlock>, blocks, threads, stream, 0, __VA_ARGS__);        \
    case kClassic:                                                                            \
      return KPROF_LAUNCH(kernel<kClassic>, blocks, threads, stream, 0, __VA_ARGS__);         \
    case kPerWarpComplete:                                                                    \
      return KPROF_LAUNCH(kernel<kPerWarpComplete>, blocks, threads, stream, 0, __VA_ARGS__); \
    case kOpened:                                                                             \
      return KPROF_LAUNCH(kernel<kOpened>, blocks, threads, stream, 0, __VA_ARGS__);          \
    case kClocks:                                                                             \
      return KPROF_LAUNCH(kernel<kClocks>, blocks, threads, stream, 0, __VA_ARGS__);          \
    default:                                                                                  \
      return -1;                                                                              \
  }

extern "C" int probe_token_copy(int scheme, int blocks, int threads, void* target, const void* source,
                                uint32_t num_tokens, uint32_t vectors_per_token, void* classic,
                                const kprof::LaunchBuffer* buffer, void* stream) {
  KPROF_DISPATCH(token_copy, static_cast<Vector*>(target), static_cast<const Vector*>(source), num_tokens,
                 vectors_per_token, static_cast<int64_t*>(classic), kprof::make_buffer(*buffer))
}

extern "C" int probe_tight_loop(int scheme, int is_unrolled, int blocks, int threads, void* out, uint32_t num_events,
                                void* classic, const kprof::LaunchBuffer* buffer, void* stream) {
  if (!is_unrolled)
    KPROF_DISPATCH(tight_loop_of_one, static_cast<uint32_t*>(out), num_events, static_cast<int64_t*>(classic),
                   kprof::make_buffer(*buffer))
  KPROF_DISPATCH(tight_loop, static_cast<uint32_t*>(out), num_events, static_cast<int64_t*>(classic),
                 kprof::make_buffer(*buffer))
}

extern "C" int probe_passes(int blocks, int threads, void* target, const void* source, uint32_t num_vectors,
                            uint32_t num_passes, const kprof::LaunchBuffer* buffer, void* stream) {
  return KPROF_LAUNCH(passes, blocks, threads, stream, 0, static_cast<Vector*>(target),
                      static_cast<const Vector*>(source), num_vectors, num_passes, kprof::make_buffer(*buffer));
}

extern "C" int probe_readings(int blocks, int threads, void* out, uint32_t num_readings, void* stream) {
  return KPROF_LAUNCH(readings, blocks, threads, stream, 0, static_cast<Reading*>(out), num_readings);
}

extern "C" int probe_spans(int blocks, int threads, void* out, uint32_t num_spans, const void* span_steps,
                           const kprof::LaunchBuffer* buffer, void* stream) {
  return KPROF_LAUNCH(spans, blocks, threads, stream, 0, static_cast<float*>(out), num_spans,
                      static_cast<const uint32_t*>(span_steps), kprof::make_buffer(*buffer));
}
