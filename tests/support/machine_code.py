"""What compilers make of device code: built for a target, and read."""

from __future__ import annotations

import re
import shutil
import struct
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from device_code import build_device_code

from kept_sources import kept_source
from kprof.devices.build import BuildOptions, build_library
from kprof.devices.targets import Target, find_compiler

BUNDLE = b"__CLANG_OFFLOAD_BUNDLE__"
PINGPONG = Path(__file__).parents[2] / "kprof" / "kernels" / "clock_pingpong.hip"
# The first one is compiled for by default.
HIP_ARCHS = ["gfx942", "gfx90a", "gfx950"]


def require(target: Target) -> None:
    if find_compiler(target) is None:
        pytest.skip(f"no compiler for {target.value}: see `kprof doctor`")


def require_arch(arch: str) -> None:
    compiler = find_compiler(Target.HIP)
    assert compiler is not None
    command = [
        compiler.path,
        "--target=amdgcn-amd-amdhsa",
        f"-mcpu={arch}",
        "-nogpulib",
        "-x",
        "c",
        "-c",
        "-o",
    ]
    answer = subprocess.run(
        [*command, "/dev/null", "/dev/null"], capture_output=True, text=True, check=False
    )
    if answer.returncode != 0:
        pytest.skip(f"{compiler.version} does not know {arch}")


def tool(*names: str) -> str:
    candidates = [shutil.which(name) for name in names]
    candidates += [
        str(path)
        for name in names
        for path in Path(sys.prefix).glob(f"lib/python*/site-packages/nvidia/*/bin/{name}")
    ]
    found = next(filter(None, candidates), None)
    if found is None:
        pytest.skip(f"none of {', '.join(names)} is installed")
    return found


def linked_device_code(source: Path, options: BuildOptions) -> Path:
    """What `build_device_code` makes, taken out of the library: of kernels that tests link and load, too. Compiling their
    device side alone takes as long again, up to 20 s."""
    library = build_library(source, replace(options, arch=options.archs[0]))
    place = library.with_suffix(".device")
    if not place.exists():
        with tempfile.TemporaryDirectory(dir=library.parent) as folder:
            code = Path(folder) / "code"
            if options.target is Target.HIP:
                code.write_bytes(bundled(library.read_bytes()))
            else:
                command = [tool("cuobjdump"), "-xelf", "all", str(library)]
                subprocess.run(command, cwd=folder, capture_output=True, check=True)
                # The linker's own one is empty.
                code = max(Path(folder).glob("*.cubin"), key=lambda file: file.stat().st_size)
            code.replace(place)
    return place


def bundled(library: bytes) -> bytes:
    """The code object of a HIP library for one architecture: see the documentation of clang-offload-bundler."""
    begin = library.index(BUNDLE)
    at = begin + len(BUNDLE) + 8
    found = []
    for _ in range(*struct.unpack_from("<Q", library, at - 8)):
        offset, size, length = struct.unpack_from("<3Q", library, at)
        if library[at + 24 :].startswith(b"hip"):
            found.append(library[begin + offset : begin + offset + size])
        at += 24 + length
    (code,) = found
    return code


def disassemble(code: Path, target: Target) -> dict[str, list[str]]:
    """Instructions by function, without addresses and encodings."""
    if target is Target.HIP:
        command = [
            tool("llvm-objdump-19", "llvm-objdump"),
            "-d",
            "--no-show-raw-insn",
            "--no-leading-addr",
            str(code),
        ]
        start, instruction = re.compile(r"^<(\S+)>:$"), re.compile(r"^\s+(\S.*?)\s*(?://.*)?$")
    else:
        command = [tool("nvdisasm"), "-c", str(code)]
        start, instruction = (
            re.compile(r"^(?:\.text\.|\s*\$)(\S+):$"),
            re.compile(r"^\s+/\*[0-9a-f]{4,}\*/\s+(.*?)\s*;"),
        )
    functions: dict[str, list[str]] = {}
    current: list[str] = []
    for line in subprocess.run(
        command, capture_output=True, text=True, check=True
    ).stdout.splitlines():
        if found := start.match(line):
            current = functions.setdefault(found.group(1), [])
        elif found := instruction.match(line):
            current.append(re.sub(r"<\S+>|`\(\S+\)", "", found.group(1)).strip())
    return functions


PROBE = """
#include <kprof/kprof.h>
#define KPROF_REGIONS "regions.h"
#include <kprof/declare_regions.h>
__global__ void probe(float* data, unsigned n, kprof::Buffer prof) {
  kprof::Track track = kprof::open_track(prof, kprof::per_warp);
#pragma unroll 1
  for (unsigned i = 0; i < n; ++i) {
#if SITES > 0
    const kprof::Span span = kprof::profile_start(track);
#endif
    data[kprof::platform::thread_id()] += 1.0f;
#if SITES > 0
    kprof::profile_stop(track, span, R_STEP, i);
#endif
  }
}
extern "C" int launch(float* data, unsigned n, void* arena) {
  return KPROF_LAUNCH(probe, 1, 64, nullptr, 0, data, n, kprof::make_buffer(arena, 0));
}
"""


def probe(target: Target, num_sites: int, *defines: tuple[str, str], arch: str = "") -> Path:
    source = kept_source(PROBE, 'REGION(R_STEP, "step", compute)\n')
    options = BuildOptions(target, arch, (("SITES", str(num_sites)), *defines), sanitizers=())
    return build_device_code(source, options)


def only_kernel(functions: dict[str, list[str]]) -> list[str]:
    return next(body for name, body in functions.items() if "probe" in name)


def count(body: list[str], pattern: str) -> int:
    return sum(1 for line in body if re.search(pattern, line))
