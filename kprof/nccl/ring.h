// The memory that the profiler plugin shares with whoever makes a capture of it: plain data, little endian.
//
//     0         Header
//     4096      Text x kNumTexts            names of functions, types, algorithms and protocols
//     12288     Communicator x kNumComms
//     143360    Record x num_records        event n is in record n % num_records,
//                                            in a file of records that are kept anywhere
//
// kprof/nccl/ring.py reads it. Bump kRingVersion whenever the layout changes.
#pragma once

#include <atomic>
#include <cstdint>

namespace kprof::nccl {

constexpr uint64_t kRingMagic = 0x4c43434e464f5250;  // "PROFNCCL"
constexpr uint32_t kRingVersion = 2;
constexpr uint32_t kNumTexts = 256;
constexpr uint32_t kNumComms = 1024;
constexpr uint64_t kTextsOffset = 4096;
constexpr uint64_t kCommsOffset = 12288;
constexpr uint64_t kRecordsOffset = 143360;

struct Header {
  uint64_t magic;
  uint32_t version;
  uint32_t abi;  // the version of the interface that NCCL has chosen
  uint64_t pid;
  uint64_t num_records;
  int64_t rank;  // of the launcher's environment, -1 where there is none
  std::atomic<uint64_t> num_comms;
  uint64_t keeps_latest;  // 1: the latest events were asked for, so those that they overwrite are no loss
  uint64_t machine;       // names the boot of the host whose clock it is; 0 where nobody says
  alignas(64) std::atomic<uint64_t> num_events;
  alignas(64) std::atomic<uint64_t> num_refused;  // the place was in use: a writer has stalled for a whole ring
  uint64_t keep_slowest;                          // how many of the slowest calls a capture is to have; 0: all
};

struct Text {
  std::atomic<uint32_t> state;  // 0 free, 1 being written, 2 complete
  char text[28];
};

struct Communicator {
  uint64_t id;
  int32_t rank, num_ranks, num_nodes, device;
  uint64_t begun_ns;
  std::atomic<uint64_t> ended_ns;
  uint8_t uuid[16];           // of the GPU; zeros where nobody says
  uint64_t ticks_per_second;  // of the GPU's times: ns on NVIDIA, the constant clock on AMD
  std::atomic<uint64_t> num_calls;
  char name[52];
  std::atomic<uint32_t> is_complete;
};

// An event. 64 bytes as words, because a reader may look while they are written; its end and what it moved are added
// in place.
struct Record {
  std::atomic<uint64_t> sequence;  // 1 + the event's number, which is its handle; kBusy while it is written
  std::atomic<uint64_t> words[7];
};
// host_ns: when the host was told that it begins. subject: the parent's handle; of a call the host's time of the call
// of the API, 0 if nobody knows. value: see describe(). count: of a channel or a phase the GPU's time at its end, of a
// step of a proxy the bytes so far. tag: of a call the user's, of others the host's time of their end.
enum Word { kHostNs, kSubject, kValue, kCount, kTag, kFields, kMoreFields };
constexpr uint64_t kBusy = ~0ull;

static_assert(sizeof(Header) <= kTextsOffset);
static_assert(sizeof(Text) == 32 && kTextsOffset + kNumTexts * sizeof(Text) == kCommsOffset);
static_assert(sizeof(Communicator) == 128 && kCommsOffset + kNumComms * sizeof(Communicator) == kRecordsOffset);
static_assert(sizeof(Record) == 64);

}  // namespace kprof::nccl
