// Ranks of several hosts send each other datagrams, from a kernel of the CPU target: every round, each sends to all
// others and waits for theirs. Nothing but the network joins them.
#include <kprof/kprof.h>
#include <sys/socket.h>

#define KPROF_REGIONS "regions.h"
#include <kprof/declare_regions.h>

constexpr uint32_t kMaxRanks = 64;

struct Call {
  int32_t sockets[kMaxRanks];  // by peer
  uint32_t rank, world_size, first_round, num_rounds;
  int32_t* failed;  // set when a peer says nothing for as long as its socket allows
};

__global__ void exchange(Call call, kprof::Buffer prof) {
  kprof::Track track = kprof::open_track(prof, kprof::per_block);
  for (uint32_t round = call.first_round; round < call.first_round + call.num_rounds && !*call.failed; ++round) {
    for (uint32_t i = 1; i < call.world_size; ++i) {
      const uint32_t peer = (call.rank + i) % call.world_size;
      kprof::Span span = kprof::profile_start(track);
      ::send(call.sockets[peer], &round, sizeof round, 0);
      kprof::profile_stop(track, span, R_SEND, kprof::payload<R_SEND>(peer, round));
    }
    // Another order every round, so that every pair has rounds in which it waits for each other alone.
    for (uint32_t i = 0; i + 1 < call.world_size; ++i) {
      const uint32_t peer = (call.rank + 1 + (i + round) % (call.world_size - 1)) % call.world_size;
      kprof::Span span = kprof::profile_start(track);
      uint32_t seen = ~0u;
      while (seen != round) {
        if (::recv(call.sockets[peer], &seen, sizeof seen, 0) != sizeof seen) {
          *call.failed = 1;
          return;
        }
      }
      kprof::profile_stop(track, span, R_WAIT, kprof::payload<R_WAIT>(peer, round));
    }
  }
}

extern "C" int launch(const kprof::LaunchBuffer* buffer, const Call* call) {
  return KPROF_LAUNCH(exchange, 1, 1, nullptr, 0, *call, kprof::make_buffer(*buffer));
}
