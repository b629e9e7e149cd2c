"""The README's "instrument your own kernel" compiles as it is printed, for every target that has a compiler here."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from kprof.devices.build import BuildOptions, build_device_code, build_library
from kprof.devices.targets import Target, find_compiler
from kprof.regions import RegionTable

README = (Path(__file__).parents[2] / "README.md").read_text()

# What a user's kernel has and the README leaves out.
AROUND = """
struct Args { const uint32_t* flag; float* data; uint32_t peer, slot, num_bytes; };
__device__ bool arrived(const Args& args) { return kprof::platform::load_system(args.flag) != 0; }
__device__ void copy(const Args& args) { args.data[kprof::platform::thread_id()] = 1.0f; }
"""


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def write_sources(folder: Path) -> Path:
    regions, kernel = blocks("cpp")
    (folder / "regions.h").write_text(regions)
    source = folder / "kernel.hip"
    head, body = kernel.split("\n\n", 1)
    source.write_text(f"{head}\n{AROUND}\n{body}")
    return source


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


def test_python_of_the_readme_parses_and_names_what_exists() -> None:
    import kprof
    from kprof.recording.recorder import Recorder

    attributes = {
        node.attr
        for code in blocks("python")
        for node in ast.walk(ast.parse(code))
        if isinstance(node, ast.Attribute)
    }
    of_kprof, of_recorder = {"include_dir", "recorder"}, {"align", "launch", "torch_trace"}
    assert of_kprof | of_recorder <= attributes
    assert all(hasattr(kprof, name) for name in of_kprof)
    assert all(hasattr(Recorder, name) for name in of_recorder)


def test_commands_of_the_readme_exist() -> None:
    from kprof_cli.main import app

    named = set(re.findall(r"^\| `kprof (\w+)", README, flags=re.MULTILINE))
    known = {command.name or command.callback.__name__ for command in app.registered_commands}
    assert named == known
