"""The README: one screen, whose kernel compiles as it is printed, for every target that has a compiler here."""

from __future__ import annotations

import pytest

from kprof.devices.build import BuildOptions, build_library
from kprof.devices.targets import Target, find_compiler
from kprof.regions import RegionTable
from readme_sources import README, readme_source

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
