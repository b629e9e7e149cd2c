"""Recordings of every step of the ladders of the kernels, as traces/ keeps them.

    python -m benchmarks.recordings FOLDER [--ranks 2] [--target cpu]

With one rank the kernels for one GPU, with more the collectives. Leaves in FOLDER: a capture per
step, index.toml with the entries for traces/index.toml, and ladders.json: for each step what its
report promises, and what the next step gained. On the CPU the inputs are small: that shows whether
the script works.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import platform
import shlex
import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import harness
from benchmarks.runs import Runs
from kprof import analysis
from kprof.analysis import Summary
from kprof.capture.directory import Capture
from kprof.report import build as build_report
from kprof.report import to_json
from kprof.trace import Trace

LIMIT_S = 120
# Calls of each: few, because a recording of skinny_gemm has up to 65,000 events a call.
REPEATS = {"moe_align_sort": 3, "rms_norm_fp8": 3, "swiglu_fp8": 2, "skinny_gemm": 2}
GEMM = "skinny_gemm --tokens 8 --rows 2304 --depth 16384"
# The ladders of the kernels for one GPU, first step first.
CAPTURES = {
    "moe_align_sort-single_block": "moe_align_sort --variant single_block --tokens 8192",
    "moe_align_sort-dcp": "moe_align_sort --variant dcp --tokens 262144",
    "moe_align_sort-chained": "moe_align_sort --variant chained --tokens 262144",
    "moe_align_sort-chained-hot": "moe_align_sort --variant chained --tokens 262144 --hot 0.5",
    **{
        f"{kernel}-{name}": f"{kernel} --variant {name} --rows 512"
        for kernel, third in (("rms_norm_fp8", "shared"), ("swiglu_fp8", "packed"))
        for name in ("pointwise", "vectors", third, "tuned")
    },
    **{
        f"skinny_gemm-{name}": f"{GEMM} --variant {name}"
        for name in ("tiled", "split_k", "tuned", "direct", "ring", "groups")
    },
    "skinny_gemm-specialised-2-2": f"{GEMM} --variant specialised --producers 2 --slots 2",
}
# The ladders of the collectives, first step first; the last of two equal options counts.
ALL_TO_ALL = "--shape 256,8,7168,256 --skew 3 --skew-rank 1 --repeats 4"
ALL_REDUCE = "--numel 32768 --repeats 20"
COLLECTIVES = {
    "all_to_all": (ALL_TO_ALL, ("rank_flags", "token_flags", "fused", "balanced", "pipelined")),
    "all_reduce": (ALL_REDUCE, ("oneshot_serial", "oneshot_lock", "oneshot_tree", "oneshot",
                                "twoshot_packets", "twoshot", "ring")),
}  # fmt: skip
SMALL = {
    "all_to_all": "--shape 16,2,256,8 --repeats 2",
    "all_reduce": "--numel 256 --repeats 2",
    "moe_align_sort": "--tokens 64",
    "rms_norm_fp8": "--rows 2 --columns 512",
    "swiglu_fp8": "--rows 2 --columns 512",
    "skinny_gemm": "--rows 32 --depth 512",
}


def steps(num_ranks: int = 1) -> list[str]:
    """The names of the recordings, without the device, each ladder in order."""
    if num_ranks == 1:
        return list(CAPTURES)
    return [
        f"{kernel}-{each}" for kernel, (_, variants) in COLLECTIVES.items() for each in variants
    ]


def kernel_of(name: str) -> str:
    """The kernel of a recording: the part before the first dash."""
    return name.split("-")[0]


def command_of(name: str, target: str) -> list[str]:
    """The workload of a recording, as anybody would start it."""
    kernel = kernel_of(name)
    small = SMALL[kernel].split() if target == "cpu" else []
    if kernel in COLLECTIVES:
        module = ["-m", f"instrumented_kernels.{kernel}", "--variant", name.partition("-")[2]]
        return ["python", *module, *COLLECTIVES[kernel][0].split(), "--target", target, *small]
    repeats = ["--repeats", str(REPEATS[kernel]), "--target", target]
    module = ["-m", *f"instrumented_kernels.{CAPTURES[name]}".split()]
    return ["python", *module, *repeats, *(small or ["--graph"])]


def record_all(run: Runs, target: str, num_ranks: int) -> None:
    """All captures, in the folder of `run`, one after the other, so that a trace shows one kernel."""
    ranks = ["--nproc", str(num_ranks), "--arena-size", "256MiB"] if num_ranks > 1 else []
    for name in steps(num_ranks):
        capture = ["-o", str(run.folder / f"{name}.kprof"), "--", *command_of(name, target)]
        run(name, ["-m", "kprof_cli", "record", *ranks, *capture])


def keep(run: Runs, name: str, out: Path) -> str:
    """Move a capture to `out`, under a name with its device. Its entry in index.toml."""
    source = run.folder / f"{name}.kprof"
    manifest = Capture.open(source).manifest
    device, num_ranks = manifest.ranks[0].device, manifest.world_size
    path = out / f"{name}-{num_ranks}x{device.split()[-1]}.kprof"
    shutil.move(source, path)
    kernel, variant = name.split("-")[:2]
    ranks = ["--nproc", str(num_ranks)] if num_ranks > 1 else []
    record = ["kprof", "record", *ranks, "-o", path.name, "--", *manifest.command]
    fields = {
        "kernel": f"instrumented_kernels/{kernel}, variant {variant}",
        "hardware": f"{num_ranks} {device}",
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


def ladders(paths: Sequence[Path]) -> list[dict[str, Any]]:
    """What the report of each step promises, and what the next step of its ladder gained; parts of
    the median call."""
    rows: list[dict[str, Any]] = []
    for path in paths:
        summary = Summary.of(Trace.open(path))
        first = next(iter(json.loads(to_json(build_report(summary.trace)))["findings"]), None)
        length_us = float(analysis.calls(summary)["length_ns"].median()) / 1e3
        before = rows[-1] if rows and kernel_of(rows[-1]["step"]) == kernel_of(path.stem) else None
        if before is not None:
            before["gained"] = round(1 - length_us / before["call_us"], 3)
        promise = {"promised": round(first["share"], 3), "by": first["sentence"]} if first else {}
        rows.append({"step": path.stem, "call_us": round(length_us, 2), **promise})
    return rows


def toolchain(target: str) -> str:
    """The versions of what compiled and ran the kernels."""
    torch = importlib.import_module("torch")
    python = f"Python {platform.python_version()}"
    versions = [f"CUDA {torch.version.cuda}"] if target == "cuda" else []
    return ", ".join([*versions, f"torch {torch.__version__.split('+')[0]}", python])


def main() -> None:
    parser = harness.options(__doc__, has_folder=True)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--target", default="cuda", choices=("cuda", "cpu"))
    arguments = parser.parse_args()
    out: Path = arguments.folder
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        run = Runs(Path(scratch), LIMIT_S)
        record_all(run, arguments.target, arguments.ranks)
        wanted = steps(arguments.ranks)
        recorded = [name for name in wanted if (run.folder / f"{name}.kprof").exists()]
        (out / "index.toml").write_text("\n".join(keep(run, name, out) for name in recorded))
        paths = [path for name in recorded for path in out.glob(f"{name}-*x*.kprof")]
        harness.show_and_write(ladders(paths), out / "ladders.json")
        run.lines.append(f"{len(recorded)} of {len(wanted)}, {time.monotonic() - begin:.0f} s")
        run.pack(out)


if __name__ == "__main__":
    main()
