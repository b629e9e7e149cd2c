// A profiler plugin for NCCL and RCCL that writes what it is called with into a ring in shared memory, and nothing
// else: no lock, no allocation, no thread. kprof record --nccl builds it and names it in NCCL_PROFILER_PLUGIN.
//
// An event takes a number with one atomic addition, and stores 64 bytes; its end goes into the same record. Handles are
// numbers, so a stop that comes late, twice or never touches no memory of ours. What the ring held before is
// overwritten, and counted by the reader.
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>

#include "profiler_abi.h"
#include "ring.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23  // Linux 5.14; before, it is an error, and pages come when they are used
#endif

namespace kprof::nccl {
namespace {

constexpr uint64_t kLeastRecords = 1 << 10;
constexpr uint64_t kUsualMask =
    kColl | kP2p | kProxyOp | kProxyStep | kKernelCh | kCollApi | kP2pApi | kCeColl | kCeSync | kCeBatch | kKernelPhase;
// A handle with this bit is no record: it is what the host's clock said, for calls of the API, whose time goes into the
// record of the call, or nothing. With the other bit, the call was captured in a graph.
constexpr uint64_t kIsTime = 1ull << 63, kIsCaptured = 1ull << 62;
// The end of what has this bit in its handle is not recorded: calls end on the host before they run.
constexpr uint64_t kHasNoEnd = 1ull << 61;

std::atomic<Header*> ring{nullptr};
uint64_t wanted = kUsualMask;  // by what the user says
uint64_t sampled_of = 1;       // one call in so many is recorded, the same ones on all ranks
// Of each communicator, how many sends to each rank and, behind them, receives from each there were.
std::atomic<std::atomic<uint32_t>*> num_p2p[kNumComms];
pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER;  // taken when communicators are made, never by an event
bool has_tried = false;

template <typename T>
T* at(Header* header, uint64_t offset, uint64_t idx) {
  return reinterpret_cast<T*>(reinterpret_cast<char*>(header) + offset) + idx;
}

uint64_t now_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1000000000ull + static_cast<uint64_t>(now.tv_nsec);
}

uint64_t thread_id() {
  static thread_local const auto id = static_cast<uint64_t>(syscall(SYS_gettid));
  return id;
}

long number_in(const char* name, long otherwise) {
  const char* text = getenv(name);
  if (text == nullptr || *text == 0) return otherwise;
  char* end = nullptr;
  const long number = strtol(text, &end, 0);
  return *end == 0 ? number : otherwise;
}

long rank_of_environment() {
  for (const char* name : {"RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK"}) {
    const long rank = number_in(name, -1);
    if (rank >= 0) return rank;
  }
  return -1;
}

// The first half of the boot's random number.
uint64_t this_machine() {
  char text[19] = {};
  const int file = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
  if (file < 0) return 0;
  const bool is_read = read(file, text, 18) == 18;
  close(file);
  uint64_t number = 0;
  for (const char* at = text; is_read && *at != 0; ++at) {
    if (*at != '-') number = number << 4 | static_cast<uint64_t>(*at <= '9' ? *at - '0' : *at - 'a' + 10);
  }
  return number;
}

// A new file with all its bytes reserved, locked for as long as this process lives: a full memory means an error here
// and not SIGBUS later.
int make_file(const char* folder, uint64_t num_bytes) {
  char host[65] = {}, path[4096];
  gethostname(host, sizeof(host) - 1);
  for (int attempt = 0; attempt < 16; ++attempt) {
    const int length = snprintf(path, sizeof(path), "%s/nccl-%s-%d-%d", folder, host, getpid(), attempt);
    if (length < 0 || length >= static_cast<int>(sizeof(path))) return -ENAMETOOLONG;
    const int file = open(path, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (file < 0 && errno == EEXIST) continue;
    if (file < 0) return -errno;
    const int error = posix_fallocate(file, 0, static_cast<off_t>(num_bytes));
    if (error == 0 && flock(file, LOCK_SH | LOCK_NB) == 0) return file;
    unlink(path);
    close(file);
    return -(error != 0 ? error : EAGAIN);
  }
  return -EEXIST;
}

// The number of records is halved until they fit.
Header* make_ring(const char* folder, uint64_t num_records, int* error) {
  for (; num_records >= kLeastRecords; num_records /= 2) {
    const uint64_t num_bytes = kRecordsOffset + num_records * sizeof(Record);
    const int file = make_file(folder, num_bytes);
    if (file == -ENOSPC || file == -ENOMEM || file == -EFBIG) {
      *error = -file;
      continue;
    }
    if (file < 0) {
      *error = -file;
      return nullptr;
    }
    void* memory = mmap(nullptr, num_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    // The descriptor stays open, because it holds the lock.
    if (memory == MAP_FAILED) {
      *error = errno;
      close(file);
      return nullptr;
    }
    // Not while a collective waits for the page.
    madvise(memory, num_bytes, MADV_POPULATE_WRITE);
    auto* header = static_cast<Header*>(memory);
    header->version = kRingVersion;
    header->pid = static_cast<uint64_t>(getpid());
    header->num_records = num_records;
    header->rank = rank_of_environment();
    header->machine = this_machine();
    header->magic = kRingMagic;
    return header;
  }
  return nullptr;
}

// The ring of the parent is not the child's.
void forget_ring() {
  pthread_mutex_init(&opening, nullptr);
  ring.store(nullptr);
  has_tried = false;
}

// Where the shared memory of the recording is not on this host, the directory of the recording serves.
Header* open_ring(uint32_t abi) {
  pthread_mutex_lock(&opening);
  Header* header = ring.load();
  if (header == nullptr && !has_tried) {
    has_tried = true;
    int error = ENOENT;
    const long num_bytes = number_in("KPROF_NCCL_RING_BYTES", 64l << 20);
    const uint64_t num_records = static_cast<uint64_t>(num_bytes > 0 ? num_bytes : 0) / sizeof(Record);
    const char* last = "KPROF_NCCL_DIR, which is not set";
    for (const char* name : {"KPROF_NCCL_DIR", "KPROF_RECORD_DIR"}) {
      const char* folder = getenv(name);
      if (header != nullptr || folder == nullptr || *folder == 0) continue;
      header = make_ring(folder, num_records, &error);
      last = folder;
    }
    if (header == nullptr) {
      fprintf(stderr, "kprof: NCCL is not recorded in process %d: no memory in %s: %s\n", getpid(), last,
              strerror(error));
    } else {
      header->abi = abi;
      header->keeps_latest = number_in("KPROF_NCCL_KEEPS_LATEST", 0) == 1;
      header->keep_slowest = static_cast<uint64_t>(number_in("KPROF_NCCL_KEEP_SLOWEST", 0));
      const long sample = number_in("KPROF_NCCL_SAMPLE", 1);
      sampled_of = sample > 1 ? static_cast<uint64_t>(sample) : 1;
      wanted = static_cast<uint64_t>(number_in("NCCL_PROFILE_EVENT_MASK", kUsualMask));
      pthread_atfork(nullptr, nullptr, forget_ring);
      ring.store(header);
    }
  }
  pthread_mutex_unlock(&opening);
  return header;
}

void* symbol(const char* library, const char* name) {
  void* loaded = dlopen(library, RTLD_LAZY | RTLD_NOLOAD);
  return loaded == nullptr ? nullptr : dlsym(loaded, name);
}

// Of the device that the calling thread has made current, by the driver that the process has loaded.
void describe_device(Communicator* comm) {
  constexpr int kWallClockRate = 10017;  // hipDeviceAttributeWallClockRate, in kHz
  comm->device = -1;
  comm->ticks_per_second = 1000000000;
  using GetDevice = int (*)(int*);
  using GetUuid = int (*)(void*, int);
  using GetAttribute = int (*)(int*, int, int);
  static const char* const kDrivers[][4] = {
      {"libcuda.so.1", "cuCtxGetDevice", "cuDeviceGetUuid", nullptr},
      {"libamdhip64.so.7", "hipGetDevice", "hipDeviceGetUuid", "hipDeviceGetAttribute"},
      {"libamdhip64.so.6", "hipGetDevice", "hipDeviceGetUuid", "hipDeviceGetAttribute"}};
  for (const auto& driver : kDrivers) {
    auto get_device = reinterpret_cast<GetDevice>(symbol(driver[0], driver[1]));
    auto get_uuid = reinterpret_cast<GetUuid>(symbol(driver[0], driver[2]));
    int device = -1, khz = 0;
    if (get_device == nullptr || get_uuid == nullptr || get_device(&device) != 0) continue;
    comm->device = device;
    if (get_uuid(comm->uuid, device) != 0) memset(comm->uuid, 0, sizeof(comm->uuid));
    if (driver[3] == nullptr) return;
    auto get_attribute = reinterpret_cast<GetAttribute>(symbol(driver[0], driver[3]));
    const bool is_told = get_attribute != nullptr && get_attribute(&khz, kWallClockRate, device) == 0 && khz > 0;
    comm->ticks_per_second = is_told ? static_cast<uint64_t>(khz) * 1000 : 100000000;
    return;
  }
}

int begin(uint32_t abi, void** context, uint64_t id, int* mask, const char* name, int num_nodes, int num_ranks,
          int rank) {
  *context = nullptr;
  *mask = 0;
  Header* header = open_ring(abi);
  if (header == nullptr) return 0;
  // What a version does not have may be something else there.
  const int known = abi == 4 ? 0xff : abi < 7 ? kKernelPhase - 1 : ~0;
  *mask = static_cast<int>(wanted) & known;
  const uint64_t idx = header->num_comms.fetch_add(1);
  // Events of more communicators than there are rows are counted for the row that none has.
  *context = reinterpret_cast<void*>((idx < kNumComms ? idx : kNumComms) + 1);
  if (idx >= kNumComms) return 0;
  auto* comm = at<Communicator>(header, kCommsOffset, idx);
  comm->id = id;
  comm->rank = rank;
  comm->num_ranks = num_ranks;
  comm->num_nodes = num_nodes;
  comm->begun_ns = now_ns();
  snprintf(comm->name, sizeof(comm->name), "%s", name == nullptr ? "" : name);
  describe_device(comm);
  num_p2p[idx].store(static_cast<std::atomic<uint32_t>*>(
      calloc(2 * static_cast<size_t>(num_ranks > 0 ? num_ranks : 1), sizeof(std::atomic<uint32_t>))));
  comm->is_complete.store(1, std::memory_order_release);
  return 0;
}

// The number of a text, from 1; 0 where there is none, or no place for one more. A text that two threads bring at the
// same time may get two numbers.
uint8_t number_of(Header* header, const char* text) {
  if (text == nullptr) return 0;
  for (uint32_t idx = 0; idx < kNumTexts - 1; ++idx) {
    auto* row = at<Text>(header, kTextsOffset, idx);
    uint32_t state = row->state.load(std::memory_order_acquire);
    if (state == 0 && row->state.compare_exchange_strong(state, 1)) {
      strncpy(row->text, text, sizeof(row->text) - 1);
      row->state.store(2, std::memory_order_release);
      return static_cast<uint8_t>(idx + 1);
    }
    if (state == 2 && strncmp(row->text, text, sizeof(row->text) - 1) == 0) return static_cast<uint8_t>(idx + 1);
  }
  return 0;
}

struct Fields {
  uint64_t subject = 0, value = 0, count = 0, tag = 0;
  uint8_t kind = 0;  // log2 of the type
  uint16_t comm = 0;
  int32_t peer = -1;
  uint8_t func = 0, datatype = 0, algorithm = 0, protocol = 0;
  uint16_t channel = 0;
  uint8_t extra = 0;
};

// Returns the handle.
uint64_t write(Header* header, const Fields& fields, uint64_t host_ns) {
  const uint64_t number = header->num_events.fetch_add(1, std::memory_order_relaxed);
  auto* record = at<Record>(header, kRecordsOffset, number % header->num_records);
  if (record->sequence.exchange(kBusy, std::memory_order_acquire) == kBusy) {
    header->num_refused.fetch_add(1, std::memory_order_relaxed);
    return number + 1;
  }
  const uint64_t words[7] = {
      host_ns,
      fields.subject,
      fields.value,
      fields.count,
      fields.tag,
      uint64_t{fields.kind} | uint64_t{fields.comm} << 16 | uint64_t{static_cast<uint32_t>(fields.peer)} << 32,
      uint64_t{fields.func} | uint64_t{fields.datatype} << 8 | uint64_t{fields.algorithm} << 16 |
          uint64_t{fields.protocol} << 24 | uint64_t{fields.channel} << 32 | uint64_t{fields.extra} << 48,
  };
  for (int idx = 0; idx < 7; ++idx) record->words[idx].store(words[idx], std::memory_order_relaxed);
  record->sequence.store(number + 1, std::memory_order_release);
  return number + 1;
}

// Calls change(words, kind) with the record of an event while nobody else writes it, unless the ring has lost it.
template <typename Change>
void change(void* handle, Change change) {
  Header* header = ring.load(std::memory_order_acquire);
  uint64_t sequence = reinterpret_cast<uintptr_t>(handle);
  if (header == nullptr || sequence == 0 || (sequence & (kIsTime | kHasNoEnd)) != 0) return;
  auto* record = at<Record>(header, kRecordsOffset, (sequence - 1) % header->num_records);
  const uint64_t mine = sequence;
  if (!record->sequence.compare_exchange_strong(sequence, kBusy, std::memory_order_acquire)) {
    if (sequence == kBusy) header->num_refused.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  const uint64_t kind = record->words[kFields].load(std::memory_order_relaxed) & 0xff;
  change(record->words, uint64_t{1} << kind);
  record->sequence.store(mine, std::memory_order_release);
}

// Which send to this rank, or receive from it, this is: the same number on both, from 0.
uint64_t number_of_p2p(Header* header, uint16_t comm, const P2p& call) {
  if (comm == 0 || comm > kNumComms) return 0;
  auto* numbers = num_p2p[comm - 1].load(std::memory_order_acquire);
  const int num_ranks = at<Communicator>(header, kCommsOffset, comm - 1)->num_ranks;
  if (numbers == nullptr || call.peer < 0 || call.peer >= num_ranks || call.func == nullptr) return 0;
  const bool is_send = call.func[0] == 'S';
  return numbers[call.peer + (is_send ? 0 : num_ranks)].fetch_add(1, std::memory_order_relaxed);
}

// Whether a call is recorded: by a hash of its number, because every n-th call may always be the same one of a step.
bool is_in_sample(uint64_t number) {
  return sampled_of == 1 || (number * 0x9e3779b97f4a7c15ull >> 32) % sampled_of == 0;
}

// Whether an event is not in the sample. Children of what is not have no parent.
bool is_left_out(uint64_t type, const Descriptor& descriptor, const Fields& fields) {
  if (sampled_of == 1) return false;
  if ((type & (kGroupApi | kKernelLaunch)) != 0) return true;
  if (type == kColl || type == kP2p || type == kCeColl) return !is_in_sample(fields.value);
  return descriptor.parent == nullptr;
}

template <uint32_t kAbi>
void describe(Header* header, const Descriptor& from, uint64_t type, uint64_t host_ns, Fields* to) {
  const uint64_t parent = reinterpret_cast<uintptr_t>(from.parent);
  to->subject = parent & ~kHasNoEnd;
  if (type == kColl || type == kP2p) {
    // NCCL tells of a call after it has launched the kernel, and of a captured one in each replay, before it runs.
    to->subject = (parent & kIsTime) == 0 ? 0 : (parent & kIsCaptured) != 0 ? host_ns : parent & ~kIsTime;
  }
  switch (type) {
    case kGroupApi:
    case kKernelLaunch:
      to->value = thread_id();
      break;
    case kColl:
      to->value = from.coll.sequence;
      to->count = from.coll.count;
      to->tag = kAbi >= 7 ? from.coll.tag : 0;
      to->peer = from.coll.root;
      to->func = number_of(header, from.coll.func);
      to->datatype = number_of(header, from.coll.datatype);
      to->algorithm = number_of(header, from.coll.algorithm);
      to->protocol = number_of(header, from.coll.protocol);
      to->channel = from.coll.num_channels;
      break;
    case kP2p:
      to->value = number_of_p2p(header, to->comm, from.p2p);
      to->count = from.p2p.count;
      to->tag = kAbi >= 7 ? from.p2p.tag : 0;
      to->peer = from.p2p.peer;
      to->func = number_of(header, from.p2p.func);
      to->datatype = number_of(header, from.p2p.datatype);
      to->channel = from.p2p.num_channels;
      break;
    case kProxyOp:
      to->value = static_cast<uint64_t>(from.proxy_op.pid);
      to->channel = from.proxy_op.channel;
      to->peer = from.proxy_op.peer;
      to->count = static_cast<uint64_t>(from.proxy_op.num_steps);
      to->extra = from.proxy_op.is_send != 0;
      break;
    case kProxyStep:
      to->value = static_cast<uint64_t>(from.proxy_step);
      break;
    case kKernelCh:
      to->channel = from.kernel_ch.channel;
      to->value = from.kernel_ch.gpu_ns;
      break;
    case kKernelPhase:
      to->channel = from.kernel_phase.channel;
      to->extra = from.kernel_phase.phase;
      to->value = from.kernel_phase.gpu_ns;
      break;
    case kCeColl:
      to->value = from.ce_coll.sequence;
      to->count = from.ce_coll.count;
      to->peer = from.ce_coll.root;
      to->func = number_of(header, from.ce_coll.func);
      to->datatype = number_of(header, from.ce_coll.datatype);
      break;
    case kCeBatch:
      to->count = from.ce_batch.num_bytes;
      break;
    default:
      break;
  }
}

template <uint32_t kAbi>
int start(void* context, void** handle, Descriptor* descriptor) {
  *handle = nullptr;
  Header* header = ring.load(std::memory_order_acquire);
  if (header == nullptr || context == nullptr) return 0;
  const uint64_t type = kAbi == 4 ? descriptor->type & 0xff : descriptor->type;
  if (type == 0 || (type & (type - 1)) != 0) return 0;
  if (type == kCollApi || type == kP2pApi) {
    const bool is_captured = type == kCollApi ? descriptor->coll_api.is_captured : descriptor->p2p_api.is_captured;
    *handle = reinterpret_cast<void*>(kIsTime | (is_captured ? kIsCaptured : 0) | now_ns());
    return 0;
  }
  if (type == kGroup || ((type & (kGroupApi | kKernelLaunch)) != 0 && (type & wanted) == 0)) {
    // NCCL counts replays only if a group has a handle.
    *handle = reinterpret_cast<void*>(kIsTime);
    return 0;
  }
  Fields fields;
  const uint64_t host_ns = now_ns();
  fields.kind = static_cast<uint8_t>(__builtin_ctzll(type));
  fields.comm = static_cast<uint16_t>(reinterpret_cast<uintptr_t>(context));
  describe<kAbi>(header, *descriptor, type, host_ns, &fields);
  if (is_left_out(type, *descriptor, fields)) return 0;
  const bool is_call = type == kColl || type == kP2p;
  *handle = reinterpret_cast<void*>(write(header, fields, host_ns) | (is_call ? kHasNoEnd : 0));
  if (is_call && fields.comm <= kNumComms)
    at<Communicator>(header, kCommsOffset, fields.comm - 1)->num_calls.fetch_add(1, std::memory_order_relaxed);
  return 0;
}

// The first end counts. Those of channels and phases come with their times.
int stop(void* handle) {
  change(handle, [](std::atomic<uint64_t>* words, uint64_t) {
    if (words[kTag].load(std::memory_order_relaxed) == 0) words[kTag].store(now_ns(), std::memory_order_relaxed);
  });
  return 0;
}

template <uint32_t kAbi>
int state(void* handle, int state, StateArguments* arguments) {
  const bool is_gpu = state == kKernelChStop || (kAbi >= 7 && state == kKernelPhaseStop);
  const bool is_step = (state >= kSendGpuWait && state <= kRecvGpuWait) || state == kSendPeerWait;
  if (arguments == nullptr || (!is_gpu && !is_step)) return 0;
  const uint64_t value = arguments->value;
  change(handle, [is_gpu, value](std::atomic<uint64_t>* words, uint64_t type) {
    const uint64_t before = words[kCount].load(std::memory_order_relaxed);
    if (is_gpu && (type == kKernelCh || type == kKernelPhase) && before == 0) {
      words[kCount].store(value, std::memory_order_relaxed);
      words[kTag].store(now_ns(), std::memory_order_relaxed);
    } else if (!is_gpu && type == kProxyStep && value > before) {
      words[kCount].store(value, std::memory_order_relaxed);
    }
  });
  return 0;
}

int finalize(void* context) {
  Header* header = ring.load(std::memory_order_acquire);
  const auto idx = reinterpret_cast<uintptr_t>(context) - 1;
  if (header != nullptr && idx < kNumComms) at<Communicator>(header, kCommsOffset, idx)->ended_ns.store(now_ns());
  return 0;
}

int init_v4(void** context, int* mask, const char* name, uint64_t id, int num_nodes, int num_ranks, int rank, Logger) {
  return begin(4, context, id, mask, name, num_nodes, num_ranks, rank);
}

template <uint32_t kAbi>
int init(void** context, uint64_t id, int* mask, const char* name, int num_nodes, int num_ranks, int rank, Logger) {
  return begin(kAbi, context, id, mask, name, num_nodes, num_ranks, rank);
}

}  // namespace
}  // namespace kprof::nccl

// NCCL takes the latest of these that it knows.
namespace nccl = kprof::nccl;
extern "C" {
#define KPROF_EXPORT __attribute__((visibility("default")))
#define KPROF_CALLS(abi) nccl::start<abi>, nccl::stop, nccl::state<abi>, nccl::finalize
KPROF_EXPORT nccl::ProfilerV4 ncclProfiler_v4{"kprof", nccl::init_v4, KPROF_CALLS(4)};
KPROF_EXPORT nccl::Profiler ncclProfiler_v5{"kprof", nccl::init<5>, KPROF_CALLS(5)};
KPROF_EXPORT nccl::Profiler ncclProfiler_v6{"kprof", nccl::init<6>, KPROF_CALLS(6)};
KPROF_EXPORT nccl::Profiler ncclProfiler_v7{"kprof", nccl::init<7>, KPROF_CALLS(7)};
}
