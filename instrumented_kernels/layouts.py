"""Memory layouts that Python and the kernels share. Declared in Python; the C++ headers are
generated and committed.

A kernel declares its Shape and CallArguments in `arguments.py`, with CONSTANTS and ENUMS if its C++
has any, and includes the generated `arguments.h`. After a change run

    python -m instrumented_kernels.layouts
"""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Any, ClassVar, Final

from kprof.abi import cpp_name

MAX_RANKS: Final = 64
_FOLDER: Final = Path(__file__).parent


@dataclass(frozen=True)
class Field:
    """One member of a layout: its type in Python and C++, and its purpose."""

    name: str
    ctype: Any
    cpp_type: str
    comment: str = ""
    length: int = 0

    @property
    def declaration(self) -> str:
        """The line of the C++ struct."""
        array = f"[{self.length}]" if self.length else ""
        comment = f"  // {self.comment}" if self.comment else ""
        return f"  {self.cpp_type} {self.name}{array};{comment}"


class Layout(ctypes.Structure):
    """The base of classes that `layout` makes."""

    cpp_fields: ClassVar[tuple[Field, ...]] = ()


def _numbers(ctype: Any, cpp_type: str) -> Callable[..., Field]:
    """A function that makes a number with this name and comment."""
    return lambda name, comment="": Field(name, ctype, cpp_type, comment)


u32: Final = _numbers(ctypes.c_uint32, "uint32_t")
f32: Final = _numbers(ctypes.c_float, "float")
u64: Final = _numbers(ctypes.c_uint64, "uint64_t")


def pointer(name: str, cpp_type: str, comment: str = "", length: int = 0) -> Field:
    """An address, or `length` of them. `cpp_type` is the type that it points to."""
    ctype = ctypes.c_void_p * length if length else ctypes.c_void_p
    return Field(name, ctype, f"{cpp_type}*", comment, length)


def nested(name: str, inner: type[Layout]) -> Field:
    """A layout as a member of another."""
    return Field(name, inner, inner.__name__)


def layout(name: str, comment: str, *fields: Field) -> type[Layout]:
    """A ctypes structure that can also generate its C++ text."""
    members = {"_fields_": [(each.name, each.ctype) for each in fields], "cpp_fields": fields}
    return type(name, (Layout,), {"__doc__": comment, **members})


@dataclass(frozen=True)
class Header:
    """One generated header: constants, enums and layouts in a namespace.

    `source` is the Python module's name.
    """

    path: Path
    namespace: str
    source: str
    layouts: tuple[type[Layout], ...]
    constants: Mapping[str, int] = field(default_factory=dict)
    enums: tuple[type[IntEnum], ...] = ()
    includes: tuple[str, ...] = ()

    def text(self) -> str:
        """The header."""
        includes = "\n".join(f'#include "{name}"' for name in self.includes)
        body = "\n".join([*self._constants(), "", *map(_struct, self.layouts)])
        return (
            f"// Generated from {self.source} by `python -m instrumented_kernels.layouts`. Do not "
            "edit.\n"
            "#pragma once\n\n#include <stdint.h>\n"
            f"{includes}{chr(10) if includes else ''}\n"
            f"namespace {self.namespace} {{\n\n{body.lstrip()}\n}}  // namespace {self.namespace}\n"
        )

    def write(self) -> None:
        """Write the header file, which is committed."""
        self.path.write_text(self.text())

    def _constants(self) -> Iterator[str]:
        for name, value in self.constants.items():
            yield f"constexpr uint32_t {name} = {value};"
        for enum in self.enums:
            members = ", ".join(f"{cpp_name(each.name)} = {each.value}" for each in enum)
            yield f"enum {enum.__name__} : uint32_t {{ {members} }};"


def _struct(declared: type[Layout]) -> str:
    """The struct, and a static_assert for its size. A test compares the offsets of all members."""
    name = declared.__name__
    lines = [f"// {' '.join((declared.__doc__ or '').split())}", f"struct {name} {{"]
    lines += [each.declaration for each in declared.cpp_fields]
    size_bytes = ctypes.sizeof(declared)
    lines += ["};", f'static_assert(sizeof({name}) == {size_bytes}, "{name} size");', ""]
    return "\n".join(lines)


Failure = layout(
    "Failure",
    "What went wrong on this rank. In memory of the host, which looks at it without waiting for "
    "the device.",
    u64(
        "refused", "input that the kernel refuses, in its own code; 0: none. The plan stays usable"
    ),
    u64("region_and_peer", "of the wait that took too long: region + 1 in the high half; 0: none"),
    u64("epoch_and_slot", "epoch in the high half"),
    u64("waited_ms", "plus 1"),
)


KernelLaunch = layout(
    "KernelLaunch",
    "One launch of one phase, kept ready by kernel_library.py.",
    pointer("call", "const void", "CallArguments of the kernel"),
    Field("buffer", ctypes.c_char_p, "const kprof::LaunchBuffer*"),
    pointer("stream", "void"),
    u64("schedule_seed", "CPU target: the order in which threads run"),
    u32("variant"),
    u32("phase"),
    u32("num_blocks"),
    u32("threads_per_block"),
)


def call_arguments(comment: str, shape: type[Layout], *fields: Field) -> type[Layout]:
    """The CallArguments of a kernel: its own fields, and those of all kernels with ranks."""
    heaps = pointer("heaps", "char", "every rank's heap, as this rank sees it", MAX_RANKS)
    return local_call_arguments(comment, shape, u32("rank"), *fields, heaps=(heaps,))


def local_call_arguments(
    comment: str, shape: type[Layout], *fields: Field, heaps: tuple[Field, ...] = ()
) -> type[Layout]:
    """The CallArguments of a kernel that runs on one GPU alone."""
    return layout(
        "CallArguments",
        comment,
        nested("shape", shape),
        *fields,
        u64("timeout_ticks"),
        pointer("failure", "shared_layouts::Failure", "in memory of the host"),
        pointer("workspace", "char", "of this rank"),
        *heaps,
    )


HEADER: Final = Header(
    _FOLDER / "device" / "shared_layouts.h",
    "shared_layouts",
    "instrumented_kernels/layouts.py",
    (Failure, KernelLaunch),
    constants={"kMaxRanks": MAX_RANKS},
    includes=("kprof/abi.h",),
)


def all_headers() -> list[Header]:
    """The headers of all kernels, and the one that they share."""
    return [HEADER, *map(_header_of, sorted(_FOLDER.glob("*/arguments.py")))]


def _header_of(path: Path) -> Header:
    """The header of a kernel: its Shape and CallArguments, and its CONSTANTS and ENUMS if any."""
    name = path.parent.name
    module: Any = importlib.import_module(f"instrumented_kernels.{name}.arguments")
    return Header(
        path.with_suffix(".h"),
        name,
        f"instrumented_kernels/{name}/arguments.py",
        (module.Shape, module.CallArguments),
        getattr(module, "CONSTANTS", {}),
        getattr(module, "ENUMS", ()),
        includes=("shared_layouts.h",),
    )


if __name__ == "__main__":
    for header in all_headers():
        header.write()
