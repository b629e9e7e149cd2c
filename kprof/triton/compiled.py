"""Registers and shared memory of Triton kernels that record."""

from __future__ import annotations

import contextlib
from functools import wraps
from typing import Any, Final

from triton.compiler import CompiledKernel
from triton.runtime.jit import JITFunction

from kprof.devices import resources

# What names of builds begin with: they are constants of the kernels that record.
BUILD: Final = "kprof "


def note(kernel: str, compiled: Any, shared_bytes: Any, threads: Any) -> None:
    """Remember what a kernel takes that is loaded, or that of a launcher of Inductor's."""
    registers: Any = getattr(compiled, "n_regs", None)
    spills: Any = getattr(compiled, "n_spills", None)
    numbers = (registers, spills, shared_bytes, threads)
    if registers and all(isinstance(number, int) and number >= 0 for number in numbers):
        spill_bytes = resources.WORD_BYTES * spills
        resources.note(kernel, resources.Resources(registers, spill_bytes, shared_bytes, threads))


def note_launcher(kernel: str, launcher: Any, warp_size: int | None) -> None:
    """Remember what a kernel of Inductor's takes, as its launcher says."""
    num_warps = getattr(getattr(launcher, "config", None), "num_warps", None)
    note(kernel, launcher, getattr(launcher, "shared", None), (num_warps or 0) * (warp_size or 0))


def look_at_compilations() -> None:
    """Remember what kernels take that Triton compiles with a buffer from now on.

    Not by Triton's hook: a kernel is not launched while there is one and json knows none of its
    constants (a layout of Gluon's, an enum). A second call does nothing.
    """
    original = JITFunction._do_compile
    if hasattr(original, "of_kprof"):
        return

    @wraps(original)
    def do_compile(function: Any, *args: Any, **kwargs: Any) -> Any:
        compiled = original(function, *args, **kwargs)
        # What goes wrong here goes wrong in the launch that follows, which says so.
        with contextlib.suppress(Exception):
            _look(function.__name__, compiled, *args, **kwargs)
        return compiled

    do_compile.of_kprof = True  # type: ignore[attr-defined]
    JITFunction._do_compile = do_compile


def _look(kernel: str, compiled: Any, *args: Any) -> None:
    constants, is_warmup = args[3], args[6]
    # One that is still being compiled is not waited for.
    if is_warmup or not isinstance(compiled, CompiledKernel) or BUILD not in repr(constants):
        return
    # Loads it, as the launch does next: the driver knows the registers.
    _ = compiled.run
    metadata = compiled.metadata
    threads = metadata.num_warps * metadata.target.warp_size
    note(kernel, compiled, metadata.shared, threads)
