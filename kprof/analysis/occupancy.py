"""What kernels were compiled to, and how many of their blocks fit a processor because of it."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import pandas as pd

from kprof.analysis.metric import metric
from kprof.analysis.summary import Summary, Table
from kprof.capture.manifest import KernelResources, RankInfo


class Processor(NamedTuple):
    """The room of an SM or CU for blocks. Registers are 32 bits of one lane. A warp takes them from
    one of `parts`, in units of `register_unit`; `blocks` have more than one warp."""

    lanes: int
    warps: int
    blocks: int
    parts: int
    registers: int
    register_unit: int
    shared_bytes: int
    shared_unit: int
    shared_reserved: int


# sm_90: the table of compute capabilities in the CUDA C++ Programming Guide, and cuda_occupancy.h.
# gfx942: LLVM's AMDGPUBaseInfo.cpp and GCNProcessors.td, and "AMD Instinct MI300 ISA", chapter 3.
PROCESSORS: Final = {
    "sm_90": Processor(32, 64, 32, 4, 65536, 256, 233472, 128, 1024),
    "gfx942": Processor(64, 32, 16, 4, 131072, 512, 65536, 512, 0),
}
_COLUMNS: Final = (
    *("kernel", "registers", "spill_bytes", "shared_bytes", "threads"),
    *("blocks_at_most", "occupancy_at_most", "limited_by"),
)


@metric()
def compiled(summary: Summary) -> Table:
    """What kernels were compiled to, where the recording knows it.

    Columns: kernel, registers (of a thread), spill_bytes (of a thread: registers that did not fit),
    shared_bytes (of a block, without what its launch adds), threads (of a block; 0: unknown).
    blocks_at_most (that fit a processor at once), occupancy_at_most (their warps over the most that
    a processor holds) and limited_by are empty where the number of threads or the device is
    unknown; memory that a launch adds makes them smaller.
    """
    rows = [_row(info, kernel) for info in summary.trace.ranks for kernel in info.kernels]
    return pd.DataFrame(rows, columns=_COLUMNS).drop_duplicates(ignore_index=True)


def _row(info: RankInfo, kernel: KernelResources) -> dict[str, Any]:
    launched = {row.threads_per_block for row in info.launches if row.kernel == kernel.kernel}
    threads = kernel.threads or (launched.pop() if len(launched) == 1 else 0)
    row: dict[str, Any] = dict.fromkeys(_COLUMNS) | {
        name: getattr(kernel, name) for name in _COLUMNS[:4]
    }
    row["threads"] = threads
    processor = PROCESSORS.get(info.arch.partition(":")[0])
    if processor and threads:
        limits = blocks_that_fit(processor, threads, kernel.registers, kernel.shared_bytes)
        row["limited_by"] = min(limits, key=lambda name: limits[name])
        row["blocks_at_most"] = limits[row["limited_by"]]
        warps = row["blocks_at_most"] * -(-threads // processor.lanes)
        row["occupancy_at_most"] = warps / processor.warps
    return row


def blocks_that_fit(
    processor: Processor, threads: int, registers: int, shared_bytes: int
) -> dict[str, int]:
    """How many blocks of a kernel a processor holds at once, by each thing that limits them."""
    warps = -(-threads // processor.lanes)
    unit = processor.register_unit
    of_warp = max(-(-registers * processor.lanes // unit), 1) * unit
    fitting_warps = processor.registers // processor.parts // of_warp * processor.parts
    unit = processor.shared_unit
    of_block = -(-(shared_bytes + processor.shared_reserved) // unit) * unit
    limits = {
        "threads": processor.warps // warps,
        "registers": fitting_warps // warps,
        "shared memory": processor.shared_bytes // max(of_block, 1),
    }
    return limits | ({"blocks": processor.blocks} if warps > 1 or processor.lanes == 32 else {})
