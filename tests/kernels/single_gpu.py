"""What the tests of kernels for one GPU share: builds, tensors at odd addresses, poisoned outputs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import torch
from widths import IS_CPU_TARGET, WARP_WIDTH

from kprof.devices.build import BuildOptions
from kprof.devices.targets import Target

KERNELS: Final = Path(__file__).parents[2] / "instrumented_kernels"
_GUARD: Final = 64
_POISON: Final = 0x5A
# The emulator of gfx942, whose machine code may run in place of the CPU target, takes fp8 for e4m3fn.
FP8_TYPES: Final = (
    [torch.float8_e4m3fn, torch.float8_e4m3fnuz] if IS_CPU_TARGET else [torch.float8_e4m3fn]
)


def cpu_options(
    warp_width: int = WARP_WIDTH, fp8: torch.dtype = torch.float8_e4m3fn, **defines: str
) -> BuildOptions:
    """A build for the CPU target that takes this fp8."""
    is_fnuz = fp8 == torch.float8_e4m3fnuz
    all_defines = defines | ({"KPROF_FP8_FNUZ": "1"} if is_fnuz else {})
    return BuildOptions(
        Target.CPU,
        include_dirs=(KERNELS / "device",),
        warp_width=warp_width,
        defines=tuple(all_defines.items()),
    )


def at_offset(tensor: torch.Tensor, offset: int) -> torch.Tensor:
    """A contiguous copy that begins `offset` elements behind an aligned address."""
    memory = torch.empty(tensor.numel() + offset + 16, dtype=tensor.dtype)
    view = memory[offset : offset + tensor.numel()].view(tensor.shape)
    view.copy_(tensor)
    return view


@contextmanager
def poisoned(shape: tuple[int, ...], dtype: torch.dtype, offset: int = 0) -> Iterator[torch.Tensor]:
    """An output that holds no right value, `offset` elements behind an aligned address.

    What is around it must stay.
    """
    num_bytes = torch.Size(shape).numel() * dtype.itemsize
    memory = torch.full((num_bytes + 2 * _GUARD + 16,), _POISON, dtype=torch.uint8)
    begin = _GUARD + offset * dtype.itemsize
    before = memory.clone()
    yield memory[begin : begin + num_bytes].view(dtype).view(shape)
    assert torch.equal(memory[:begin], before[:begin])
    assert torch.equal(memory[begin + num_bytes :], before[begin + num_bytes :])
