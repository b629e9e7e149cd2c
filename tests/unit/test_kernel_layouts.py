"""Python reads the layouts of headers as compilers do."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import pytest

from instrumented_kernels import layouts

FOLDER = Path(layouts.__file__).parent
INCLUDE = FOLDER.parent / "kprof" / "include"
HEADERS = {
    path: layouts.read_header(path, layouts.SHARED.constants)
    for path in [FOLDER / "device" / "shared_layouts.h", *sorted(FOLDER.glob("*/arguments.h"))]
}


def checks_of(path: Path) -> list[str]:
    """What a compiler must find true of a header, if Python has read it right."""
    name = "shared_layouts" if path.parent.name == "device" else path.parent.name
    header, checks = HEADERS[path], [f'#include "{path}"']
    for struct, layout in header.structs.items():
        checks.append(f"static_assert(sizeof({name}::{struct}) == {ctypes.sizeof(layout)});")
        checks += [
            f"static_assert(offsetof({name}::{struct}, {field}) == {getattr(layout, field).offset});"
            for field, _ in layout._fields_
        ]
    return checks + [
        f"static_assert({name}::{constant} == {number});"
        for constant, number in header.constants.items()
    ]


@pytest.mark.parametrize("is_right", [True, False])
def test_the_compiler_puts_every_member_where_python_does(tmp_path: Path, is_right: bool) -> None:
    lines = ["#include <stddef.h>", *(line for path in HEADERS for line in checks_of(path))]
    assert len(lines) > 130
    wrong = "\n".join(lines).replace("num_elements) == 16", "num_elements) == 20")
    source = tmp_path / "offsets.cpp"
    source.write_text("\n".join(lines) if is_right else wrong)
    command = ["g++", "-std=c++17", "-fsyntax-only", f"-I{INCLUDE}", f"-I{FOLDER / 'device'}"]
    done = subprocess.run([*command, str(source)], capture_output=True, text=True, check=False)
    assert (done.returncode == 0) is is_right, done.stderr
