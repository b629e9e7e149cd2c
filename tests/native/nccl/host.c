// Plays NCCL for a profiler plugin: loads it as NCCL does and calls it as versions 4 to 7 of the interface do. Its
// declarations are its own, so that a mistake in the plugin's is seen here.
//
//     host ABI [key=value ...]     prints how many events it made that have a record
//
// ranks: processes (as a launcher starts them, with RANK), or threads=1: ranks are threads of one process. calls: how
// often each rank makes a collective, channels: of each; comms: how many communicators all ranks have. late=RANK,
// delay=NS: that rank begins later, every=N: in each N-th call; turns=1: the ranks take turns at it. ahead=NS: how much a rank's clock is ahead of
// that of the rank before. p2p=1: rank 0 sends to rank 1 after each. graph=N: each collective is replayed N
// times. rccl=1: as RCCL does it: times in ticks of 10 ns, diagnostics where NCCL has phases, and channels that the GPU
// never ran have no event. phases=1: phases in kernels. mess=1: stops that never come, come twice, or come in the wrong
// order, and finalize with events open. stuck=RANK: it never enters the last collective. die=RANK: it kills itself
// before, or, with inside=1, in it. without=RANK: its process finds no plugin. split=1: the second communicator is two,
// of the even and of the odd ranks. shrink=RANK: it leaves after half of the calls, and the others go on in a new
// communicator. pace=US: that long from call to call.
// linger=1: ranks stay behind their last call.
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { GROUP = 1, COLL = 2, P2P = 4, PROXY_OP = 8, PROXY_STEP = 16, KERNEL_CH = 64, GROUP_API = 256, COLL_API = 512 };
enum { P2P_API = 1024, KERNEL_LAUNCH = 2048, KERNEL_PHASE = 32768, CH_STOP = 22, PHASE_STOP = 31, SEND_WAIT = 9 };
enum { PROXY_DIAG = 32768, DIAG_UPDATE = 31 };

typedef struct {
  uint8_t type;
  void* parent;
  int rank;
  union {
    struct {
      uint64_t seq;
      const char* func;
      void const* send;
      void* recv;
      size_t count;
      int root;
      const char* datatype;
      uint8_t channels, warps;
      const char *algo, *proto;
    } coll;
    struct {
      const char* func;
      void* buff;
      const char* datatype;
      size_t count;
      int peer;
      uint8_t channels;
    } p2p;
    struct {
      pid_t pid;
      uint8_t channel;
      int peer, steps, chunk, is_send;
    } op;
    struct {
      int step;
    } step;
    struct {
      uint8_t channel;
      uint64_t timer;
    } ch;
  };
} Descr4;

#define COMMON                       \
  struct {                           \
    bool captured;                   \
    int depth;                       \
  } group_api;                       \
  struct {                           \
    void* stream;                    \
  } launch;                          \
  struct {                           \
    pid_t pid;                       \
    uint8_t channel;                 \
    int peer, steps, chunk, is_send; \
  } op;                              \
  struct {                           \
    int step;                        \
  } step;                            \
  struct {                           \
    uint8_t channel;                 \
    uint64_t timer;                  \
  } ch

typedef struct {
  uint64_t type;
  void* parent;
  int rank;
  union {
    COMMON;
    struct {
      const char* func;
      size_t count;
      const char* datatype;
      int root;
      void* stream;
      bool captured;
    } coll_api;
    struct {
      uint64_t seq;
      const char* func;
      void const* send;
      void* recv;
      size_t count;
      int root;
      const char* datatype;
      uint8_t channels, warps;
      const char *algo, *proto;
      void* group;
    } coll;
    struct {
      const char* func;
      void* buff;
      const char* datatype;
      size_t count;
      int peer;
      uint8_t channels;
      void* group;
    } p2p;
  };
} Descr5;

typedef struct {
  uint64_t type;
  void* parent;
  int rank;
  union {
    COMMON;
    struct {
      const char* func;
      size_t count;
      const char* datatype;
      int root;
      void* stream;
      bool captured;
      uint64_t tag;
    } coll_api;
    struct {
      const char* func;
      size_t count;
      const char* datatype;
      void* stream;
      bool captured;
      uint64_t tag;
    } p2p_api;
    struct {
      uint64_t seq;
      const char* func;
      void const* send;
      void* recv;
      size_t count;
      int root;
      const char* datatype;
      uint8_t channels, warps;
      const char *algo, *proto;
      void* group;
      const char* variant;
      bool is_symmetric;
      uint64_t tag;
    } coll;
    struct {
      const char* func;
      void* buff;
      const char* datatype;
      size_t count;
      int peer;
      uint8_t channels;
      void* group;
      uint64_t tag;
    } p2p;
    struct {
      uint8_t channel, phase;
      const char* name;
      uint64_t timer;
    } phase;
  };
} Descr7;

