"""What the compilers make of announced regions: one store where a span begins, and nothing elsewhere."""

from __future__ import annotations

import re

import pytest
from device_code import build_device_code

from kept_sources import kept_source
from kprof.devices.build import BuildOptions
from kprof.devices.targets import Target
from machine_code import disassemble, require, require_arch

pytestmark = pytest.mark.native

# The same spans, of a region that is announced or is not.
REGIONS = 'REGION(R_GEMM, "gemm", compute, WORDstep:8)\n'
KERNEL = """
#include <kprof/kprof.h>
#define KPROF_REGIONS "regions.h"
#include <kprof/declare_regions.h>

__global__ void loop(uint32_t* out, uint32_t count, kprof::Buffer prof) {
  kprof::Track track = kprof::open_track(prof, kprof::per_warp);
  KPROF_UNROLL(1)
  for (uint32_t step = 0; step < count; ++step) {
    const kprof::Span span = START;
    out[step * kprof::platform::num_threads() + kprof::platform::thread_id()] = step;
    kprof::profile_stop(track, span, R_GEMM, kprof::payload<R_GEMM>(step));
  }
}
"""
PLAIN = "kprof::profile_start(track)"
WITH_REGION = "kprof::profile_start(track, R_GEMM, kprof::payload<R_GEMM>(step))"


def code_of(target: Target, word: str, start: str) -> list[str]:
    """The instructions of the kernel."""
    require(target)
    regions = REGIONS.replace("WORD", word and f"{word}, ")
    source = kept_source(KERNEL.replace("START", start), regions)
    options = BuildOptions(target, "gfx942" if target is Target.HIP else "", sanitizers=())
    found = disassemble(build_device_code(source, options), target)
    return [
        line for name, body in found.items() if "loop" in name and "$" not in name for line in body
    ]


@pytest.mark.parametrize("target", [Target.HIP, Target.CUDA])
def test_a_region_that_is_not_announced_costs_nothing(target: Target) -> None:
    if target is Target.HIP:
        require_arch("gfx942")
    plain = code_of(target, "", PLAIN)
    assert plain
    assert code_of(target, "", WITH_REGION) == plain


def test_amd_announces_past_all_caches_and_takes_it_back() -> None:
    require_arch("gfx942")
    store = re.compile(r"(?:flat|global)_store_dwordx2 .* sc0 sc1")
    plain = code_of(Target.HIP, "", PLAIN)
    announced = code_of(Target.HIP, "announced", WITH_REGION)
    # Headers, of 48 bytes: for a reserved chunk, a claimed one, and the next one of the track.
    num_in_headers = 3 * 6
    assert sum(bool(store.match(line)) for line in plain) == num_in_headers
    # The line is 16 bytes, and its end 8.
    assert sum(bool(store.match(line)) for line in announced) == num_in_headers + 3


def test_nvidia_announces_with_one_store() -> None:
    store = re.compile(r"(?:@!?U?P\d )?STG\.E\.128 ")
    plain = code_of(Target.CUDA, "", PLAIN)
    announced = code_of(Target.CUDA, "announced", WITH_REGION)
    counts = [sum(bool(store.match(line)) for line in body) for body in (plain, announced)]
    assert counts[1] == counts[0] + 1
