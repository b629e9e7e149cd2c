// Assigns aligned offsets in a memory, from its start. Each kernel's layout uses it.
#pragma once

#include <kprof/platform.h>

namespace memory_layout {

constexpr uint64_t kAlignBytes = 256;

// An offset in units of kAlignBytes: half the registers of a byte offset.
struct Offset {
  uint32_t num_blocks = 0;

  KPROF_DEVICE_HOST uint64_t bytes() const { return num_blocks * kAlignBytes; }
};

template <typename T>
KPROF_DEVICE T* at(char* memory, Offset offset) {
  return reinterpret_cast<T*>(memory + offset.bytes());
}

// Allocates from the start of a memory.
class Cursor {
 public:
  Offset take(uint64_t num_bytes) {
    const Offset begin = end_;
    end_.num_blocks += static_cast<uint32_t>((num_bytes + kAlignBytes - 1) / kAlignBytes);
    return begin;
  }
  Offset end() const { return end_; }

 private:
  Offset end_;
};

}  // namespace memory_layout