typedef union {
  uint64_t timer;
  size_t bytes;
} Args;

typedef struct {
  const char* name;
  int (*init)(void**, int*, const char*, uint64_t, int, int, int, void*);
  int (*start)(void*, void**, void*);
  int (*stop)(void*);
  int (*state)(void*, int, Args*);
  int (*finalize)(void*);
} Plugin4;

typedef struct {
  const char* name;
  int (*init)(void**, uint64_t, int*, const char*, int, int, int, void*);
  int (*start)(void*, void**, void*);
  int (*stop)(void*);
  int (*state)(void*, int, Args*);
  int (*finalize)(void*);
} Plugin;

static int abi;
static Plugin* plugin;
static atomic_long num_events;
static atomic_int event_mask;
static int num_args;
static char** args;

static long option(const char* name, long otherwise) {
  for (int i = 2; i < num_args; ++i)
    if (!strncmp(args[i], name, strlen(name)) && args[i][strlen(name)] == '=') return atol(args[i] + strlen(name) + 1);
  return otherwise;
}

static void* begin(void* context, void* descr) {
  void* handle = NULL;
  if (!(event_mask & (abi == 4 ? *(uint8_t*)descr : *(uint64_t*)descr))) return NULL;
  if (plugin->start(context, &handle, descr)) abort();
  // What only lends its time to others has the highest bit.
  num_events += handle != NULL && !((uintptr_t)handle >> 63);
  return handle;
}

static void end(void* handle) {
  if (handle) plugin->stop(handle);
}

static void tell(void* handle, int state, uint64_t value) {
  if (!handle) return;
  Args args = {value};
  plugin->state(handle, state, &args);
}

#define FILL(D)               \
  D d;                        \
  memset(&d, 0xee, sizeof d); \
  d.type = type;              \
  d.parent = parent

static void* simple(void* context, int type, void* parent) {
  if (abi == 4 && type > KERNEL_CH) return NULL;
  if (abi == 4) {
    FILL(Descr4);
    return begin(context, &d);
  }
  FILL(Descr5);
  return begin(context, &d);
}

static void* channel(void* context, void* parent, int channel, uint64_t timer) {
  const int type = KERNEL_CH;
  if (abi == 4) {
    FILL(Descr4);
    d.ch.channel = channel, d.ch.timer = timer;
    return begin(context, &d);
  }
  FILL(Descr5);
  d.ch.channel = channel, d.ch.timer = timer;
  return begin(context, &d);
}

static void* phase(void* context, void* parent, int channel, int which, uint64_t timer) {
  const int type = KERNEL_PHASE;
  FILL(Descr7);
  d.phase.channel = channel, d.phase.phase = which, d.phase.name = "phase", d.phase.timer = timer;
  return begin(context, &d);
}

static void* coll_api(void* context, void* parent, bool is_captured) {
  if (abi == 4) return NULL;
  const int type = COLL_API;
  FILL(Descr7);
  d.coll_api.captured = is_captured;
  d.coll_api.func = "AllReduce", d.coll_api.datatype = "ncclFloat32", d.coll_api.count = 16384, d.coll_api.tag = 7;
  return begin(context, &d);
}

#define COLLECTIVE                                                                                                     \
  d.coll.seq = seq, d.coll.func = "AllReduce", d.coll.count = 16384, d.coll.datatype = "ncclFloat32", d.coll.root = 0, \
  d.coll.channels = channels, d.coll.algo = "RING", d.coll.proto = "LL"

static void* collective(void* context, void* parent, uint64_t seq, int channels) {
  const int type = COLL;
  if (abi == 4) {
    FILL(Descr4);
    COLLECTIVE;
    return begin(context, &d);
  }
  if (abi < 7) {
    FILL(Descr5);
    COLLECTIVE;
    return begin(context, &d);
  }
  FILL(Descr7);
  COLLECTIVE;
  d.coll.tag = 7;
  return begin(context, &d);
}

#define PEER_TO_PEER \
  d.p2p.func = func, d.p2p.count = 1024, d.p2p.datatype = "ncclInt8", d.p2p.peer = peer, d.p2p.channels = 1

