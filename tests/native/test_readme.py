"""The README: one screen, whose kernel compiles as it is printed, for every target that has a compiler here."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from device_code import build_device_code

from kprof.devices.build import BuildOptions, build_library
from kprof.devices.targets import Target, find_compiler
from kprof.regions import RegionTable

README = (Path(__file__).parents[2] / "README.md").read_text()
# What a screen shows beside the picture.
MOST_LINES = 64

# What a user's kernel has and the README leaves out.
AROUND = """
#include <kprof/kprof.h>
#define KPROF_REGIONS "regions.h"
#include <kprof/declare_regions.h>

struct Args { const uint32_t* flag; float* data; uint32_t peer, slot, num_bytes; };
__device__ bool arrived(const Args& args) { return kprof::platform::load_system(args.flag) != 0; }
__device__ void copy(const Args& args) { args.data[kprof::platform::thread_id()] = 1.0f; }
"""


def write_sources(folder: Path) -> Path:
    regions, kernel = re.findall(r"```cpp\n(.*?)```", README, flags=re.DOTALL)
    (folder / "regions.h").write_text(regions)
    source = folder / "kernel.hip"
    source.write_text(f"{AROUND}\n{kernel}")
    return source


def test_it_is_one_screen_with_a_picture() -> None:
    assert len(README.splitlines()) <= MOST_LINES
    assert README.count("![") == 1


def test_regions_of_the_readme_parse(tmp_path: Path) -> None:
    write_sources(tmp_path)
    assert RegionTable.from_header(tmp_path / "regions.h").names == ["wait", "copy"]


@pytest.mark.native
@pytest.mark.parametrize("target", [Target.CUDA, Target.HIP])
def test_kernel_of_the_readme_compiles(target: Target, tmp_path: Path) -> None:
    if find_compiler(target) is None:
        pytest.skip(f"no compiler for {target.value}: see `kprof doctor`")
    source = write_sources(tmp_path)
    assert build_device_code(source, BuildOptions(target, sanitizers=())).exists()
    assert build_library(source, BuildOptions(target, sanitizers=())).exists()
