// Declares a kernel's regions from its X-macro file, so that ids, names and payload widths have one source:
//
//   #define KPROF_REGIONS "regions.h"
//   #include <kprof/declare_regions.h>
//
//   kprof::profile_stop(track, span, R_SEND, kprof::payload<R_SEND>(peer, slot));
//
// The format of the file is described in kprof/regions.py, which reads the same text on the host.
#pragma once

#ifndef KPROF_REGIONS
#error "define KPROF_REGIONS to the name of the X-macro file before including <kprof/declare_regions.h>"
#endif

#include "kprof.h"

#define REGION(id, name, ...) id,
#define MARK(id, name, ...) id,
#define VALUE(id, name, ...) id,
#define FLOW(send, wait)
enum Region : uint16_t {
  R_NONE = 0,
#include KPROF_REGIONS
};
#undef REGION
#undef MARK
#undef VALUE
#undef FLOW

namespace kprof {

constexpr int kMaxFields = 8;

struct FieldWidths {
  int count = 0;
  uint32_t bits[kMaxFields] = {};
  uint32_t shift[kMaxFields] = {};
};

// Reads "category, peer:8, slot:24" at compile time: every number behind a colon is a width.
constexpr FieldWidths parse_widths(const char* text) {
  FieldWidths widths;
  uint32_t shift = 0;
  for (const char* c = text; *c != 0; ++c) {
    if (*c != ':') continue;
    uint32_t bits = 0;
    for (++c; *c == ' '; ++c) {
    }
    for (; *c >= '0' && *c <= '9'; ++c) bits = bits * 10 + static_cast<uint32_t>(*c - '0');
    widths.bits[widths.count] = bits;
    widths.shift[widths.count] = shift;
    shift += bits;
    ++widths.count;
    if (*c == 0) break;
  }
  return widths;
}

// Finds the word `complete` in "compute, complete, bytes:32" at compile time.
constexpr bool declares_complete(const char* text) {
  constexpr char word[] = "complete";
  for (const char* c = text; *c != 0; ++c) {
    if (c != text && c[-1] != ' ' && c[-1] != ',') continue;
    int length = 0;
    while (word[length] != 0 && c[length] == word[length]) ++length;
    if (word[length] == 0 && (c[length] == 0 || c[length] == ' ' || c[length] == ',')) return true;
  }
  return false;
}

template <uint32_t region>
struct RegionFields;

#define REGION(id, name, ...)                                           \
  template <>                                                           \
  struct RegionFields<id> {                                             \
    static constexpr FieldWidths widths = parse_widths(#__VA_ARGS__);   \
    static constexpr bool is_complete = declares_complete(#__VA_ARGS__); \
  };
#define MARK REGION
#define VALUE REGION
#define FLOW(send, wait)
#include KPROF_REGIONS
#undef REGION
#undef MARK
#undef VALUE
#undef FLOW

#if KPROF_ENABLED
template <>
struct RegionMoments<Region> {
  KPROF_DEVICE static constexpr bool is_complete(Region region) {
    switch (region) {
#define REGION(id, name, ...) \
  case id:                    \
    return RegionFields<id>::is_complete;
#define MARK REGION
#define VALUE REGION
#define FLOW(send, wait)
#include KPROF_REGIONS
#undef REGION
#undef MARK
#undef VALUE
#undef FLOW
      default:
        return false;
    }
  }
};
#endif

template <uint32_t region, int field>
KPROF_DEVICE uint32_t pack_field(uint32_t value) {
  constexpr uint32_t bits = RegionFields<region>::widths.bits[field];
  constexpr uint32_t shift = RegionFields<region>::widths.shift[field];
  constexpr uint32_t mask = static_cast<uint32_t>((uint64_t{1} << bits) - 1);
  return (value < mask ? value : mask) << shift;
}

template <uint32_t region, int field>
KPROF_DEVICE uint32_t pack_from() {
  return 0;
}
template <uint32_t region, int field, typename First, typename... Rest>
KPROF_DEVICE uint32_t pack_from(First first, Rest... rest) {
  return pack_field<region, field>(static_cast<uint32_t>(first)) | pack_from<region, field + 1>(rest...);
}

// Packs one value per payload field of the region. A value that does not fit becomes the field's largest, which the
// decoder counts as clamped; it never spills into its neighbour.
template <uint32_t region, typename... Values>
KPROF_DEVICE uint32_t payload(Values... values) {
  static_assert(sizeof...(Values) == RegionFields<region>::widths.count,
                "give one value per payload field of the region");
  return pack_from<region, 0>(values...);
}

}  // namespace kprof
