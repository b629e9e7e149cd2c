// What an event costs a thread of NCCL: loads a plugin and makes the calls of all-reduces with 8 channels, as NCCL
// does, in one thread per rank.
//
//     events PLUGIN THREADS CALLS     prints ns per event (a call, or a channel from its start to its end), per thread
#include <dlfcn.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include "profiler_abi.h"

namespace nccl = kprof::nccl;

constexpr int kNumChannels = 8;

double events_of(const nccl::Profiler& plugin, void* context, long num_calls) {
  nccl::Descriptor coll{}, channel{};
  coll.type = nccl::kColl;
  coll.coll.func = "AllReduce", coll.coll.datatype = "ncclFloat32", coll.coll.count = 16384;
  coll.coll.algorithm = "RING", coll.coll.protocol = "LL", coll.coll.num_channels = kNumChannels;
  channel.type = nccl::kKernelCh;
  const auto begin = std::chrono::steady_clock::now();
  for (long call = 0; call < num_calls; ++call) {
    void *parent = nullptr, *handles[kNumChannels];
    coll.coll.sequence = static_cast<uint64_t>(call);
    plugin.start(context, &parent, &coll);
    plugin.stop(parent);
    channel.parent = parent;
    for (int idx = 0; idx < kNumChannels; ++idx) {
      channel.kernel_ch = {static_cast<uint8_t>(idx), static_cast<uint64_t>(1000 + call * 20)};
      plugin.start(context, &handles[idx], &channel);
    }
    for (void* handle : handles) {
      nccl::StateArguments end{static_cast<uint64_t>(1010 + call * 20)};
      plugin.state(handle, nccl::kKernelChStop, &end);
      plugin.stop(handle);
    }
  }
  const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - begin;
  return took.count() / static_cast<double>(num_calls * (1 + kNumChannels));
}

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  void* library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
  auto* plugin = static_cast<nccl::Profiler*>(library == nullptr ? nullptr : dlsym(library, "ncclProfiler_v5"));
  if (plugin == nullptr) return 1;
  const int num_threads = atoi(argv[2]);
  std::vector<double> each_ns(static_cast<size_t>(num_threads));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < num_threads; ++rank) {
    void* context = nullptr;
    int mask = 0;
    if (plugin->init(&context, 1, &mask, "world", 1, num_threads, rank, nullptr) != 0) return 1;
    threads.emplace_back([&each_ns, plugin, context, rank, num_calls = atol(argv[3])] {
      each_ns[static_cast<size_t>(rank)] = events_of(*plugin, context, num_calls);
    });
  }
  for (std::thread& thread : threads) thread.join();
  printf("[");
  for (size_t idx = 0; idx < each_ns.size(); ++idx) printf("%s%.1f", idx == 0 ? "" : ", ", each_ns[idx]);
  printf("]\n");
}
