"""The kernel of the README, with what a user's own kernel has around it."""

from __future__ import annotations

import re
from pathlib import Path

from kept_sources import kept_source

README = (Path(__file__).parents[2] / "README.md").read_text()

# What a user's kernel has and the README leaves out.
AROUND = """
#include <kprof/kprof.h>
#define KPROF_REGIONS "regions.h"
#include <kprof/declare_regions.h>

struct Args { const uint32_t* flag; float* data; uint32_t peer, slot, num_bytes; };
__device__ bool arrived(const Args& args) { return kprof::platform::load_system(args.flag) != 0; }
__device__ void copy(const Args& args) { args.data[kprof::platform::thread_id()] = 1.0f; }
"""


def readme_source() -> Path:
    """The path of its kernel.hip, beside its regions.h."""
    regions, kernel = re.findall(r"```cpp\n(.*?)```", README, flags=re.DOTALL)
    return kept_source(f"{AROUND}\n{kernel}", regions)
