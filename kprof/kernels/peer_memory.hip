// The C interface to memory that all GPUs of the host can write. symmetric.py builds the symmetric heap on it. GPUs
// only.
#include <kprof/platform.h>

using namespace kprof::platform;

extern "C" int kprof_peer_handle_bytes() { return kPeerHandleBytes; }
extern "C" int kprof_peer_allocate(void** memory, uint64_t bytes) { return peer_allocate(memory, bytes); }
extern "C" const char* kprof_peer_memory_kind() { return peer_memory_kind(); }
extern "C" int kprof_peer_free(void* memory) { return peer_free(memory); }
extern "C" int kprof_peer_export(void* handle, void* memory) { return peer_export(handle, memory); }
extern "C" int kprof_peer_import(void** memory, const void* handle) { return peer_import(memory, handle); }
extern "C" int kprof_peer_close(void* memory) { return peer_close(memory); }
extern "C" const char* kprof_error_text(int error) { return error_text(error); }
