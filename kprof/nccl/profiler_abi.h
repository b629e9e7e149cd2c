// The profiler interface of NCCL and RCCL, versions 4 to 7, in our own declarations: no header of NCCL is needed.
//
// A descriptor begins with its type (8 bits in version 4, 64 since), the parent's handle and the rank. Then come the
// fields of the type. Later versions have added fields at the end of them only, so the latest layout reads them all.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kprof::nccl {

// Types of events, as bits of the mask.
enum Type : uint64_t {
  kGroup = 1 << 0,
  kColl = 1 << 1,
  kP2p = 1 << 2,
  kProxyOp = 1 << 3,
  kProxyStep = 1 << 4,
  kProxyCtrl = 1 << 5,
  kKernelCh = 1 << 6,
  kNetPlugin = 1 << 7,
  kGroupApi = 1 << 8,
  kCollApi = 1 << 9,
  kP2pApi = 1 << 10,
  kKernelLaunch = 1 << 11,
  kCeColl = 1 << 12,
  kCeSync = 1 << 13,
  kCeBatch = 1 << 14,
  kKernelPhase = 1 << 15,  // since 7; RCCL has diagnostics of its proxies here
};

// States whose arguments are looked at.
enum State : int {
  kSendGpuWait = 8,
  kSendWait = 9,
  kRecvWait = 10,
  kRecvFlushWait = 11,
  kRecvGpuWait = 12,
  kSendPeerWait = 20,
  kKernelChStop = 22,
  kKernelPhaseStop = 31,  // since 7; RCCL has diagnostics here
};

struct CollApi {
  const char* func;
  size_t count;
  const char* datatype;
  int root;
  void* stream;
  bool is_captured;
};

struct P2pApi {
  const char* func;
  size_t count;
  const char* datatype;
  void* stream;
  bool is_captured;
};

struct Coll {
  uint64_t sequence;
  const char* func;
  const void* send;
  void* receive;
  size_t count;
  int root;
  const char* datatype;
  uint8_t num_channels, num_warps;
  const char* algorithm;
  const char* protocol;
  void* group;          // since 5
  const char* variant;  // since 7
  bool is_symmetric;
  uint64_t tag;
};

struct P2p {
  const char* func;
  void* buffer;
  const char* datatype;
  size_t count;
  int peer;
  uint8_t num_channels;
  void* group;   // since 5
  uint64_t tag;  // since 7
};

struct ProxyOp {
  int pid;
  uint8_t channel;
  int peer, num_steps, chunk_bytes, is_send;
};

struct KernelCh {
  uint8_t channel;
  uint64_t gpu_ns;
};

struct KernelPhase {
  uint8_t channel, phase;
  const char* name;
  uint64_t gpu_ns;
};

struct CeColl {
  uint64_t sequence;
  const char* func;
  const void* send;
  void* receive;
  size_t count;
  int root;
  const char* datatype;
};

struct CeBatch {
  int num_ops;
  size_t num_bytes;
};

struct Descriptor {
  uint64_t type;
  void* parent;
  int rank;
  union {
    CollApi coll_api;
    P2pApi p2p_api;
    Coll coll;
    P2p p2p;
    ProxyOp proxy_op;
    int proxy_step;
    KernelCh kernel_ch;
    KernelPhase kernel_phase;
    CeColl ce_coll;
    CeBatch ce_batch;
  };
};

// All of a state's arguments that are looked at are 64 bits at the beginning.
union StateArguments {
  uint64_t value;
  void* data;
};

using Logger = void (*)(int, unsigned long, const char*, int, const char*, ...);
using StartEvent = int (*)(void* context, void** handle, Descriptor*);
using StopEvent = int (*)(void* handle);
using RecordState = int (*)(void* handle, int state, StateArguments*);
using Finalize = int (*)(void* context);

struct ProfilerV4 {
  const char* name;
  int (*init)(void** context, int* mask, const char* comm_name, uint64_t comm_id, int num_nodes, int num_ranks,
              int rank, Logger);
  StartEvent start;
  StopEvent stop;
  RecordState state;
  Finalize finalize;
};

// Versions 5, 6 and 7.
struct Profiler {
  const char* name;
  int (*init)(void** context, uint64_t comm_id, int* mask, const char* comm_name, int num_nodes, int num_ranks,
              int rank, Logger);
  StartEvent start;
  StopEvent stop;
  RecordState state;
  Finalize finalize;
};

}  // namespace kprof::nccl
