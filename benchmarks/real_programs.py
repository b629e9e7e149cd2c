"""What `kprof record --inductor` costs programs of others, on one GPU: medians of steps, in turn without and with it.

    python -m benchmarks.real_programs FOLDER

Leaves real_programs.json in FOLDER: per program and way the medians of all runs in ms, exit codes, and the events. The
floor is Inductor's own kernel and launch with four numbers more that nobody reads, so that a recorder could hardly cost
less. Takes turns until BUDGET_S is over, each way at least once.
"""

from __future__ import annotations

import json
import os
import re
import runpy
import statistics
import subprocess
import sys
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from benchmarks.runs import ROOT, output_folder

PROGRAMS = ROOT / "tests" / "real" / "programs"
# The mode, the layers, the steps that are timed.
CASES = {
    "training, 4 layers": ("train", "4", "100"),
    "inference, 2 layers": ("eval", "2", "200"),
    "inference with CUDA graphs, 2 layers": ("decode", "2", "200"),
}
# Options of `kprof record`; "--floor" is ours.
WAYS: dict[str, list[str] | None] = {
    "plain": None,
    "recorded": ["--inductor"],
    "floor": ["--inductor", "--floor"],
    "one arena": ["--inductor", "--arena-size", "2GiB"],
}
ROUNDS = 3
BUDGET_S = 240.0
LIMIT_S = 120


def leave_kernels_alone() -> None:
    """From now on, in this process, kernels that are recorded get their four numbers and no span."""
    from kprof.triton import inductor

    def options(clone: Any, config: Any, meta: dict[str, Any]) -> dict[str, Any]:
        return type(clone)._create_compile_options(clone, config, meta)  # type: ignore[no-any-return]

    def words(*_: object) -> tuple[int, int, int, int]:
        return (1 << 40, 1 << 41, 1 << 42, 1 << 43)

    inductor._options_with_span = options
    inductor._Copy.words = words  # type: ignore[method-assign]


def run(folder: Path, case: str, way: str) -> dict[str, object]:
    """One run; its median step, and what kprof says."""
    options = WAYS[way]
    capture = folder / "run.kprof"
    command = [sys.executable, str(PROGRAMS / "llama.py"), *CASES[case]]
    if options is not None:
        if "--floor" in options:
            command[1:1] = ["-m", "benchmarks.real_programs", "--floor"]
            options = [option for option in options if option != "--floor"]
        kprof = [sys.executable, "-m", "kprof_cli", "record", "--force", "-o", str(capture)]
        command = [*kprof, *options, "--", *command]
    begin = time.monotonic()
    path = os.pathsep.join([str(ROOT), str(ROOT / "cli"), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path}
    try:
        answer = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False,
            timeout=LIMIT_S,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return {"exit_code": None}
    found = re.search(r"time ([\d.]+)", answer.stdout)
    value = re.search(r"value (\S+)", answer.stdout)
    said = [line for line in answer.stderr.splitlines() if line.startswith("kprof")]
    return {
        "exit_code": answer.returncode,
        "step_ms": float(found[1]) if found else None,
        "value": value[1] if value else None,
        "whole_s": round(time.monotonic() - begin, 1),
        "summary": answer.stdout.split("capture ")[-1].splitlines()[:12] if options else [],
        "said": said[:12],
        "errors": answer.stderr[-1500:] if answer.returncode else "",
    }


def main() -> None:
    folder = output_folder(__doc__)
    results: dict[str, object] = {
        "when": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "rounds": ROUNDS,
    }
    every = {case: {way: [] for way in WAYS} for case in CASES}  # type: dict[str, dict[str, list[dict[str, object]]]]
    deadline = time.monotonic() + BUDGET_S
    for idx in range(ROUNDS):
        for case, runs in every.items():
            if idx and time.monotonic() > deadline:
                continue
            for way in WAYS:
                runs[way].append(run(folder, case, way))
            medians = {
                way: statistics.median(times)
                for way, several in runs.items()
                if (times := [each["step_ms"] for each in several if each.get("step_ms")])
            }
            results[case] = {"median_ms": medians, "runs": runs}
            more = {
                way: f"{100 * (each / medians['plain'] - 1):+.1f} %"
                for way, each in medians.items()
                if "plain" in medians
            }
            print(
                idx,
                case,
                medians,
                more,
                [each[-1]["exit_code"] for each in runs.values()],
                flush=True,
            )
            (folder / "real_programs.json").write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--floor"]:
        leave_kernels_alone()
        sys.argv = sys.argv[2:]
        runpy.run_path(sys.argv[0], run_name="__main__")
    else:
        main()
