// Packets: data that is its own flag, so that nothing has to be ordered and nobody fences. A fence takes longer than a
// small message; and a flag beside the data would take room on the link.
//
// A packet is 16 bytes of data, inverted. A word of zero has not arrived yet: data of 32 one bits would look like that,
// but these are NaNs (in all element types that are summed here), of which one bit is changed before they are used.
// Words are looked at one by one, so no access needs to be larger than the memory models promise; the receiver polls
// the data.
//
// The receiver empties what it has read, where flags are never reset. That is safe under two conditions, which the user
// of packets sees to: buffers alternate from launch to launch, and nobody can start the second launch from here before
// all have ended this one. So a cell is emptied, and the launch that did it has ended, before the next packet for it is
// sent.
#pragma once

#include "elements.h"

namespace packets {

using namespace kprof::platform;

constexpr uint32_t kDataBytes = 16;

struct alignas(16) Packet {
  uint64_t words[2];
};

template <typename Element>
using Data = elements::Vector<Element, kDataBytes>;

// The data with NaNs that cannot be sent replaced by others. Apply it to what stays here, too: bits are the same
// everywhere.
template <typename Data>
KPROF_DEVICE Data sendable(Data data) {
  uint32_t words[4];
  copy_bits(&words, data);
  for (uint32_t& word : words) word = word == 0xffffffffu ? 0xfffffffeu : word;
  copy_bits(&data, words);
  return data;
}

template <typename Data>
KPROF_DEVICE Packet packet_of(const Data& data) {
  static_assert(sizeof(Data) == kDataBytes, "a packet carries 16 bytes");
  Packet packet;
  copy_bits(&packet, data);
  for (uint64_t& word : packet.words) word = ~word;
  return packet;
}

template <typename Data>
KPROF_DEVICE void send(Packet* target, const Data& data) {
  const Packet packet = packet_of(data);
  store_system_pair(target->words, packet.words[0], packet.words[1]);
}

KPROF_DEVICE Packet peek(const Packet* source) {
  Packet packet;
  load_system_pair(source->words, packet.words);
  return packet;
}

KPROF_DEVICE void empty(Packet* cell) { store_system_pair(cell->words, 0, 0); }

template <typename Data>
KPROF_DEVICE Data data_of(const Packet& packet) {
  const uint64_t words[2] = {~packet.words[0], ~packet.words[1]};
  Data data;
  copy_bits(&data, words);
  return data;
}

KPROF_DEVICE bool is_complete(const Packet& packet) {
  return static_cast<uint32_t>(packet.words[0]) != 0 && static_cast<uint32_t>(packet.words[0] >> 32) != 0 &&
         static_cast<uint32_t>(packet.words[1]) != 0 && static_cast<uint32_t>(packet.words[1] >> 32) != 0;
}

}  // namespace packets
