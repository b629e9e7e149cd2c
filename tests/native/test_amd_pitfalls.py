"""What compiles, is right on every other target, and wrong in gfx9 machine code: looked for in all kernels."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from device_code import build_device_code

from kprof.devices.build import BuildOptions
from kprof.devices.targets import Target
from machine_code import HIP_ARCHS, disassemble, linked_device_code, require, require_arch

ROOT = Path(__file__).parents[2]
FOLDERS = ("instrumented_kernels", "kprof/kernels", "benchmarks")
# benchmarks/hosts sends through sockets: it is for the CPU target alone.
KERNELS = sorted(
    path
    for folder in FOLDERS
    for path in (ROOT / folder).rglob("*.hip")
    if path.parent.name != "hosts"
)
# The CPU target's own headers: memcpy is the C library's there.
FOR_THE_CPU = {"cpu.h", "compute_cpu.h", "fibers.h", "kernel_calls.h", "launch.h"}
HEADERS = sorted(
    path
    for folder in (*FOLDERS, "kprof/include")
    for path in (ROOT / folder).rglob("*.h")
    if path.name not in FOR_THE_CPU
)
PACKED_SHIFT = re.compile(r"v_pk_(?:lshl|lshr|ash)rev_[biu]16(?:_e64)? v\d+, ([^,]+),")


@pytest.mark.parametrize("source", [*KERNELS, *HEADERS], ids=lambda path: path.name)
def test_device_code_does_not_call_memcpy(source: Path) -> None:
    """HIP's memcpy for device code copies byte by byte: see copy_bits() in platform.h."""
    code = re.sub(r"//.*", "", source.read_text())
    assert not re.search(r"(?<!__builtin_)\bmem(cpy|set|move)\(", code)


def wrong_shifts(body: list[str]) -> list[str]:
    """Packed 16-bit shifts by anything but one constant below 16."""
    shifts = [(line, found[1]) for line in body if (found := PACKED_SHIFT.match(line))]
    return [line for line, by in shifts if not by.isdigit() or int(by) > 15]


@pytest.mark.sampled(4)
@pytest.mark.native
@pytest.mark.parametrize("arch", HIP_ARCHS)
@pytest.mark.parametrize("source", KERNELS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_no_kernel_shifts_a_pair_of_halves_by_two_different_amounts(
    source: Path, arch: str
) -> None:
    """The all-reduce in bf16 was wrong with three ranks and more: 0x800ff shifted one half by 8, the other by 15."""
    require(Target.HIP)
    require_arch(arch)
    include_dirs = (ROOT / "instrumented_kernels" / "device",)
    # These are linked for the same architectures by other tests.
    is_linked = source.is_relative_to(ROOT / "instrumented_kernels")
    build = linked_device_code if is_linked else build_device_code
    code = build(source, BuildOptions(Target.HIP, arch, include_dirs=include_dirs, sanitizers=()))
    wrong = {name: wrong_shifts(body) for name, body in disassemble(code, Target.HIP).items()}
    assert {name: lines for name, lines in wrong.items() if lines} == {}


def test_the_wrong_shift_is_recognised() -> None:
    lines = [
        "v_pk_lshrrev_b16 v3, 8, v4 op_sel_hi:[0,1]",
        "v_pk_lshrrev_b16 v3, s82, v4",
        "v_pk_lshrrev_b16 v3, 0x800ff, v4",
        "v_pk_lshlrev_b16 v3, v1, v4",
    ]
    assert wrong_shifts(lines) == lines[1:]
