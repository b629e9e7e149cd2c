"""Compiles a Triton kernel for a GPU that is not here, the way a launch with these arguments would."""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

# Triton 3.9 warns where this is not set; warnings are errors in tests.
os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler.compiler import ASTSource, make_backend
from triton.experimental.gluon._runtime import GluonASTSource
from triton.runtime.jit import create_function_from_signature

TARGETS = {
    "sm_90": GPUTarget("cuda", 90, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
    "gfx950": GPUTarget("hip", "gfx950", 64),
    "gfx90a": GPUTarget("hip", "gfx90a", 64),
    "gfx1100": GPUTarget("hip", "gfx1100", 32),
}


@dataclass(frozen=True)
class Pointer:
    """A tensor of which only the type matters."""

    dtype: str = "fp32"

    def data_ptr(self) -> int:
        return 1 << 40


def compile_for(target_name: str, kernel: Any, *args: Any, **kwargs: Any) -> Code:
    """The code of `kernel[grid](*args, **kwargs)`."""
    target = TARGETS[target_name]
    backend = make_backend(target)
    binder = create_function_from_signature(kernel.signature, kernel.params, backend)
    kwargs.setdefault("debug", False)
    bound, specialization, options = binder(*args, **kwargs)
    options, signature, constexprs, attrs = kernel._pack_args(
        backend, kwargs, bound, specialization, options
    )
    source_class = GluonASTSource if kernel.is_gluon() else ASTSource
    source = source_class(kernel, signature, constexprs, attrs)
    compiled = triton.compile(source, target=target, options=options.__dict__)
    return Code(target_name, compiled)


def launch_key(target_name: str, kernel: Any, *args: Any, **kwargs: Any) -> str:
    """By what Triton finds the code of a launch in its memory."""
    backend = make_backend(TARGETS[target_name])
    binder = create_function_from_signature(kernel.signature, kernel.params, backend)
    kwargs.setdefault("debug", False)
    _, specialization, options = binder(*args, **kwargs)
    return triton.runtime.jit.compute_cache_key({}, specialization, options)


@dataclass(frozen=True)
class Code:
    """One compiled kernel."""

    target: str
    compiled: Any

    @property
    def is_nvidia(self) -> bool:
        return self.target.startswith("sm_")

    @cached_property
    def instructions(self) -> list[str]:
        """Instructions without addresses and labels."""
        if not self.is_nvidia:
            text = self.compiled.asm["amdgcn"]
            lines = [line.split(";")[0].strip() for line in text.splitlines()]
            return [line for line in lines if re.match(r"[a-z]\w+(\s|$)", line)]
        return re.findall(r"^\s+/\*[0-9a-f]{4,}\*/\s+(.*?)\s*;", self.sass, flags=re.MULTILINE)

    @cached_property
    def blocks(self) -> list[list[str]]:
        """Instructions between labels and branches."""
        text = self.sass if self.is_nvidia else self.compiled.asm["amdgcn"]
        instruction = (
            r"^\s+/\*[0-9a-f]{4,}\*/\s+(.*?)\s*;" if self.is_nvidia else r"^\s+([a-z]\w+(?:\s.*)?)$"
        )
        blocks: list[list[str]] = [[]]
        for line in text.splitlines():
            if re.match(r"^\.L\w+:", line):
                blocks.append([])
            elif found := re.match(
                instruction, line.split("; ")[0] if not self.is_nvidia else line
            ):
                blocks[-1].append(found.group(1))
                if re.search(r"\bBRA\b|^s_c?branch", found.group(1)):
                    blocks.append([])
        return [block for block in blocks if block]

    @cached_property
    def sass(self) -> str:
        import tempfile

        with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
            Path(file.name).write_bytes(self.compiled.asm["cubin"])
            command = ["nvdisasm", "-c", file.name]
            return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    def count(self, pattern: str) -> int:
        return sum(1 for line in self.instructions if re.search(pattern, line))

    @property
    def spills(self) -> int:
        if self.is_nvidia:
            return self.count(r"\b(STL|LDL)\b")
        names = "vgpr_spill_count", "private_segment_fixed_size"
        notes = self.compiled.asm["amdgcn"]
        return sum(int(re.search(rf"\.{name}:\s+(\d+)", notes).group(1)) for name in names)

    @property
    def registers(self) -> int:
        if self.is_nvidia:
            return (
                self.count(r".")
                and max(
                    (int(n) for line in self.instructions for n in re.findall(r"\bR(\d+)\b", line)),
                    default=0,
                )
                + 1
            )
        return int(re.search(r"\.vgpr_count:\s+(\d+)", self.compiled.asm["amdgcn"]).group(1))
