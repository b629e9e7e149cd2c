"""The host that plays NCCL, and a driver that says which GPU its ranks have."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from in_process import run_kprof

FOLDER = Path(__file__).parent / "nccl"


def build_host(folder: Path, *flags: str) -> Path:
    host = folder / "host"
    command = ["cc", "-std=c11", "-D_GNU_SOURCE", "-g", "-O1", *flags]
    subprocess.run([*command, FOLDER / "host.c", "-o", host, "-ldl", "-pthread"], check=True)
    return host


def build_driver(folder: Path, name: str = "libcuda.so.1") -> Path:
    """`name` libamdhip64.so.7 makes it AMD's."""
    driver = folder / name
    soname = f"-Wl,-soname,{name}"
    subprocess.run(
        ["cc", "-shared", "-fPIC", soname, FOLDER / "fake_driver.c", "-o", driver], check=True
    )
    return driver


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The host, and a driver for it."""
    folder = tmp_path_factory.mktemp("tools")
    return build_host(folder), build_driver(folder)


# As it is where the shell has no `kprof`.
KPROF = (sys.executable, "-m", "kprof_cli")


def record(
    host: Path,
    output: Path,
    *options: str,
    abi: int = 7,
    driver: Path | None = None,
    flags: tuple[str, ...] = (),
):
    """`kprof record --nccl` of the host; with a driver, all ranks share its GPU."""
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in ("RANK", "NCCL_PROFILER_PLUGIN")
    }
    # Of the workload alone: other programs need no GPU.
    preload = ["env", f"LD_PRELOAD={driver}"] if driver else []
    workload = [*preload, str(host), str(abi), *options]
    command = ["record", "--nccl", *flags, "-o", output, "--", *workload]
    return run_kprof(command, environment=environment)
