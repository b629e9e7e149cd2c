// Packets: data that carries its own flag, so that nothing has to be ordered and nobody fences. For small messages, where a
// fence and a flag of their own would take longer than the data.
//
// A packet is two 64-bit words, each 32 bits of data under the epoch in which it was sent. A 64-bit store is one
// access in the memory models of all targets: who sees the epoch sees the data. Half of what travels is flags.
//
// The memory of packets is never used for anything else: a word in it is zero or was sent as a packet. Buffers alternate
// by the parity of the epoch, so a word holds this epoch or an older one.
#pragma once

#include "elements.h"
#include "signals.h"

namespace packets {

using namespace kprof::platform;

constexpr uint32_t kDataBytes = 8;

struct alignas(16) Packet {
  uint64_t words[2];
};

template <typename Element>
using Data = elements::Vector<Element, kDataBytes>;

KPROF_DEVICE uint64_t word_of(uint32_t data, uint32_t epoch) { return static_cast<uint64_t>(epoch) << 32 | data; }

template <typename Data>
KPROF_DEVICE void send(Packet* target, const Data& data, uint32_t epoch) {
  static_assert(sizeof(Data) == kDataBytes, "a packet carries eight bytes");
  uint32_t halves[2];
  memcpy(halves, &data, sizeof halves);
  store_system_pair(target->words, word_of(halves[0], epoch), word_of(halves[1], epoch));
}

KPROF_DEVICE Packet peek(const Packet* source) {
  Packet packet;
  load_system_pair(source->words, packet.words);
  return packet;
}

template <typename Data>
KPROF_DEVICE Data data_of(const Packet& packet) {
  const uint32_t halves[2] = {static_cast<uint32_t>(packet.words[0]), static_cast<uint32_t>(packet.words[1])};
  Data data;
  memcpy(&data, halves, sizeof data);
  return data;
}

// The older of the two halves: both have arrived when this has.
KPROF_DEVICE uint32_t epoch_of(const Packet& packet) {
  const uint32_t first = static_cast<uint32_t>(packet.words[0] >> 32);
  const uint32_t second = static_cast<uint32_t>(packet.words[1] >> 32);
  return first < second ? first : second;
}

// Until `packet`, once peeked from `source`, is of this epoch. False after a timeout.
KPROF_DEVICE bool await(Packet& packet, const Packet* source, uint32_t epoch, const signals::WaitLimits& limits,
                        const signals::Waited& waited) {
  if (epoch_of(packet) >= epoch) return true;
  const auto read = [&] {
    packet = peek(source);
    return epoch_of(packet);
  };
  return signals::poll(read, epoch, limits, waited);
}

}  // namespace packets
