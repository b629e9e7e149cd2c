// Ranks of NCCL as threads of one process that share cuda:0, so that their kernels run beside each other: processes
// would take turns, at milliseconds each.
//
//     host right RANKS CALLS SECONDS              all-reduces of 64 KiB, after each tenth a send from rank 0 to 1
//     host late RANKS CALLS SECONDS [CALL:RANK:CAUSE:US ...]   a rank comes late to these calls
//     host cost RANKS CALLS ROUNDS                us per all-reduce: CALLS in a row, and one by one
//
// Prints a line of JSON. No run takes much longer than SECONDS: it makes fewer calls then, and says how many.
#include <cuda_runtime.h>
#include <nccl.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

constexpr int kNumFloats = 16384, kWarmUps = 20, kProbes = 100;

#define CUDA(call)                                                 \
  if (const cudaError_t error = (call); error != cudaSuccess) {    \
    fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(error)); \
    exit(1);                                                       \
  }
#define NCCL(call)                                                                                 \
  if (const ncclResult_t error = (call); error != ncclSuccess) {                                   \
    fprintf(stderr, "%s: %s (%s)\n", #call, ncclGetErrorString(error), ncclGetLastError(nullptr)); \
    exit(1);                                                                                       \
  }

__global__ void spin(unsigned long long ns) {
  unsigned long long begin, now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
  do asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  while (now - begin < ns);
}

struct Plant {
  long call;
  int rank;
  std::string cause;
  long late_us;
};

struct Run {
  std::string what;
  int num_ranks;
  long num_calls;
  double limit;  // seconds, or rounds
  std::vector<Plant> plants;
  ncclUniqueId id;
  pthread_barrier_t barrier;
  double took_us = 0;
  long num_pairs = 0;
  std::vector<double> in_a_row_us, one_by_one_us;
};

double now_us() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double, std::micro>(now).count();
}

void meet(Run& run) { pthread_barrier_wait(&run.barrier); }

struct Rank {
  Run& run;
  int rank;
  ncclComm_t comm = nullptr;
  cudaStream_t stream = nullptr;
  float *from = nullptr, *to = nullptr;

  void all_reduce() { NCCL(ncclAllReduce(from, to, kNumFloats, ncclFloat, ncclSum, comm, stream)); }
  void sync() { CUDA(cudaStreamSynchronize(stream)); }
  void send_and_receive() {
    if (rank == 0) NCCL(ncclSend(from, kNumFloats, ncclFloat, 1, comm, stream));
    if (rank == 1) NCCL(ncclRecv(to, kNumFloats, ncclFloat, 0, comm, stream));
    run.num_pairs += rank == 0;
  }
  // us of each of these all-reduces in a row, the same on all ranks.
  double in_a_row_us(long num_calls) {
    sync();
    meet(run);
    const double begin_us = now_us();
    for (long call = 0; call < num_calls; ++call) all_reduce();
    sync();
    if (rank == 0) run.took_us = (now_us() - begin_us) / static_cast<double>(num_calls);
    meet(run);
    return run.took_us;
  }
  void begin();
  void right();
  void late();
  void cost();
  void end();
};

void Rank::begin() {
  CUDA(cudaSetDevice(0));
  CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  CUDA(cudaMalloc(&from, kNumFloats * sizeof(float)));
  CUDA(cudaMalloc(&to, kNumFloats * sizeof(float)));
  const std::vector<float> ones(kNumFloats, 1.0f);
  CUDA(cudaMemcpy(from, ones.data(), kNumFloats * sizeof(float), cudaMemcpyHostToDevice));
  spin<<<1, 1, 0, stream>>>(1000);
  NCCL(ncclCommInitRank(&comm, run.num_ranks, run.id, rank));
  for (int call = 0; call < kWarmUps; ++call) {
    meet(run);
    all_reduce();
    sync();
  }
  // Whoever connects allocates, which may wait for kernels that wait for him: nothing may run meanwhile.
  if (run.what == "right") {
    meet(run);
    send_and_receive();
    sync();
  }
  // As many calls as there is time for.
  const double us = in_a_row_us(kProbes);
  if (run.what != "right") return;
  meet(run);
  if (rank == 0) run.num_calls = std::max(10l, std::min(run.num_calls, static_cast<long>(run.limit * 1e6 / us)));
  meet(run);
}

