// The C interface of a kernel source, which kernel_library.py loads. Include it last, after
//
//   #define KERNEL_NAMESPACE the_namespace
//
// which holds CallArguments (what Python fills in), Call (constructible from it, passed to kernels) and
// kVariants, an array of variants::Variant<Call>.
#pragma once

#include "variants.h"

namespace launch_interface {

using KERNEL_NAMESPACE::Call;
using KERNEL_NAMESPACE::CallArguments;
using KERNEL_NAMESPACE::kVariants;

}  // namespace launch_interface

extern "C" uint64_t kernel_call_bytes() { return sizeof(launch_interface::CallArguments); }
extern "C" int kernel_num_variants() {
  return sizeof(launch_interface::kVariants) / sizeof(launch_interface::kVariants[0]);
}
extern "C" const char* kernel_variant_name(int variant) { return launch_interface::kVariants[variant].name; }
extern "C" int kernel_num_phases(int variant) { return launch_interface::kVariants[variant].num_phases; }
extern "C" const char* kernel_phase_name(int variant, int phase) {
  return launch_interface::kVariants[variant].phases[phase].name;
}
extern "C" int kernel_warp_width() { return kprof::platform::host_warp_width(); }
extern "C" int kernel_num_processors() { return kprof::platform::num_processors(); }
extern "C" uint64_t kernel_ticks_per_second() { return kprof::platform::kRealtimeTicksPerSecond; }
extern "C" const char* kernel_error_text(int error) { return kprof::platform::error_text(error); }

// The largest grid whose blocks can wait for each other: the smallest over the phases of a variant.
extern "C" int kernel_max_resident_blocks(int variant, int threads_per_block) {
  int smallest = 1 << 30;
  for (int i = 0; i < launch_interface::kVariants[variant].num_phases; ++i) {
    const auto kernel = launch_interface::kVariants[variant].phases[i].kernel;
    const int blocks = kprof::platform::max_resident_blocks(kernel, threads_per_block);
    smallest = blocks < smallest ? blocks : smallest;
  }
  return smallest;
}

// One launch of one phase, as kernel_library.py keeps it ready.
struct KernelLaunch {
  const launch_interface::CallArguments* call;
  const kprof::LaunchBuffer* buffer;
  void* stream;
  uint64_t schedule_seed;
  int variant;
  int phase;
  int num_blocks;
  int threads_per_block;
};

// Returns 0 or the target's error code. Launch all phases of a call in order.
extern "C" int kernel_launch(const KernelLaunch* launch) {
  const auto kernel = launch_interface::kVariants[launch->variant].phases[launch->phase].kernel;
  const variants::Profiled<launch_interface::Call> profiled(*launch->call, kprof::make_buffer(*launch->buffer));
  return KPROF_LAUNCH(kernel, launch->num_blocks, launch->threads_per_block, launch->stream, launch->schedule_seed,
                      profiled);
}
