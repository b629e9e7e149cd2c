"""The README's kernel, run as it is printed: recorded on one GPU, with a buffer handed over as two numbers."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from gpu_processes import record
from readme_sources import readme_source

pytestmark = pytest.mark.gpu

NUM_WARPS = 304 * 256 // 32

LAUNCH = """
extern "C" int launch(uint64_t arena, uint32_t number, const uint32_t* flag, float* data) {
  const Args args{flag, data, 3, 17, 4};
  const kprof::Buffer prof = kprof::make_buffer(reinterpret_cast<void*>(arena), number);
  return KPROF_LAUNCH(recv, 304, 256, nullptr, 0, args, prof);
}
"""
WORKLOAD = """
import ctypes
from pathlib import Path

import torch

import kprof

device = "cuda:0"
torch.cuda.set_device(device)
flag, data = torch.ones(1, dtype=torch.int32, device=device), torch.zeros(256, device=device)
library = kprof.load_library(Path("kernel.hip").resolve(), kprof.BuildOptions.for_device(device))
recorder = kprof.recorder("regions.h", device=device)
buffer = recorder.launch("recv", num_blocks=304, threads_per_block=256)
error = library.launch(
    ctypes.c_uint64(buffer.arena),
    buffer.launch,
    ctypes.c_void_p(flag.data_ptr()),
    ctypes.c_void_p(data.data_ptr()),
)
assert error == 0, error
torch.cuda.synchronize()
assert data.sum().item() == 256, data
"""


def test_kernel_of_the_readme_is_recorded(
    tmp_path: Path, require_gpus: Callable[[int], None]
) -> None:
    require_gpus(1)
    shutil.copytree(readme_source().parent, tmp_path, dirs_exist_ok=True)
    source = tmp_path / "kernel.hip"
    source.write_text(source.read_text() + LAUNCH)
    (tmp_path / "workload.py").write_text(WORKLOAD)
    options = ["--nproc", "1", "--", "python", "workload.py"]
    events = record(tmp_path / "run.kprof", *options, folder=tmp_path).frame(
        "SELECT region, count(*) AS n, min(peer) AS peer, min(slot) AS slot FROM events GROUP BY "
        "region ORDER BY region"
    )
    assert events["region"].tolist() == ["copy", "wait"]
    assert events["n"].tolist() == [NUM_WARPS, NUM_WARPS]
    assert events["peer"].tolist()[1] == 3
    assert events["slot"].tolist()[1] == 17
