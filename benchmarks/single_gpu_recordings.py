"""Recordings of every step of the ladders of the kernels for one GPU, as traces/ keeps them.

    python -m benchmarks.single_gpu_recordings FOLDER [--target cpu]

Leaves in FOLDER: a capture per step, and index.toml, the entries for traces/index.toml. Captures are
made side by side, but only one process at a time has the GPU. On the CPU the inputs are small:
that shows whether the script works.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import os
import platform
import shlex
import shutil
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.runs import Runs
from benchmarks.single_gpu_runs import CAPTURES, workload
from kprof import analysis
from kprof.analysis import Summary
from kprof.capture.directory import Capture
from kprof.trace import Trace

LIMIT_S = 120
LANES = 3
# Calls of each: few, because a recording of skinny_gemm has up to 65,000 events a call.
REPEATS = {"moe_align_sort": 3, "rms_norm_fp8": 3, "swiglu_fp8": 2, "skinny_gemm": 2}
# Variants of a step, which its report need not name.
LEFT_OUT = (
    "moe_align_sort-dcp-hot",
    "skinny_gemm-specialised-4-2",
    "skinny_gemm-specialised-2-4",
    "skinny_gemm-specialised-2-2-tokens",
)
# The last of two equal options counts.
SMALL = {
    "moe_align_sort": "--tokens 64",
    "rms_norm_fp8": "--rows 2 --columns 512",
    "swiglu_fp8": "--rows 2 --columns 512",
    "skinny_gemm": "--rows 32 --depth 512",
}
# Python reads this as it starts. A workload imports torch, which takes seconds, then waits until no
# other one has the GPU.
TAKES_TURNS = """
import sys
if sys.orig_argv[2:] and sys.orig_argv[2].startswith("instrumented_kernels."):
    import fcntl
    import torch
    lock = open({lock!r}, "w")
    fcntl.flock(lock, fcntl.LOCK_EX)
"""
BUILD = """
from instrumented_kernels.{kernel}.plan import Plan
Plan({target!r}).prepare_recording()
"""


def steps() -> list[str]:
    """The names of the recordings, without the device."""
    return [name for name in CAPTURES if name not in LEFT_OUT]


def kernel_of(name: str) -> str:
    """The kernel of a recording: the part before the first dash."""
    return name.split("-")[0]


def command_of(name: str, target: str) -> list[str]:
    """The workload of a recording, as anybody would start it."""
    kernel = kernel_of(name)
    repeats = ["--repeats", str(REPEATS[kernel]), "--target", target]
    only = ["--graph"] if target != "cpu" else SMALL[kernel].split()
    return ["python", *workload(name), *repeats, *only]


def build(run: Runs, target: str) -> None:
    """Compile all kernels, so that no process compiles while it has the GPU."""
    with ThreadPoolExecutor() as pool:
        for kernel in REPEATS:
            pool.submit(run, f"{kernel}_build", ["-c", BUILD.format(kernel=kernel, target=target)])


def record_all(run: Runs, target: str) -> None:
    """All captures, in the folder of `run`."""

    def record(name: str) -> None:
        capture = ["-o", str(run.folder / f"{name}.kprof"), "--", *command_of(name, target)]
        run(name, ["-m", "kprof_cli", "record", *capture])

    with ThreadPoolExecutor(LANES) as pool:
        list(pool.map(record, steps()))


def take_turns(folder: Path) -> None:
    """From now on only one workload at a time has the GPU."""
    startup = folder / "startup"
    startup.mkdir()
    (startup / "sitecustomize.py").write_text(TAKES_TURNS.format(lock=str(folder / "lock")))
    paths = [str(startup), *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)


def keep(run: Runs, name: str, out: Path) -> str:
    """Move a capture to `out`, under a name with its device. Its entry in index.toml."""
    source = run.folder / f"{name}.kprof"
    manifest = Capture.open(source).manifest
    device = manifest.ranks[0].device
    path = out / f"{name}-1x{device.split()[-1]}.kprof"
    shutil.move(source, path)
    kernel, variant = name.split("-")[:2]
    record = ["kprof", "record", "-o", path.name, "--", *manifest.command]
    fields = {
        "kernel": f"instrumented_kernels/{kernel}, variant {variant}",
        "hardware": f"1 {device}",
        "toolchain": toolchain(manifest.ranks[0].target),
        "command": shlex.join(record),
        "shows": analysis.find(Summary.of(Trace.open(path))).headline,
    }
    lines = [f"{key} = {json.dumps(value)}" for key, value in fields.items()]
    lines.insert(4, f"date = {manifest.created_utc[:10]}")
    files = sorted(path.iterdir())
    hashes = [
        f'"{file.name}" = "{hashlib.sha256(file.read_bytes()).hexdigest()}"' for file in files
    ]
    size = sum(file.stat().st_size for file in files)
    run.lines.append(f"{path.name}: {size / 1024:.0f} KiB: {fields['shows']}")
    return "\n".join([f'["{path.name}"]', *lines, "", f'["{path.name}".sha256]', *hashes, ""])


def toolchain(target: str) -> str:
    """The versions of what compiled and ran the kernels."""
    torch = importlib.import_module("torch")
    python = f"Python {platform.python_version()}"
    versions = [f"CUDA {torch.version.cuda}"] if target == "cuda" else []
    return ", ".join([*versions, f"torch {torch.__version__.split('+')[0]}", python])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--target", default="cuda", choices=("cuda", "cpu"))
    arguments = parser.parse_args()
    out: Path = arguments.folder.absolute()
    out.mkdir(parents=True, exist_ok=True)
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        run = Runs(Path(scratch), LIMIT_S)
        build(run, arguments.target)
        take_turns(Path(scratch))
        record_all(run, arguments.target)
        recorded = [name for name in steps() if (run.folder / f"{name}.kprof").exists()]
        (out / "index.toml").write_text("\n".join(keep(run, name, out) for name in recorded))
        run.lines.append(f"{len(recorded)} of {len(steps())}, {time.monotonic() - begin:.0f} s")
        run.pack(out)


if __name__ == "__main__":
    main()
