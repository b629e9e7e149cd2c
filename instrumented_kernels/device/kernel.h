// What every kernel begins with: kprof, its regions.h and arguments.h, and the names that all kernels use.
#pragma once

#include <kprof/kprof.h>

#define KPROF_REGIONS "regions.h"
#include <kprof/declare_regions.h>

#include "arguments.h"
#include "grid.h"
#include "variants.h"

namespace kernel {

using namespace grid;
using kprof::payload;
using kprof::profile_lap;
using kprof::profile_start;
using kprof::profile_stop;

}  // namespace kernel
