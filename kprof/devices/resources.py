"""Registers, spills and shared memory of kernels, as their compilers say them.

What is said of a build is kept beside it (kprof.devices.dependencies), and known in a process that
loads it; Triton says it itself (kprof.triton.compiled). A launch has the name of its kernel's
function at its end: `all_to_all/dispatch_recv`.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

# With these flags, compilers print lines for each kernel.
PTXAS_FLAGS: Final = ("-Xptxas", "-v")
CLANG_FLAGS: Final = ("-Rpass-analysis=kernel-resource-usage",)
_KERNEL: Final = re.compile(r"(?:Compiling entry function '|Function Name: )(\w+)")
_BY_PTXAS: Final = re.compile(
    r"(?P<spills>\d+) bytes spill stores.*?Used (?P<registers>\d+) registers"
    r"(?:[^\n]*?, (?P<shared>\d+) bytes smem)?",
    re.DOTALL,
)
_BY_CLANG: Final = re.compile(r"remark: +([A-Za-z ]+?)(?: \[[^\]]*\])?: (\d+)")
WORD_BYTES: Final = 4


class Resources(NamedTuple):
    """What a kernel takes: registers of a thread, bytes of those that did not fit, bytes of shared
    memory of a block without what its launch adds. `threads` of a block; 0 where unknown."""

    registers: int
    spill_bytes: int
    shared_bytes: int
    threads: int = 0


_known: dict[str, set[Resources]] = {}


def said_of_kernels(text: str) -> dict[str, Resources]:
    """What ptxas or clang has printed, by the symbols of kernels."""
    parts = _KERNEL.split(text)[1:]
    said = ((symbol, _said(part)) for symbol, part in zip(parts[::2], parts[1::2], strict=True))
    return {symbol: resources for symbol, resources in said if resources}


def _said(text: str) -> Resources | None:
    if found := _BY_PTXAS.search(text):
        return Resources(int(found["registers"]), int(found["spills"]), int(found["shared"] or 0))
    fields = {name: int(number) for name, number in _BY_CLANG.findall(text)}
    try:
        # One file of registers: the accumulation registers begin behind a multiple of four.
        registers = -(-fields["VGPRs"] // 4) * 4 + fields["AGPRs"]
        registers = registers if fields["AGPRs"] else fields["VGPRs"]
        return Resources(registers, WORD_BYTES * fields["VGPRs Spill"], fields["LDS Size"])
    except KeyError:
        return None


def note(kernel: str, resources: Resources) -> None:
    """Remember what a kernel of this process takes, by its symbol, its name or that of a launch."""
    _known.setdefault(_base_name(kernel), set()).add(resources)


def of_launches(name: str) -> list[Resources]:
    """What the kernel of launches with this name takes: several where versions of it differ, such
    as those of a template, because nobody knows which one ran."""
    return sorted(_known.get(_base_name(name), ()))


def _base_name(name: str) -> str:
    """`recv` of `_ZN12_GLOBAL__N_14recvILi2EEEv4Args`, and of `exchange/recv`."""
    if not name.startswith("_Z"):
        return name.rpartition("/")[2]
    is_nested = name.startswith("_ZN")
    found, rest = "", name[3 if is_nested else 2 :]
    while length := re.match(r"L?(\d+)", rest):
        end = length.end() + int(length[1])
        found, rest = rest[length.end() : end], rest[end:]
        # What follows the name of a function that is nowhere inside are its arguments.
        if not is_nested:
            break
    return found
