// Packets between network namespaces, each held back for a while: see wire.py.
#include <poll.h>
#include <stdint.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <queue>
#include <random>
#include <vector>

namespace {

struct Packet {
  uint64_t due_ns, number;
  uint32_t to;
  std::vector<uint8_t> bytes;
  bool operator<(const Packet& other) const {
    return due_ns != other.due_ns ? due_ns > other.due_ns : number > other.number;
  }
};

uint64_t now_ns() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1000000000u + static_cast<uint64_t>(now.tv_nsec);
}

// Until a packet came or one is due.
void wait_for(std::vector<pollfd>& files, const std::priority_queue<Packet>& pending) {
  timespec left = {60, 0};
  if (!pending.empty()) {
    const uint64_t due_ns = pending.top().due_ns, now = now_ns();
    left = {0, due_ns > now ? static_cast<long>(due_ns - now) : 0};
  }
  ppoll(files.data(), files.size(), &left, nullptr);
}

}  // namespace

// Never returns. A packet goes to the host that the last byte of its IPv4 destination counts from 1, `delay_ns` later
// and up to `jitter_ns` on top; those of two hosts stay in order.
extern "C" void wire_carry(const int32_t* names, uint32_t count, uint64_t delay_ns, uint64_t jitter_ns, uint64_t seed) {
  std::mt19937_64 draw(seed);
  std::priority_queue<Packet> pending;
  std::vector<uint64_t> last_ns(count * count);
  std::vector<pollfd> files;
  for (uint32_t i = 0; i < count; ++i) files.push_back({names[i], POLLIN, 0});
  for (uint64_t number = 0;;) {
    wait_for(files, pending);
    // No host is always the first one.
    const uint32_t first = static_cast<uint32_t>(draw() % count);
    for (uint32_t i = 0; i < count; ++i) {
      const uint32_t from = (first + i) % count;
      uint8_t bytes[2048];
      const ssize_t size = read(files[from].fd, bytes, sizeof bytes);
      if (size < 20 || bytes[0] >> 4 != 4 || bytes[19] < 1 || bytes[19] > count) continue;
      const uint32_t to = bytes[19] - 1u;
      uint64_t& last = last_ns[from * count + to];
      const uint64_t due = now_ns() + delay_ns + draw() % (jitter_ns + 1);
      last = due > last ? due : last;
      pending.push({last, number++, to, {bytes, bytes + size}});
    }
    while (!pending.empty() && pending.top().due_ns <= now_ns()) {
      const Packet& packet = pending.top();
      if (write(files[packet.to].fd, packet.bytes.data(), packet.bytes.size()) < 0) {
        // As lost as on any network that is full.
      }
      pending.pop();
    }
  }
}
