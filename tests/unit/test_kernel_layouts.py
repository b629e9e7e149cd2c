"""The layouts that kernels and Python share are declared once: the committed headers are the generated ones."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import pytest

from instrumented_kernels import layouts
from instrumented_kernels.all_reduce.arguments import CallArguments

HEADERS = layouts.all_headers()


@pytest.mark.parametrize("header", HEADERS, ids=[header.namespace for header in HEADERS])
def test_the_committed_header_is_the_generated_one(header: layouts.Header) -> None:
    assert header.path.read_text() == header.text(), "run `python -m instrumented_kernels.layouts`"


def test_every_kernel_has_one() -> None:
    assert {header.namespace for header in HEADERS} == {
        "shared_layouts",
        "all_reduce",
        "all_to_all",
        "moe_align_sort",
        "rms_norm_fp8",
        "skinny_gemm",
        "swiglu_fp8",
    }


def test_no_kernel_declares_arguments_by_hand() -> None:
    folder = Path(layouts.__file__).parent
    by_hand = [
        path.name
        for path in folder.glob("*/*.h")
        if "struct CallArguments" in path.read_text() and path.name != "arguments.h"
    ]
    assert by_hand == []


def test_a_header_of_another_layout_does_not_compile(tmp_path: Path) -> None:
    """The static_asserts compare the compiler's sizes with those of ctypes."""
    header = next(header for header in HEADERS if header.namespace == "all_reduce")
    include = Path(layouts.__file__).parents[1] / "kprof" / "include"
    text = header.text()
    for name, body in {
        "right": text,
        "wrong": text.replace("void* input", "uint32_t input"),
    }.items():
        (tmp_path / f"{name}.cpp").write_text(body)
    command = ["g++", "-std=c++17", "-fsyntax-only", f"-I{include}"]
    command.append(f"-I{layouts.HEADER.path.parent}")
    codes = [
        subprocess.run(
            [*command, str(tmp_path / name)], capture_output=True, check=False
        ).returncode
        for name in ("right.cpp", "wrong.cpp")
    ]
    assert codes[0] == 0
    assert codes[1] != 0


def test_the_compiler_puts_every_member_where_python_does(tmp_path: Path) -> None:
    """The headers assert sizes only."""
    lines = ["#include <stddef.h>"]
    for header in HEADERS:
        lines.append(f'#include "{header.path}"')
        lines += [
            f"static_assert(offsetof({header.namespace}::{each.__name__}, {field.name}) == "
            f'{getattr(each, field.name).offset}, "{each.__name__}.{field.name}");'
            for each in header.layouts
            for field in each.cpp_fields
        ]
    assert len(lines) > 100
    source = tmp_path / "offsets.cpp"
    for text, is_right in (
        ("\n".join(lines), True),
        ("\n".join(lines).replace("num_elements) == 16", "num_elements) == 20"), False),
    ):
        source.write_text(text)
        include = Path(layouts.__file__).parents[1] / "kprof" / "include"
        command = ["g++", "-std=c++17", "-fsyntax-only", f"-I{include}"]
        command += [f"-I{layouts.HEADER.path.parent}", str(source)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (done.returncode == 0) is is_right, done.stderr


def test_python_and_the_kernel_agree_on_the_ranks() -> None:
    assert ctypes.sizeof(CallArguments) - CallArguments.heaps.offset == 8 * layouts.MAX_RANKS
