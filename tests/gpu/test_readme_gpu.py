"""The README's "instrument your own kernel", run as it is printed: built by torch, recorded on one GPU."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from test_readme import blocks, write_sources

from kprof.trace import Trace

pytestmark = pytest.mark.gpu

NUM_WARPS = 304 * 256 // 32

# "Bound with pybind11 as usual."
BINDING = """
#include <pybind11/pybind11.h>
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  pybind11::class_<Args>(m, "Args").def(pybind11::init([](int64_t flag, int64_t data) {
    return Args{reinterpret_cast<const uint32_t*>(flag), reinterpret_cast<float*>(data), 3, 17, 4};
  }));
  m.def("launch", &launch);
}
"""
BEFORE = """
import torch
torch.distributed.init_process_group("gloo")
flag, data = torch.ones(1, dtype=torch.int32, device="cuda"), torch.zeros(256, device="cuda")
"""
ARGUMENTS = "args = ext.Args(flag.data_ptr(), data.data_ptr())\n"
AFTER = """
assert data.sum().item() == 256, data
torch.distributed.destroy_process_group()
"""


def test_kernel_of_the_readme_is_recorded(
    tmp_path: Path, require_gpus: Callable[[int], None]
) -> None:
    require_gpus(1)
    source = write_sources(tmp_path)
    (tmp_path / "kernel.cu").write_text(source.read_text() + BINDING)
    instrumented = blocks("python")[0]
    assert instrumented.count("buffer = ") == 1
    workload = instrumented.replace("buffer = ", f"{ARGUMENTS}buffer = ")
    (tmp_path / "workload.py").write_text(BEFORE + workload + AFTER)
    command = [sys.executable, "-m", "kprof_cli", "record", "--nproc", "1", "-o", "run.kprof", "--"]
    result = subprocess.run(
        [*command, "python", "workload.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
    events = Trace.open(tmp_path / "run.kprof").frame(
        "SELECT region, count(*) AS n, min(peer) AS peer, min(slot) AS slot FROM events GROUP BY region ORDER BY region"
    )
    assert events["region"].tolist() == ["copy", "wait"]
    assert events["n"].tolist() == [NUM_WARPS, NUM_WARPS]
    assert events["peer"].tolist()[1] == 3
    assert events["slot"].tolist()[1] == 17