static void* p2p_api(void* context, const char* func) {
  if (abi == 4) return NULL;
  const int type = P2P_API;
  void* parent = NULL;
  FILL(Descr7);
  d.p2p_api.func = func, d.p2p_api.datatype = "ncclInt8", d.p2p_api.count = 1024, d.p2p_api.captured = false;
  return begin(context, &d);
}

static void* peer_to_peer(void* context, void* parent, const char* func, int peer) {
  const int type = P2P;
  if (abi == 4) {
    FILL(Descr4);
    PEER_TO_PEER;
    return begin(context, &d);
  }
  FILL(Descr7);
  PEER_TO_PEER;
  return begin(context, &d);
}

static void* proxy_op(void* context, void* parent, int channel, int peer) {
  const int type = PROXY_OP;
  FILL(Descr5);
  d.op.pid = getpid(), d.op.channel = channel, d.op.peer = peer, d.op.steps = 2, d.op.chunk = 4096, d.op.is_send = 1;
  if (abi > 4) return begin(context, &d);
  Descr4 old;
  memset(&old, 0xee, sizeof old);
  old.type = type, old.parent = parent;
  memcpy(&old.op, &d.op, sizeof old.op);
  return begin(context, &old);
}

// One kernel: its channels begin at `from` and end at `to`.
static void kernel(void* context, void* parent, int channels, uint64_t from, uint64_t last, bool is_stuck) {
  const bool is_messy = option("mess", 0), has_phases = option("phases", 0) && abi >= 7, is_rccl = option("rccl", 0);
  const int tick_ns = is_rccl ? 10 : 1;
  void** handles = calloc(channels, sizeof(void*));
  for (int c = 0; c < channels; ++c)
    if (!is_rccl || c % 7 != 6) handles[c] = channel(context, parent, c, from / tick_ns);
  for (int i = 0; i < channels && !is_stuck; ++i) {
    const int c = is_messy ? channels - 1 - i : i;
    const uint64_t to = last + 20000 + 1000 * (c % 8);
    if (has_phases) {
      const uint64_t at[4] = {from, last, to - 2000, to};
      for (int p = 0; p < 3; ++p) {
        void* handle = phase(context, handles[c], c, p, at[p]);
        tell(handle, PHASE_STOP, at[p + 1]);
        end(handle);
      }
    }
    if (is_messy && c % 5 == 1) continue;
    tell(handles[c], CH_STOP, to / tick_ns);
    end(handles[c]);
    if (is_messy && c % 5 == 2) end(handles[c]);
  }
  free(handles);
}

static void join(void** context, uint64_t id, const char* name, int ranks, int rank) {
  int mask = 0;
  const int error = abi == 4 ? ((Plugin4*)plugin)->init(context, &mask, name, id, 1, ranks, rank, NULL)
                             : plugin->init(context, id, &mask, name, 1, ranks, rank, NULL);
  if (error) abort();
  event_mask = mask;
}