void Rank::right() {
  const double begin_us = now_us();
  for (long call = 0; call < run.num_calls; ++call) {
    all_reduce();
    if (call % 10 == 0) send_and_receive();
  }
  sync();
  if (rank == 0) run.took_us = (now_us() - begin_us) / static_cast<double>(run.num_calls);
}

void Rank::late() {
  for (long call = 0; call < run.num_calls; ++call) {
    sync();
    meet(run);
    for (const Plant& plant : run.plants) {
      if (plant.call != call || plant.rank != rank) continue;
      if (plant.cause == "kernel") {
        spin<<<1, 1, 0, stream>>>(plant.late_us * 1000ull);
      } else if (plant.cause == "sleep") {
        usleep(static_cast<useconds_t>(plant.late_us));
      } else {
        for (const double end_us = now_us() + plant.late_us; now_us() < end_us;) continue;
      }
    }
    all_reduce();
  }
  sync();
}

void Rank::cost() {
  for (int round = 0; round < run.limit; ++round) {
    const double us = in_a_row_us(run.num_calls);
    if (rank == 0) run.in_a_row_us.push_back(us);
    meet(run);
    const double begin_us = now_us();
    for (long call = 0; call < run.num_calls / 4; ++call) {
      all_reduce();
      sync();
    }
    if (rank == 0) run.one_by_one_us.push_back((now_us() - begin_us) / (run.num_calls / 4));
    meet(run);
  }
}

void Rank::end() {
  float first = 0;
  sync();
  CUDA(cudaMemcpy(&first, to, sizeof(first), cudaMemcpyDeviceToHost));
  const bool was_received = run.what == "right" && rank == 1 && (run.num_calls - 1) % 10 == 0;
  if (first != (was_received ? 1.0f : static_cast<float>(run.num_ranks))) {
    fprintf(stderr, "rank %d: the sum is %f\n", rank, first);
    exit(1);
  }
  meet(run);
  NCCL(ncclCommFinalize(comm));
  NCCL(ncclCommDestroy(comm));
}

void print(const char* name, const std::vector<double>& values) {
  printf("\"%s\": [", name);
  for (size_t idx = 0; idx < values.size(); ++idx) printf("%s%.3f", idx == 0 ? "" : ", ", values[idx]);
  printf("], ");
}

int main(int argc, char** argv) {
  if (argc < 5) return 2;
  Run run;
  run.what = argv[1], run.num_ranks = atoi(argv[2]), run.num_calls = atol(argv[3]), run.limit = atof(argv[4]);
  for (int idx = 5; idx < argc; ++idx) {
    char cause[16] = {};
    Plant plant;
    if (sscanf(argv[idx], "%ld:%d:%15[a-z]:%ld", &plant.call, &plant.rank, cause, &plant.late_us) != 4) return 2;
    plant.cause = cause;
    run.plants.push_back(plant);
  }
  pthread_barrier_init(&run.barrier, nullptr, static_cast<unsigned>(run.num_ranks));
  NCCL(ncclGetUniqueId(&run.id));
  std::vector<std::thread> threads;
  for (int number = 0; number < run.num_ranks; ++number) {
    threads.emplace_back([&run, number] {
      Rank rank{run, number};
      rank.begin();
      if (run.what == "right") rank.right();
      if (run.what == "late") rank.late();
      if (run.what == "cost") rank.cost();
      rank.end();
    });
  }
  for (std::thread& thread : threads) thread.join();
  printf("{");
  print("in_a_row_us", run.in_a_row_us);
  print("one_by_one_us", run.one_by_one_us);
  printf("\"us\": %.3f, \"calls\": %ld, \"calls_before\": %d, \"pairs\": %ld}\n", run.took_us, run.num_calls,
         kWarmUps + kProbes, run.num_pairs);
  return 0;
}
