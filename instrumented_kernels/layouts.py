"""Memory layouts that Python and the kernels share: declared in C++, which Python reads.

A kernel declares its Shape, its CallArguments and its constants in `arguments.h`. This module reads
what such headers need: structs of numbers, pointers and other structs, a member per line, and
constants. A test asks a compiler whether it puts every member in the same place.
"""

from __future__ import annotations

import ctypes
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

_TYPES: Final[dict[str, Any]] = {
    "uint32_t": ctypes.c_uint32,
    "uint64_t": ctypes.c_uint64,
    "float": ctypes.c_float,
    # Assigned as bytes, which ctypes then keeps.
    "const kprof::LaunchBuffer*": ctypes.c_char_p,
}
_STRUCT: Final = re.compile(r"^struct (\w+) \{\n(.*?)^\};", re.MULTILINE | re.DOTALL)
_MEMBER: Final = re.compile(r"^  ([\w: ]+\*?) (\w+)(?:\[(?:\w+::)*(\w+)\])?;", re.MULTILINE)
_CONSTANT: Final = re.compile(r"\b(k[A-Z]\w*) = (\d+)\b")


class Layout(ctypes.Structure):
    """The base of all structs of headers."""


@dataclass(frozen=True)
class Header:
    """The structs and the constants of a header, by their names in C++."""

    structs: dict[str, type[Layout]]
    constants: dict[str, int]


def read_header(path: Path, known: dict[str, int] | None = None) -> Header:
    """What a header declares; arrays are as long as its constants, or those in `known`, say."""
    text = path.read_text()
    constants = {name: int(number) for name, number in _CONSTANT.findall(text)}
    lengths = {**(known or {}), **constants}
    structs: dict[str, type[Layout]] = {}
    for name, body in _STRUCT.findall(text):
        fields = []
        for cpp_type, field, length in _MEMBER.findall(body):
            plain = ctypes.c_void_p if cpp_type.endswith("*") else structs.get(cpp_type)
            ctype: Any = _TYPES.get(cpp_type, plain)
            fields.append((field, ctype * lengths[length] if length else ctype))
        structs[name] = type(name, (Layout,), {"_fields_": fields})
    return Header(structs, constants)


SHARED: Final = read_header(Path(__file__).parent / "device" / "shared_layouts.h")
MAX_RANKS: Final = SHARED.constants["kMaxRanks"]
Failure: Final = SHARED.structs["Failure"]
KernelLaunch: Final = SHARED.structs["KernelLaunch"]
