// The call of a kernel that runs on one GPU: its arguments, and its layout of the workspace.
#pragma once

#include "memory_layout.h"
#include "signals.h"

namespace local_call {

using namespace kprof::platform;
using memory_layout::Offset;

// No other rank writes anything.
template <typename Shape>
struct NoHeap {
  Offset end;

  explicit NoHeap(const Shape&) {}
};

// For kernels without a workspace.
template <typename Shape>
using NoWorkspace = NoHeap<Shape>;

// The host computes the layout once, from `arguments.shape`.
template <typename Arguments, typename WorkspaceLayout>
struct LocalCall : Arguments {
  using CallArguments = Arguments;
  using Heap = NoHeap<decltype(Arguments::shape)>;
  using Workspace = WorkspaceLayout;

  WorkspaceLayout local;

  explicit LocalCall(const Arguments& arguments) : Arguments(arguments), local(arguments.shape) {}

  template <typename T>
  KPROF_DEVICE T* in_workspace(Offset offset) const {
    return memory_layout::at<T>(this->workspace, offset);
  }
  // Of kernels whose blocks wait for each other.
  KPROF_DEVICE signals::WaitLimits limits() const {
    return {in_workspace<uint32_t>(local.has_failed), this->failure, this->timeout_ticks};
  }
};

}  // namespace local_call
