// The call of a kernel that ranks run together: its arguments, its layouts, and its memory.
#pragma once

#include "memory_layout.h"
#include "signals.h"

namespace team_call {

using namespace kprof::platform;
using memory_layout::Offset;

// The host computes the layouts once, from `arguments.shape`.
template <typename Arguments, typename HeapLayout, typename WorkspaceLayout>
struct TeamCall : Arguments {
  using CallArguments = Arguments;
  using Heap = HeapLayout;
  using Workspace = WorkspaceLayout;

  HeapLayout heap;        // the symmetric heap, which peers write
  WorkspaceLayout local;  // the workspace, which only this rank touches

  explicit TeamCall(const Arguments& arguments) : Arguments(arguments), heap(arguments.shape), local(arguments.shape) {}

  template <typename T>
  KPROF_DEVICE T* at(uint32_t owner, Offset offset) const {
    return memory_layout::at<T>(this->heaps[owner], offset);
  }
  template <typename T>
  KPROF_DEVICE T* in_workspace(Offset offset) const {
    return memory_layout::at<T>(this->workspace, offset);
  }
  KPROF_DEVICE signals::WaitLimits limits() const {
    return {in_workspace<uint32_t>(local.has_failed), this->failure, this->timeout_ticks};
  }
};

}  // namespace team_call
