"""What `kprof record --inductor` costs programs of others, on one GPU: medians of steps, in turn without and with it.

    python -m benchmarks.real_programs FOLDER

Leaves real_programs.json in FOLDER: per program and way the medians of all runs in ms, exit codes, and the events. The
floor is Inductor's own launch with one empty argument more, which nobody can be below: it is not measured here.
"""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
import sys
import time
from datetime import datetime, timezone
from pathlib import Path

from benchmarks.runs import ROOT, output_folder

PROGRAMS = ROOT / "tests" / "real" / "programs"
# The mode, the layers, the steps that are timed.
CASES = {
    "training, 4 layers": ("train", "4", "30"),
    "training, 1 layer": ("train", "1", "30"),
    "inference, 2 layers": ("eval", "2", "60"),
    "inference with CUDA graphs, 2 layers": ("decode", "2", "60"),
    "generate, static cache, 2 layers": ("static", "2", "10"),
}
WAYS: dict[str, list[str] | None] = {
    "plain": None,
    "recorded": ["--inductor"],
    "drained": ["--inductor", "--drain"],
}
ROUNDS = 2
LIMIT_S = 120


def run(folder: Path, case: str, way: str) -> dict[str, object]:
    """One run; its median step, and what kprof says."""
    options = WAYS[way]
    capture = folder / "run.kprof"
    command = [sys.executable, str(PROGRAMS / "llama.py"), *CASES[case]]
    if options is not None:
        kprof = [sys.executable, "-m", "kprof_cli", "record", "--force", "-o", str(capture)]
        command = [*kprof, *options, "--", *command]
    begin = time.monotonic()
    try:
        answer = subprocess.run(
            command, cwd=ROOT, env=os.environ, capture_output=True, text=True, check=False,
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
    for case in CASES:
        runs = {way: [] for way in WAYS}  # type: dict[str, list[dict[str, object]]]
        for _ in range(ROUNDS):
            for way in WAYS:
                runs[way].append(run(folder, case, way))
        medians = {
            way: statistics.median(times)
            for way, several in runs.items()
            if (times := [each["step_ms"] for each in several if each.get("step_ms")])
        }
        results[case] = {"median_ms": medians, "runs": runs}
        print(case, medians, flush=True)
        (folder / "real_programs.json").write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
