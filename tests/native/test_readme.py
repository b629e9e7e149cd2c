"""The README: one screen, whose kernel compiles as it is printed, for every target that has a compiler here."""

from __future__ import annotations

from pathlib import Path

import pytest

from kprof.devices.build import BuildOptions, build_library
from kprof.devices.targets import Target, find_compiler
from kprof.regions import RegionTable
from readme_sources import README, write_sources

# What a screen shows beside the picture.
MOST_LINES = 64


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
    assert build_library(source, BuildOptions(target, sanitizers=())).exists()
