"""Makes the C++ header of the arena's layout, which kprof/abi.py declares:
`python tests/support/abi_header.py`."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np

from kprof import abi

HEADER: Final = Path(abi.__file__).parent / "include" / "kprof" / "abi.h"
_CPP_TYPES: Final = {
    np.dtype("u1"): "uint8_t",
    np.dtype("<u2"): "uint16_t",
    np.dtype("<u4"): "uint32_t",
    np.dtype("<u8"): "uint64_t",
    abi.CHUNK_HEADER: "ChunkHeader",
    abi.SWITCHES: "Switches",
    abi.DELAYS: "Delays",
    abi.ROOM: "Room",
    abi.CURSOR: "Cursor",
}


def cpp_name(python_name: str) -> str:
    """The name in C++ of a constant: kChunkBytes for CHUNK_BYTES."""
    return "k" + python_name.title().replace("_", "")


def _cpp_struct(name: str, dtype: np.dtype, alignment: int) -> str:
    """One C++ struct, and a static_assert for its size.

    The members fill the size, so that each of them lies where it should if the size is right.
    """
    lines = [f"struct alignas({alignment}) {name} {{"]
    for field in dtype.names or ():
        base, shape = dtype[field].base, dtype[field].shape
        lines.append(f"  {_CPP_TYPES[base]} {field}{''.join(f'[{length}]' for length in shape)};")
    lines += ["};", f'static_assert(sizeof({name}) == {dtype.itemsize}, "{name} size");', ""]
    return "\n".join(lines)


def cpp_header() -> str:
    """The text of `include/kprof/abi.h`."""
    constants = "\n".join(
        f"constexpr {'uint64_t' if value > 0xFFFF_FFFF else 'uint32_t'} {cpp_name(name)} = "
        f"{value:#x}{'ull' if value > 0xFFFF_FFFF else 'u'};"
        for name, value in vars(abi).items()
        if name.isupper() and isinstance(value, int)
    )
    structs = "\n".join(
        [
            _cpp_struct("Record", abi.RECORD, 16),
            _cpp_struct("ChunkHeader", abi.CHUNK_HEADER, 16),
            _cpp_struct("SinkChunk", abi.SINK, 16),
            _cpp_struct("Cursor", abi.CURSOR, 64),
            _cpp_struct("Switches", abi.SWITCHES, 16),
            _cpp_struct("Delays", abi.DELAYS, 16),
            _cpp_struct("Room", abi.ROOM, 8),
            _cpp_struct("StateLine", abi.STATE_LINE, 16),
            _cpp_struct("WaitLine", abi.WAIT_LINE, 64),
            _cpp_struct("ControlBlock", abi.CONTROL, 64),
            _cpp_struct("LaunchBuffer", abi.LAUNCH_BUFFER, 8),
        ]
    )
    return (
        "// Generated from kprof/abi.py by `python tests/support/abi_header.py`. Do not edit.\n"
        "#pragma once\n\n#include <stddef.h>\n#include <stdint.h>\n\n"
        f"namespace kprof {{\n\n{constants}\n\n{structs}\n}}  // namespace kprof\n"
    )


if __name__ == "__main__":
    HEADER.write_text(cpp_header())
