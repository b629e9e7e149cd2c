"""Multiplies matrices on one Hopper GPU, compares the product with float64, and prints the time.

kprof record -o run.kprof -- python -m instrumented_kernels.triton_matmul --stages 4
"""

from __future__ import annotations

import argparse
import statistics
import sys
from functools import partial

import torch

import kprof
from instrumented_kernels.queued_time import queued_us
from instrumented_kernels.triton_matmul.call import Matmul
from kprof.errors import KprofError, TargetError
from kprof.recording.rank.null_recorder import NullRecorder

_WARM_UPS = 3
# fp16 has 11 bits; sums are in fp32.
_RELATIVE, _ABSOLUTE = 1e-3, 1e-2


def main() -> None:
    """Parse, run, compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=4096, help="m, n and k")
    parser.add_argument("--stages", type=int, default=4, help="places in the ring, 2 to 4")
    parser.add_argument("--calls", type=int, default=5, help="recorded launches")
    parser.add_argument("--waits", action="store_true", help="record every wait for a place, too")
    arguments = parser.parse_args()
    try:
        run(arguments.size, arguments.stages, arguments.calls, arguments.waits)
    except KprofError as error:
        sys.exit(f"triton_matmul: {error}")


def run(size: int, stages: int, num_calls: int, waits: bool) -> None:
    """Warm up without recording, launch, compare."""
    if not torch.cuda.is_available() or torch.cuda.get_device_capability()[0] != 9:
        raise TargetError("needs a Hopper GPU: its warps talk through wgmma and the copy engine")
    generator = torch.Generator("cuda").manual_seed(1)
    a, b = (
        torch.randn((size, size), generator=generator, device="cuda", dtype=torch.float16)
        for _ in range(2)
    )
    matmul = Matmul(a, b, stages=stages, in_loop=waits)
    num_programs = torch.cuda.get_device_properties(0).multi_processor_count
    recorder = kprof.recorder(device="cuda:0")
    for _ in range(_WARM_UPS):
        matmul(num_programs, NullRecorder())
    times, off = (
        [queued_us(partial(matmul, num_programs, one)) for _ in range(num_calls)]
        for one in (recorder, NullRecorder())
    )
    torch.testing.assert_close(
        matmul.c.double(), a.double() @ b.double(), rtol=_RELATIVE, atol=_ABSOLUTE
    )
    print(
        f"persistent_matmul: {size}^3, {stages} stages, {num_programs} programs: "
        f"{statistics.median(times):.1f} us a launch, {statistics.median(off):.1f} us without "
        "recording"
    )


if __name__ == "__main__":
    main()
