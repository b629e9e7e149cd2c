"""A build is used again as long as everything that its compiler has read is as it was."""

from __future__ import annotations

import ctypes
import shutil
from pathlib import Path

import pytest

from kprof.devices.build import BuildOptions, build_library
from kprof.devices.cache import CACHE_VARIABLE
from kprof.devices.record import Target
from kprof.devices.targets import find_compiler
from kprof.errors import BuildError

pytestmark = pytest.mark.skipif(shutil.which("c++") is None, reason="needs a C++ compiler")

INCLUDED = ["own.h", "own.hpp", "own.cuh", "own.inc", "sub/own.h", "../common/x.h", "no suffix"]


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def number_of(source: Path, *include_dirs: Path) -> int:
    library = build_library(source, BuildOptions(include_dirs=include_dirs, sanitizers=()))
    return int(ctypes.CDLL(str(library)).number())


def source_with(folder: Path, include: str) -> Path:
    text = f'#include "{include}"\nextern "C" int number() {{ return NUMBER; }}\n'
    return write(folder / "kernel" / "kernel.hip", text)


@pytest.mark.parametrize("name", INCLUDED)
def test_a_changed_file_is_compiled_again(tmp_path: Path, name: str) -> None:
    """The library of before ran with all but `*.h` below the folder of the source."""
    source = source_with(tmp_path, name)
    header = write(source.parent / name, "#define NUMBER 1\n")
    assert number_of(source) == 1
    header.write_text("#define NUMBER 2\n")
    assert number_of(source) == 2


def test_a_header_that_comes_before_the_one_that_was_found_is_seen(tmp_path: Path) -> None:
    source = source_with(tmp_path, "late.h")
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    write(second / "late.h", "#define NUMBER 1\n")
    assert number_of(source, first, second) == 1
    write(first / "late.h", "#define NUMBER 2\n")
    assert number_of(source, first, second) == 2
    write(source.parent / "late.h", "#define NUMBER 3\n")
    assert number_of(source, first, second) == 3


def test_what_did_not_change_is_not_compiled_again(tmp_path: Path) -> None:
    source = source_with(tmp_path, "own.h")
    header = write(source.parent / "own.h", "#define NUMBER 1\n")
    first = build_library(source, BuildOptions(sanitizers=()))
    write(source.parent / "unrelated.h", "#define NUMBER 7\n")
    assert build_library(source, BuildOptions(sanitizers=())) == first
    header.write_text("#define NUMBER 2\n")
    assert build_library(source, BuildOptions(sanitizers=())) != first
    compiled_ns = first.stat().st_mtime_ns
    header.write_text("#define NUMBER 1\n")
    assert build_library(source, BuildOptions(sanitizers=())) == first
    assert first.stat().st_mtime_ns == compiled_ns


def test_a_link_to_nowhere_beside_the_source_hinders_nobody(tmp_path: Path) -> None:
    source = source_with(tmp_path, "own.h")
    write(source.parent / "own.h", "#define NUMBER 1\n")
    (source.parent / "dangling.h").symlink_to("nowhere.h")
    assert number_of(source) == 1


def test_a_source_that_is_not_there_is_refused_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match=r"cannot read .*gone\.hip; check the path"):
        build_library(tmp_path / "gone.hip", BuildOptions(sanitizers=()))


def test_a_source_that_does_not_compile_shows_its_error_and_not_warnings(tmp_path: Path) -> None:
    warnings = [f"#warning many words {i}" for i in range(20)]
    source = write(
        tmp_path / "wrong.hip", "\n".join([*warnings, "int number() { return missing; }"])
    )
    with pytest.raises(BuildError) as refused:
        build_library(source, BuildOptions(sanitizers=()))
    assert "missing" in str(refused.value)
    assert "many words" not in str(refused.value)


@pytest.mark.native
@pytest.mark.parametrize("target", [Target.CUDA, Target.HIP])
def test_gpu_compilers_list_what_they_read(tmp_path: Path, target: Target) -> None:
    if find_compiler(target) is None:
        pytest.skip(f"no compiler for {target.value}: see `kprof doctor`")
    kernel = '#include <kprof/kprof.h>\n#include "body.cuh"\n__global__ void kernel(int* out) { *out = NUMBER; }\n'
    source = write(tmp_path / "kernel.hip", kernel)
    body = write(tmp_path / "body.cuh", "#define NUMBER 1\n")
    options = BuildOptions(target, sanitizers=())
    first = build_library(source, options)
    assert build_library(source, options) == first
    body.write_text("#define NUMBER 2\n")
    assert build_library(source, options) != first
