// Reads the bits of one value as another type of the same size.
//
// Not memcpy: in HIP device code that is a header function which copies byte by byte. The compiler does not merge all
// of the bytes again, so the code is slow, and clang 19 for gfx942 gets some of the remaining shifts wrong.
#pragma once

namespace kprof::platform {

template <typename To, typename From>
KPROF_DEVICE void copy_bits(To* to, const From& from) {
  static_assert(sizeof(To) == sizeof(From), "the two types have different sizes");
  __builtin_memcpy(to, &from, sizeof from);
}

template <typename To, typename From>
KPROF_DEVICE To bits_as(const From& from) {
  To to;
  copy_bits(&to, from);
  return to;
}

}  // namespace kprof::platform
