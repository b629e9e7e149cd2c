// The C interface of a kernel source, which kernel_library.py loads. Include it last, after
//
//   #define KERNEL_NAMESPACE the_namespace
//
// which holds Call (a team_call::TeamCall, passed to kernels) and kVariants, an array of variants::Variant<Call>.
#pragma once

#include "shared_layouts.h"
#include "variants.h"

namespace launch_interface {

using KERNEL_NAMESPACE::Call;
using KERNEL_NAMESPACE::kVariants;
using CallArguments = Call::CallArguments;
using Shape = decltype(CallArguments::shape);

}  // namespace launch_interface

extern "C" uint64_t kernel_call_bytes() { return sizeof(launch_interface::CallArguments); }
// The memory in bytes that a plan for `shape` needs.
extern "C" uint64_t kernel_heap_bytes(const launch_interface::Shape* shape) {
  return launch_interface::Call::Heap(*shape).end.bytes();
}
extern "C" uint64_t kernel_workspace_bytes(const launch_interface::Shape* shape) {
  return launch_interface::Call::Workspace(*shape).end.bytes();
}
extern "C" int kernel_num_variants() {
  return sizeof(launch_interface::kVariants) / sizeof(launch_interface::kVariants[0]);
}
extern "C" const char* kernel_variant_name(int variant) { return launch_interface::kVariants[variant].name; }
extern "C" int kernel_num_phases(int variant) { return launch_interface::kVariants[variant].num_phases; }
extern "C" const char* kernel_phase_name(int variant, int phase) {
  return launch_interface::kVariants[variant].phases[phase].name;
}
// What blocks of a variant take of the memory that they are given at launch, and the most that a block can have.
extern "C" uint32_t kernel_shared_bytes(int variant) {
  uint32_t most = 0;
  for (int i = 0; i < launch_interface::kVariants[variant].num_phases; ++i) {
    const uint32_t num_bytes = launch_interface::kVariants[variant].phases[i].options.shared_bytes;
    most = num_bytes > most ? num_bytes : most;
  }
  return most;
}
extern "C" uint32_t kernel_max_shared_bytes() { return kprof::platform::max_shared_bytes(); }
extern "C" int kernel_warp_width() { return kprof::platform::host_warp_width(); }
extern "C" int kernel_num_processors() { return kprof::platform::num_processors(); }
extern "C" uint64_t kernel_ticks_per_second() { return kprof::platform::realtime_ticks_per_second(); }
extern "C" const char* kernel_error_text(int error) { return kprof::platform::error_text(error); }

// The largest grid whose blocks can wait for each other, in all phases of a variant.
extern "C" int kernel_max_resident_blocks(int variant, int threads_per_block) {
  int smallest = 1 << 30;
  for (int i = 0; i < launch_interface::kVariants[variant].num_phases; ++i) {
    const auto kernel = launch_interface::kVariants[variant].phases[i].kernel;
    const int blocks = kprof::platform::max_resident_blocks(kernel, threads_per_block);
    smallest = blocks < smallest ? blocks : smallest;
  }
  return smallest;
}

// Launches in order, stopping at the first error. Returns 0 or the target's error code.
extern "C" int kernel_launch(const shared_layouts::KernelLaunch* launches, int num_launches) {
  for (const auto* launch = launches; launch < launches + num_launches; ++launch) {
    const auto& phase = launch_interface::kVariants[launch->variant].phases[launch->phase];
    const auto& arguments = *static_cast<const launch_interface::CallArguments*>(launch->call);
    const variants::Profiled<launch_interface::Call> profiled(arguments, kprof::make_buffer(*launch->buffer));
    const int error =
        KPROF_LAUNCH_WITH(phase.options, phase.kernel, static_cast<int>(launch->num_blocks),
                          static_cast<int>(launch->threads_per_block), launch->stream, launch->schedule_seed, profiled);
    if (error != 0) return error;
  }
  return 0;
}
