"""Registers and shared memory of Triton kernels that record."""

from __future__ import annotations

import contextlib
from typing import Any, Final

import triton

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

    A second call does nothing.
    """
    before: Any = triton.knobs.runtime.jit_post_compile_hook
    if hasattr(before, "of_kprof"):
        return

    def hook(**said: Any) -> Any:
        # What goes wrong here goes wrong in the launch that follows, which says so.
        with contextlib.suppress(Exception):
            _look(**said)
        return before(**said) if before else None

    hook.of_kprof = True  # type: ignore[attr-defined]
    triton.knobs.runtime.jit_post_compile_hook = hook


def _look(
    key: str, fn: Any, compile: dict[str, Any], is_manual_warmup: bool = False, **_: Any
) -> None:
    if is_manual_warmup or BUILD not in repr(compile["constants"]):
        return
    compiled = fn.jit_function.device_caches[compile["device"]][0][key]
    # Loads it, as the launch does next: the driver knows the registers.
    _ = compiled.run
    metadata = compiled.metadata
    threads = metadata.num_warps * metadata.target.warp_size
    note(fn.jit_function.__name__, compiled, metadata.shared, threads)
