// swiglu_fp8: y = fp8(scale * silu(gate) * up) of rows that are gate | up, with silu(v) = v / (1 + e^-v). README.md has
// the ladder of variants.
#include <kprof/compute.h>
#include <kprof/short_track.h>

#include "elements.h"
#include "fp8_rows.h"
#include "kernel.h"
#include "local_call.h"

namespace swiglu_fp8 {

using namespace elements;
using namespace fp8_rows;
using namespace kernel;

struct Call : local_call::LocalCall<CallArguments, local_call::NoWorkspace<Shape>> {
  using LocalCall::LocalCall;

  template <typename Element>
  KPROF_DEVICE const Element* gate_row(uint32_t row) const {
    return static_cast<const Element*>(x) + static_cast<uint64_t>(row) * 2 * shape.row_length;
  }
  template <typename Element>
  KPROF_DEVICE const Element* up_row(uint32_t row) const {
    return gate_row<Element>(row) + shape.row_length;
  }
  KPROF_DEVICE uint8_t* y_row(uint32_t row) const { return y + static_cast<uint64_t>(row) * shape.row_length; }
  // Several blocks share a row: this block's row, and its index among them.
  KPROF_DEVICE uint32_t row() const {
    // A division would take longer than the arithmetic of a block. The product is the quotient, or one less.
    const auto quotient = static_cast<uint32_t>(static_cast<uint64_t>(block_id()) * reciprocal >> 32);
    return quotient + (block_id() - quotient * blocks_per_row >= blocks_per_row ? 1 : 0);
  }
  KPROF_DEVICE uint32_t part(uint32_t row) const { return block_id() - row * blocks_per_row; }
};

using ProfiledCall = variants::Profiled<Call>;

constexpr uint32_t kMaxThreads = 256;
constexpr float kLog2OfE = 1.4426950408889634f;

struct Precise {
  KPROF_DEVICE static float silu(float value) { return value / (1.0f + exp_of(-value)); }
};
struct Fast {
  KPROF_DEVICE static float silu(float value) { return value * reciprocal_fast(1.0f + exp2_fast(-kLog2OfE * value)); }
};

template <typename Silu, typename Element>
KPROF_DEVICE float activated(Element gate, Element up, float scale) {
  return Silu::silu(to_float(gate)) * to_float(up) * scale;
}

template <typename Element>
__global__ void KPROF_LAUNCH_BOUNDS(kMaxThreads) pointwise(ProfiledCall call) {
  kprof::Track track = kprof::open_track(call, kprof::per_block);
  const kprof::Span span = profile_start(track);
  const uint32_t row = call.row();
  const Element* gate = call.gate_row<Element>(row);
  const Element* up = call.up_row<Element>(row);
  for (uint32_t i = call.part(row) * num_threads() + thread_id(); i < call.shape.row_length;
       i += call.blocks_per_row * num_threads())
    call.y_row(row)[i] = float_to_fp8(activated<Precise>(gate[i], up[i], call.scale));
  profile_stop(track, span, R_ACTIVATE, payload<R_ACTIVATE>(row));
}

template <typename Silu, typename Element>
KPROF_DEVICE Fp8Vec activated(const Quad& gate_quad, const Quad& up_quad, float scale) {
  const Vec<Element> gate = vec_of<Element>(gate_quad), up = vec_of<Element>(up_quad);
  float values[kLength];
  for (uint32_t j = 0; j < kLength; ++j) values[j] = activated<Silu>(gate.values[j], up.values[j], scale);
  return fp8_rows::packed(values);
}

// Every thread handles `num_held` vectors of its row.
template <typename Element, typename Silu, uint32_t num_held, bool is_whole>
KPROF_DEVICE void activate(const Call& call, kprof::Track& track) {
  kprof::Span span = profile_start(track);
  const uint32_t row = call.row(), length = call.shape.row_length;
  const Row<const Element, is_whole> gates(call.gate_row<Element>(row), length);
  const Row<const Element, is_whole> ups(call.up_row<Element>(row), length);
  const uint32_t first = call.part(row) * num_threads() * num_held + thread_id();
  Quad gate[num_held], up[num_held];
  for (uint32_t j = 0; j < num_held; ++j) {
    const uint32_t i = first + j * num_threads();
    if (i >= gates.num_vectors()) continue;
    gate[j] = gates.load(i);
    up[j] = ups.load(i);
  }
  for (uint32_t j = 0; j < num_held; ++j) {
    const uint32_t i = first + j * num_threads();
    if (i >= gates.num_vectors()) continue;
    const Fp8Vec vector = activated<Silu, Element>(gate[j], up[j], call.scale);
    if (j == 0) span = profile_lap(track, span, R_LOAD, payload<R_LOAD>(row));
    fp8_rows::store<is_whole>(call.y_row(row), length, i, vector);
  }
  profile_stop(track, span, R_ACTIVATE, payload<R_ACTIVATE>(row));
}

KPROF_DEVICE void record_vector(const ProfiledCall& call, const kprof::ShortTrack& track, const kprof::Span& begun,
                                const kprof::Span& loaded) {
#if KPROF_ENABLED
  const kprof::Span done = kprof::profile_now(call, R_ACTIVATE);
  if (!kprof::is_writer(track)) return;
  kprof::profile_at(track, 0, begun, kprof::ticks_between(begun, loaded), R_LOAD, payload<R_LOAD>(call.row()));
  kprof::profile_at(track, 1, loaded, kprof::ticks_between(loaded, done), R_ACTIVATE, payload<R_ACTIVATE>(call.row()));
#endif
}

template <typename Element, typename Silu, uint32_t num_held>
__global__ void KPROF_LAUNCH_BOUNDS(kMaxThreads) in_vectors(ProfiledCall call) {
  kprof::Track track = kprof::open_track(call, kprof::per_block);
  if (call.is_whole != 0) {
    activate<Element, Silu, num_held, true>(call, track);
  } else {
    activate<Element, Silu, num_held, false>(call, track);
  }
}

// One vector per thread, of rows that are whole vectors.
template <typename Element>
__global__ void KPROF_LAUNCH_BOUNDS(kMaxThreads) tuned(ProfiledCall call) {
  let_next_launch_begin();
  await_launch_before();
  const kprof::Span begun = kprof::profile_now();
  const uint32_t row = call.row(), i = call.part(row) * num_threads() + thread_id();
  // The first thread of a block always has a vector, so it can record.
  if (i >= call.shape.row_length / kLength) return;
  const Quad gate = reinterpret_cast<const Quad*>(call.gate_row<Element>(row))[i];
  const Quad up = reinterpret_cast<const Quad*>(call.up_row<Element>(row))[i];
  const kprof::ShortTrack track = kprof::open_short_track(call, 2);
  const Fp8Vec vector = activated<Fast, Element>(gate, up, call.scale);
  const kprof::Span loaded = kprof::profile_now(call, R_LOAD);
  reinterpret_cast<Fp8Vec*>(call.y_row(row))[i] = vector;
  record_vector(call, track, begun, loaded);
}

constexpr variants::Variant<Call> kVariants[] = {
    VARIANTS_FOR_HALVES("pointwise", "swiglu_fp8/pointwise", {}, pointwise),
    VARIANTS_FOR_HALVES("vectors", "swiglu_fp8/vectors", {}, in_vectors, Precise, 1),
    VARIANTS_FOR_HALVES("packed", "swiglu_fp8/packed", {}, in_vectors, Fast, 1),
    VARIANTS_FOR_HALVES("tuned", "swiglu_fp8/tuned", variants::kEarly, tuned),
};

}  // namespace swiglu_fp8

#define KERNEL_NAMESPACE swiglu_fp8
#include "launch_interface.h"
