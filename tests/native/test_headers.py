"""kprof's headers in a source that has its own meaning for every word that is not `kprof::` or `KPROF_`, and in the README's
kernel."""

from __future__ import annotations

import re

import pytest

import kprof
from kept_sources import kept_source
from kprof.devices.build import BuildOptions, build_library
from kprof.devices.targets import Target, find_compiler
from kprof.regions import RegionTable
from readme_sources import README, readme_source

HOSTILE = """
// Names that a user's project may well have, as macros, types and functions.
#define REGION 1
#define MARK mark_of_ours
#define VALUE(x) ((x) + 1)
#define FLOW "flow"
enum Region { R_NONE = 7, OTHER };
struct Kind {};
struct Finding {};

#include <kprof/kprof.h>
#include <kprof/short_track.h>
#define KPROF_REGIONS "regions.h"
#include <kprof/declare_regions.h>

// The same words as kprof's functions: without prefix they are the user's.
struct Track { int open_track, profile_start, profile_lap; };
__device__ inline int profile_stop(int x) { return x; }
inline int profile_mark(int x) { return x; }
inline int profile_value(int x) { return x; }
inline int profile_now(int x) { return x; }
inline int open_short_track(int x) { return x; }

static_assert(REGION == 1 && VALUE(1) == 2 && R_NONE == 7 && OTHER == 8, "the user's own words");
static_assert(sizeof(FLOW) == 5 && sizeof(enum Region) >= 1, "the user's own words");
static_assert(R_STEP == 1 && R_LEFT == 2, "ids are numbered from 1");

__global__ void kernel(float* data, kprof::Buffer prof) {
  kprof::Track track = kprof::open_track(prof, kprof::per_warp);
  kprof::Span span = kprof::profile_start(track);
  data[kprof::platform::thread_id()] += profile_stop(1);
  span = kprof::profile_lap(track, span, R_STEP, kprof::payload<R_STEP>(1, [] { return 2; }));
  kprof::profile_value(track, R_LEFT, 3);
  kprof::profile_mark(track, R_HERE);
  kprof::Scope scope(track, R_STEP);
  kprof::profile_stop(track, span, R_STEP);
}
extern "C" int mark_of_ours(float* data, void* arena) {
  return KPROF_LAUNCH(kernel, 1, 64, nullptr, 0, data, kprof::make_buffer(arena, 0)) + profile_mark(0) +
         profile_value(0) + profile_now(0) + open_short_track(0) + Track{}.open_track;
}
"""


REGIONS = """
REGION(R_STEP, "step", compute, peer:8, slot:24)
VALUE(R_LEFT, "left")
MARK(R_HERE, "here")
FLOW(R_STEP, R_STEP)
"""


@pytest.mark.parametrize("enabled", ["0", "1"])
@pytest.mark.parametrize("target", list(Target))
def test_headers_leave_every_other_name_to_the_user(target: Target, enabled: str) -> None:
    if find_compiler(target) is None:
        pytest.skip(f"no compiler for {target.value}: see `kprof doctor`")
    options = BuildOptions(target, defines=(("KPROF_ENABLED", enabled),), sanitizers=())
    assert build_library(kept_source(HOSTILE, REGIONS), options).exists()


# The words of CUDA and HIP that the CPU target has to give a meaning.
LANGUAGE = {"__global__", "__device__"}


def test_headers_define_only_macros_with_a_prefix() -> None:
    headers = [*kprof.include_dir().rglob("*.h")]
    kept = {
        name
        for header in headers
        # region_lines.h lends the user's words for the length of one include.
        if header.name != "region_lines.h"
        for name in re.findall(r"^\s*#\s*define\s+(\w+)", header.read_text(), flags=re.MULTILINE)
    }
    assert {name for name in kept if not name.startswith("KPROF_")} == LANGUAGE


# What a screen shows beside the picture.
MOST_LINES = 64


def test_it_is_one_screen_with_a_picture() -> None:
    assert len(README.splitlines()) <= MOST_LINES
    assert README.count("![") == 1


def test_regions_of_the_readme_parse() -> None:
    assert RegionTable.from_header(readme_source().with_name("regions.h")).names == ["wait", "copy"]


@pytest.mark.native
@pytest.mark.parametrize("target", [Target.CUDA, Target.HIP])
def test_kernel_of_the_readme_compiles(target: Target) -> None:
    if find_compiler(target) is None:
        pytest.skip(f"no compiler for {target.value}: see `kprof doctor`")
    assert build_library(readme_source(), BuildOptions(target, sanitizers=())).exists()
