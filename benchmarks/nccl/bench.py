"""Builds what the parts need, and runs ranks with and without kprof: nothing outlives its limit, and every log is kept."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.runs import ROOT, environment

BUILD = [
    "src.lib",
    "NVCC_GENCODE=-gencode=arch=compute_90,code=sm_90",
    "ONLY_FUNCS=AllReduce Sum f32|SendRecv",
]
HERE = Path(__file__).parent
# What a recording gets to finish after it was interrupted.
FINISH_S = 20.0
SHARED_GPU = {
    "NCCL_MULTI_RANK_GPU_ENABLE": "1",
    # A kernel that is loaded when it is first launched waits for those that run, and these may wait for it.
    "CUDA_MODULE_LOADING": "EAGER",
    "CUDA_DEVICE_MAX_CONNECTIONS": "32",
}


class OutOfTimeError(Exception):
    """No time is left for this part."""


class Bench:
    """`folder` gets a log for each command; `seconds` are for all of them."""

    def __init__(self, folder: Path, nccl: Path, seconds: float) -> None:
        self.folder, self.nccl = folder, nccl
        self.end_s = time.monotonic() + seconds
        self.library = nccl / "build" / "lib" / "libnccl.so.2"
        self.host, self.empty_plugin = folder / "host", folder / "empty.so"

    @property
    def left_s(self) -> float:
        return self.end_s - time.monotonic()

    def build(self) -> dict[str, float]:
        """How long it took, in s. Raises RuntimeError."""
        begun_s = time.monotonic()
        # What `story` compiles, meanwhile; it waits for that, or does it again.
        ahead = [sys.executable, "-m", "benchmarks.nccl.workload", "build"]
        with (self.folder / "build-kernels.log").open("w") as log:
            shared = environment(**SHARED_GPU)
            subprocess.Popen(ahead, cwd=ROOT, env=shared, stdout=log, stderr=log)
        if not self.library.exists():
            self.run("build-nccl", ["make", "-C", str(self.nccl), f"-j{os.cpu_count()}", *BUILD])
        nccl_s = time.monotonic() - begun_s
        nvcc = os.environ.get("NVCC", "/usr/local/cuda/bin/nvcc")
        common = [nvcc if Path(nvcc).exists() else "nvcc", "-O2", "-std=c++17"]
        headers, libraries = self.nccl / "build" / "include", self.library.parent
        linked = ["-L", str(libraries), "-lnccl", "-Xlinker", f"-rpath={libraries}"]
        source = [str(HERE / "host.cu"), "-o", str(self.host), "-I", str(headers)]
        self.run("build-host", [*common, "-arch=sm_90", *source, *linked])
        shared = ["-shared", "-Xcompiler", "-fPIC,-fvisibility=hidden"]
        source = [str(HERE / "empty_plugin.cpp"), "-o", str(self.empty_plugin)]
        self.run("build-empty", [*common, *shared, *source, "-I", str(ROOT / "kprof" / "nccl")])
        return {"nccl_s": round(nccl_s, 1), "all_s": round(time.monotonic() - begun_s, 1)}

    def run(
        self, name: str, command: Sequence[str], limit_s: float = 1e9, **variables: str
    ) -> dict[str, Any]:
        """The last line of JSON that the command prints, empty without one. Raises RuntimeError where it fails,
        and OutOfTimeError."""
        limit_s = min(limit_s, self.left_s - FINISH_S)
        if limit_s <= 0:
            raise OutOfTimeError(f"no time is left for {name}")
        log = self.folder / f"{name}.log"
        with log.open("w") as file:
            process = subprocess.Popen(
                command, cwd=ROOT, env=environment(**(SHARED_GPU | variables)),
                stdout=file, stderr=file, start_new_session=True,
            )  # fmt: skip
            code = _wait(process, limit_s)
        text = log.read_text(errors="replace")
        if code:
            last = " | ".join(text.strip().splitlines()[-4:])[-600:]
            raise RuntimeError(f"{name} ended with {code}, see {log.name}: {last}")
        found = re.findall(r"^\{.*\}$", text, re.MULTILINE)
        return dict(json.loads(found[-1])) if found else {}

    def record(
        self, name: str, command: Sequence[str], limit_s: float = 1e9, **variables: str
    ) -> tuple[dict[str, Any], Path]:
        """The same recorded with --nccl, and where the capture is."""
        output = self.folder / f"{name}.kprof"
        recorded = [sys.executable, "-m", "benchmarks.nccl.recording", str(output), *command]
        return self.run(name, recorded, limit_s, **variables), output

    def ranks(self, shape: str, what: str, num_ranks: int, *arguments: object) -> list[str]:
        """The command of ranks that are threads (see host.cu), or processes of torchrun with this NCCL under
        torch (see workload.py)."""
        words = [*map(str, arguments)]
        if shape == "threads":
            return [str(self.host), what, str(num_ranks), *words]
        ranks = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(num_ranks)]
        command = [sys.executable, *ranks, "-m", "benchmarks.nccl.workload", what, *words]
        return ["env", f"LD_PRELOAD={self.library}", *command]


def _wait(process: subprocess.Popen[bytes], limit_s: float) -> str:
    """What is wrong with the end, empty if nothing. A recording that is interrupted twice keeps what it has."""
    try:
        code = process.wait(limit_s)
        return f"exit code {code}" if code else ""
    except subprocess.TimeoutExpired:
        pass
    for number, patience_s in (
        (signal.SIGINT, 2.0),
        (signal.SIGINT, FINISH_S - 4),
        (signal.SIGKILL, 2.0),
    ):
        os.killpg(process.pid, number) if number == signal.SIGKILL else process.send_signal(number)
        try:
            process.wait(patience_s)
        except subprocess.TimeoutExpired:
            continue
        break
    return f"no end within {limit_s:.0f} s"
