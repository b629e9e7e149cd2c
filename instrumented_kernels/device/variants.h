// A kernel source offers variants; a variant is a sequence of launches (phases) of kernels that take one argument.
#pragma once

#include <kprof/kprof.h>

namespace variants {

// What kernels get. Buffer is a base, not a member, because an empty base takes no space: compiled out, the argument is
// the Call alone and the machine code is that of a kernel that never heard of kprof. It comes first, beside what every
// kernel reads at once: behind the Call it was two cache lines of its own to wait for, 0.1 to 0.2 us a launch on an
// H200.
template <typename Call>
struct Profiled : kprof::Buffer, Call {
  template <typename Arguments>
  Profiled(const Arguments& arguments, const kprof::Buffer& buffer) : kprof::Buffer(buffer), Call(arguments) {}
};

template <typename Call>
struct Phase {
  const char* name;
  void (*kernel)(Profiled<Call>);
};

constexpr int kMaxPhases = 8;

template <typename Call>
struct Variant {
  const char* name;
  int num_phases;
  Phase<Call> phases[kMaxPhases];
};

}  // namespace variants
