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

constexpr kprof::platform::LaunchOptions kEarly{0, true};

template <typename Call, typename... Others>
constexpr Variant<Call> launches(const char* name, const Phase<Call>& first, const Others&... others) {
  return {name, 1 + static_cast<int>(sizeof...(others)), {first, others...}};
}

// A variant of one launch.
template <typename Call>
constexpr Variant<Call> one_launch(const char* name, const char* kernel_name, void (*kernel)(Profiled<Call>),
                                   kprof::platform::LaunchOptions options = {}) {
  return launches(name, Phase<Call>{kernel_name, kernel, options});
}

// A variant of one launch for each 16-bit type, from the kernel template `kernel<Element, ...>`.
#define VARIANTS_FOR_HALVES(name, kernel_name, options, kernel, ...)                               \
  variants::one_launch(name "/fp16", kernel_name, kernel<elements::Half, ##__VA_ARGS__>, options), \
      variants::one_launch(name "/bf16", kernel_name, kernel<elements::BFloat16, ##__VA_ARGS__>, options)

}  // namespace variants
