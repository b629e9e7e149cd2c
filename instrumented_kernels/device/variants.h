// A kernel source has variants. A variant is a sequence of launches (phases) of kernels that take one argument.
#pragma once

#include <kprof/kprof.h>

namespace variants {

// The argument of kernels. Buffer is a base, not a member, because an empty base takes no space: compiled out, the
// argument is only the Call, and the machine code equals that of a kernel without kprof. It comes first, next to what
// every kernel reads at once: after the Call it took two more cache lines, 0.1 to 0.2 us per launch on an H200.
template <typename Call>
struct Profiled : kprof::Buffer, Call {
  template <typename Arguments>
  Profiled(const Arguments& arguments, const kprof::Buffer& buffer) : kprof::Buffer(buffer), Call(arguments) {}

  // Waits for which these are the limits tell kprof when they last long.
  KPROF_DEVICE auto limits() const {
    auto limits = Call::limits();
    limits.prof = *this;
    return limits;
  }
};

template <typename Call>
struct Phase {
  const char* name = nullptr;
  void (*kernel)(Profiled<Call>) = nullptr;
  kprof::platform::LaunchOptions options{};
};

constexpr int kMaxPhases = 8;

template <typename Call>
struct Variant {
  const char* name;
  int num_phases;
  Phase<Call> phases[kMaxPhases];
};

}  // namespace variants