static void* rank_main(void* argument) {
  const long rank = (long)argument, ranks = option("ranks", 2), calls = option("calls", 10), comms = option("comms", 1);
  const long channels = option("channels", 4), late = option("late", -1), delay = option("delay", 0);
  const bool is_messy = option("mess", 0);
  const uint64_t ahead = rank * option("ahead", 0);
  void* contexts[8];
  const long shrink = option("shrink", -1);
  for (int k = 0; k < comms; ++k) {
    const bool is_half = k == 1 && option("split", 0);
    const int parity = is_half ? rank % 2 : 0;
    join(&contexts[k], 0xabc0 + k + parity, k ? "second" : "world", is_half ? (ranks + 1 - parity) / 2 : ranks,
         is_half ? rank / 2 : rank);
    if (!event_mask || !contexts[k]) return NULL;
  }
  for (long call = 0; call < calls; ++call) {
    if (option("pace", 0)) usleep(option("pace", 0));
    const bool is_last = call == calls - 1, is_dying = option("die", -1) == rank && is_last;
    if (is_dying && !option("inside", 0)) kill(getpid(), SIGKILL);
    if (option("stuck", -1) == rank && is_last) continue;
    const bool is_stuck = is_last && (option("stuck", -1) >= 0 || option("inside", 0));
    if (shrink >= 0 && call == calls / 2) {
      plugin->finalize(contexts[0]);
      if (rank == shrink) return NULL;
      join(&contexts[0], 0xabcf, "shrunk", ranks - 1, rank - (rank > shrink));
    }
    for (int k = 0; k < comms; ++k) {
      void* context = contexts[k];
      const long replays = option("graph", 1);
      void* group = simple(context, GROUP_API, NULL);
      void* api = coll_api(context, group, replays > 1);
      end(api);
      void* launch = simple(context, KERNEL_LAUNCH, group);
      end(launch);
      for (long replay = 0; replay < replays; ++replay) {
        // What NCCL has launched, it tells of only then; what it has captured, in each replay.
        const long seq = call * replays + replay;
        void* plan = simple(context, GROUP, NULL);
        void* coll = collective(context, abi == 4 ? plan : api, seq, channels);
        void* op = proxy_op(context, coll, 0, (rank + 1) % ranks);
        void* step = simple(context, PROXY_STEP, op);
        tell(step, SEND_WAIT, 4096), end(step), end(op);
        if (option("rccl", 0)) {
          void* diagnostics = simple(context, PROXY_DIAG, op);
          tell(diagnostics, DIAG_UPDATE, 0x0001000100010001), end(diagnostics);
        }
        end(coll), end(plan);
        // A channel ends before the next call begins.
        const uint64_t at = 1000000000000ull + (seq * comms + k) * (100000 + delay);
        const bool is_planted = (late >= 0 && call % option("every", 1) == option("every", 1) - 1) || option("turns", 0);
        const bool is_late = is_planted && (option("turns", 0) ? call % ranks == rank : late == rank);
        const uint64_t last = at + (is_planted ? delay : 100 * (ranks - 1));
        const uint64_t mine = is_late ? last : at + (is_planted ? 10 * rank : 100 * rank);
        kernel(context, coll, channels, mine + ahead, last + ahead, is_stuck);
        if (is_dying) kill(getpid(), SIGKILL);
      }
      end(group);
      if (option("p2p", 0) && rank < 2) {
        const uint64_t at = 1000000050000ull + (call * comms + k) * 100000 + ahead;
        // So that rings of ranks begin at different calls when they have overwritten the first ones.
        if (!rank) end(proxy_op(context, NULL, 0, 1));
        void* p2p_call = p2p_api(context, rank ? "Recv" : "Send");
        end(p2p_call);
        void* p2p = peer_to_peer(context, p2p_call, rank ? "Recv" : "Send", 1 - rank);
        end(p2p);
        kernel(context, p2p, 1, at + (rank ? 0 : 3000), at + 3000, false);
      }
    }
  }
  // As a rank that hangs, until somebody kills it.
  if (option("linger", 0)) pause();
  for (int k = 0; k < comms; ++k) {
    if (is_messy) (void)simple(contexts[k], GROUP_API, NULL);
    plugin->finalize(contexts[k]);
  }
  return NULL;
}

static void load(void) {
  const char* path = getenv("NCCL_PROFILER_PLUGIN");
  void* library = path ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
  char symbol[32];
  snprintf(symbol, sizeof symbol, "ncclProfiler_v%d", abi);
  plugin = library ? dlsym(library, symbol) : NULL;
  if (!plugin) {
    // NCCL goes on without.
    printf("events 0\n");
    exit(0);
  }
}

int main(int argc, char** argv) {
  num_args = argc, args = argv;
  abi = atoi(argv[1]);
  const long ranks = option("ranks", 2);
  setvbuf(stdout, NULL, _IOLBF, 0);
  if (option("threads", 0)) {
    pthread_t threads[16];
    load();
    for (long rank = 0; rank < ranks; ++rank) pthread_create(&threads[rank], NULL, rank_main, (void*)rank);
    for (long rank = 0; rank < ranks; ++rank) pthread_join(threads[rank], NULL);
    printf("events %ld\n", (long)num_events);
    return 0;
  }
  for (long rank = 0; rank < ranks; ++rank) {
    if (fork()) continue;
    char text[24];
    snprintf(text, sizeof text, "%ld", rank);
    setenv("RANK", text, 1);
    if (option("without", -1) == rank) setenv("NCCL_PROFILER_PLUGIN", "/nowhere/plugin.so", 1);
    load();
    rank_main((void*)rank);
    printf("events %ld\n", (long)num_events);
    fflush(stdout);
    // A run that hangs ends when somebody kills it; here that is at once.
    _exit(0);
  }
  while (wait(NULL) > 0) continue;
  return 0;
}
