"""What the tests of kernels for one GPU share: builds, tensors at odd addresses, poisoned outputs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Final, TypeVar

import pytest
import torch
from widths import HAS_FNUZ, IS_CPU_TARGET, WARP_WIDTH, WARP_WIDTHS

from instrumented_kernels.local_plan import LocalPlan
from kprof.devices.build import BuildOptions
from kprof.devices.targets import Target
from kprof.recording.launcher.record import session
from kprof.recording.rank.recorder import Recorder
from kprof.trace import Trace

AnyPlan = TypeVar("AnyPlan", bound=LocalPlan)

KERNELS: Final = Path(__file__).parents[2] / "instrumented_kernels"
_GUARD: Final = 64
_POISON: Final = 0x5A
_FP8_OF_MACHINE_CODE: Final = torch.float8_e4m3fnuz if HAS_FNUZ else torch.float8_e4m3fn
FP8_TYPES: Final = (
    [torch.float8_e4m3fn, torch.float8_e4m3fnuz] if IS_CPU_TARGET else [_FP8_OF_MACHINE_CODE]
)
# Each width of a warp with the fp8 of GPUs that have it: 32 and e4m3fn, 64 and e4m3fnuz.
BUILDS: Final = list(zip(WARP_WIDTHS, FP8_TYPES, strict=True))


def cpu_options(
    warp_width: int = WARP_WIDTH, fp8: torch.dtype = FP8_TYPES[0], **defines: str
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


def plans_of(plan: type[AnyPlan]) -> Callable[[int, torch.dtype], AnyPlan]:
    """One plan for every warp width and fp8."""

    @cache
    def plan_of(warp_width: int, fp8: torch.dtype) -> AnyPlan:
        return plan(options=cpu_options(warp_width, fp8))

    return plan_of


def record(capture: Path, calls: Callable[[Recorder], object]) -> Trace:
    """What some calls of one process leave."""
    with session(capture) as directory:
        recorder = Recorder(directory, rank=0, world_size=1, arena_bytes=1 << 20)
        calls(recorder)
        recorder.close()
    return Trace.open(capture)


def assert_refused(
    plan: Any, cases: Iterable[tuple[type[Exception], str, tuple[object, ...]]]
) -> None:
    """Each of the calls ends in an error with this sentence, and nothing is launched."""
    before = plan._num_calls
    for error, sentence, arguments in cases:
        with pytest.raises(error, match=sentence):
            plan(*arguments)
    assert plan._num_calls == before


def at_offset(tensor: torch.Tensor, offset: int) -> torch.Tensor:
    """A contiguous copy that begins `offset` elements behind an aligned address."""
    memory = torch.empty(tensor.numel() + offset + 16, dtype=tensor.dtype)
    view = memory[offset : offset + tensor.numel()].view(tensor.shape)
    view.copy_(tensor)
    return view


@contextmanager
def poisoned(shape: tuple[int, ...], dtype: torch.dtype, offset: int = 0) -> Iterator[torch.Tensor]:
    """An output that holds no right value, `offset` elements behind an aligned address. What is around it must
    stay."""
    num_bytes = torch.Size(shape).numel() * dtype.itemsize
    memory = torch.full((num_bytes + 2 * _GUARD + 16,), _POISON, dtype=torch.uint8)
    begin = _GUARD + offset * dtype.itemsize
    before = memory.clone()
    yield memory[begin : begin + num_bytes].view(dtype).view(shape)
    assert torch.equal(memory[:begin], before[:begin])
    assert torch.equal(memory[begin + num_bytes :], before[begin + num_bytes :])
