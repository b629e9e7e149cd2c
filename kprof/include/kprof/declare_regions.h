// Declares a kernel's regions from its X-macro file, so that ids, names and payload widths have one source:
//
//   #define KPROF_REGIONS "regions.h"
//   #include <kprof/declare_regions.h>
//
//   kprof::profile_stop(track, span, R_SEND, kprof::payload<R_SEND>(peer, slot));
//
// kprof/regions.py describes the format of the file; it reads the same text on the host. The ids are your own names, in
// the global namespace; everything else is in `kprof::` or begins with `KPROF_`.
#pragma once

#ifndef KPROF_REGIONS
#error "define KPROF_REGIONS to the name of the X-macro file before including <kprof/declare_regions.h>"
#endif

#include "kprof.h"

#define KPROF_REGION_LINE(id, name, ...) id,
enum : uint16_t {
  KPROF_NO_REGION = 0,
#include "region_lines.h"
};
#undef KPROF_REGION_LINE

namespace kprof {

// The type of the ids.
using Region = decltype(KPROF_NO_REGION);

constexpr int kMaxFields = 8;

struct FieldWidths {
  int count = 0;
  uint32_t bits[kMaxFields] = {};
  uint32_t shift[kMaxFields] = {};
};

// Parses "category, peer:8, slot:24" at compile time: every number after a colon is a width.
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

// Finds a word like `complete` in "compute, complete, bytes:32" at compile time.
constexpr bool declares(const char* text, const char* word) {
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

#define KPROF_REGION_LINE(id, name, ...)                                      \
  template <>                                                                 \
  struct RegionFields<id> {                                                   \
    static constexpr FieldWidths widths = parse_widths(#__VA_ARGS__);         \
    static constexpr bool is_complete = declares(#__VA_ARGS__, "complete");   \
    static constexpr bool is_announced = declares(#__VA_ARGS__, "announced"); \
  };
#include "region_lines.h"
#undef KPROF_REGION_LINE

#if KPROF_ENABLED
template <>
struct RegionMoments<Region> {
  KPROF_DEVICE static constexpr bool is_complete(Region region) {
    switch (region) {
#define KPROF_REGION_LINE(id, name, ...) \
  case id:                               \
    return RegionFields<id>::is_complete;
#include "region_lines.h"
#undef KPROF_REGION_LINE
      default:
        return false;
    }
  }
  // Announced regions have lines in the order of the file.
  KPROF_DEVICE static constexpr int line_of(Region region) {
    int before = 0;
    bool is_announced = false;
#define KPROF_REGION_LINE(id, name, ...)                           \
  if (id == region) is_announced = RegionFields<id>::is_announced; \
  if (id < region && RegionFields<id>::is_announced) ++before;
#include "region_lines.h"
#undef KPROF_REGION_LINE
    return is_announced ? before % static_cast<int>(kLinesPerTrack) : -1;
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

// A payload value is a number, or a lambda that is called only if kprof is compiled in.
template <typename Value>
KPROF_DEVICE auto value_of(const Value& value, int) -> decltype(static_cast<uint32_t>(value())) {
  return static_cast<uint32_t>(value());
}
template <typename Value>
KPROF_DEVICE uint32_t value_of(const Value& value, long) {
  return static_cast<uint32_t>(value);
}

template <uint32_t region, int field>
KPROF_DEVICE uint32_t pack_from() {
  return 0;
}
template <uint32_t region, int field, typename First, typename... Rest>
KPROF_DEVICE uint32_t pack_from(First first, Rest... rest) {
  return pack_field<region, field>(value_of(first, 0)) | pack_from<region, field + 1>(rest...);
}

// Packs one value per payload field of the region. A value that does not fit is clamped to the field's largest, which
// the decoder counts; it never spills into the next field.
template <uint32_t region, typename... Values>
KPROF_DEVICE uint32_t payload([[maybe_unused]] Values... values) {
  static_assert(sizeof...(Values) == RegionFields<region>::widths.count,
                "give one value per payload field of the region");
#if KPROF_ENABLED
  return pack_from<region, 0>(values...);
#else
  return 0;
#endif
}

}  // namespace kprof
