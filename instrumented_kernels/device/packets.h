// Packets: data that is its own flag, so that no order and no fence is needed. A fence takes longer than a small
// message, and a separate flag would use bandwidth of the link.
//
// A packet is 16 bytes of inverted data. The receiver polls the data: a word of zero has not arrived. Data of 32 one
// bits would look like that; it is a NaN in all element types that are summed here, so one of its bits is changed
// before it is sent. Each word is checked separately, so no access is wider than what the memory models make atomic.
//
// Unlike flags, packets are reset: the receiver zeroes what it has read. That is safe under two conditions, which
// callers must ensure: buffers alternate from launch to launch, and no rank starts the launch after the next before all
// ranks have ended this one. So a cell is zeroed, and the launch that did it has ended, before the next packet for the
// cell is sent.
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

// Replaces NaNs that cannot be sent by others. Apply it to data that stays here too, so that all ranks have the same
// bits.
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
