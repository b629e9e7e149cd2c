"""What `kprof record --inductor` costs programs of others, on one GPU: medians of steps, in turn without and with it.

    python -m benchmarks.real_programs FOLDER
    python -m benchmarks.real_programs FOLDER --only graphs --rounds 2

`--only` takes the cases whose names have that text: 2 rounds of one take about 3 minutes. Leaves real_programs.json in FOLDER: per program and way the medians of all runs in ms, exit codes, and the events. The
floor is Inductor's own kernel and launch with four numbers more that nobody reads, so that a recorder could hardly cost
less. In "one place" every replay of a graph records at the places of the first one, and overwrites it: the floor of known
places. Takes turns until BUDGET_S is over, each way at least once.
"""

from __future__ import annotations

import argparse
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

from benchmarks.runs import ROOT

PROGRAMS = ROOT / "tests" / "real" / "programs"
# The mode, the layers, the steps that are timed.
CASES = {
    "training, 4 layers": ("train", "4", "100"),
    "inference, 2 layers": ("eval", "2", "200"),
    "inference with CUDA graphs, 2 layers": ("decode", "2", "200"),
}
# Options of `kprof record`; "--floor" and "--one-place" are ours.
WAYS: dict[str, list[str] | None] = {
    "plain": None,
    "recorded": ["--inductor"],
    "floor": ["--inductor", "--floor"],
    "one place": ["--inductor", "--one-place", "--arena-size", "2GiB"],
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


def keep_places() -> None:
    """From now on, in this process, captured launches get places as others do, once for all replays."""
    from kprof.recording.rank import recorder

    def buffer(keeper: Any, _: object, plan: Any, number: int, **__: object) -> Any:
        keeper.decoder.replays.add(keeper.launches.row(number, plan))
        return keeper.turns.active.sharing_buffer(number, plan.num_blocks)

    setattr(recorder, "captured_buffer", buffer)  # noqa: B010


CHANGES = {"--floor": leave_kernels_alone, "--one-place": keep_places}


def run(folder: Path, case: str, way: str) -> dict[str, object]:
    """One run; its median step, and what kprof says."""
    options = WAYS[way]
    capture = folder / "run.kprof"
    command = [sys.executable, str(PROGRAMS / "llama.py"), *CASES[case]]
    if options is not None:
        if ours := [option for option in options if option in CHANGES]:
            command[1:1] = ["-m", "benchmarks.real_programs", *ours]
            options = [option for option in options if option not in CHANGES]
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
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    arguments = parser.parse_args()
    folder: Path = arguments.folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    results: dict[str, object] = {
        "when": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "rounds": arguments.rounds,
    }
    every = {case: {way: [] for way in WAYS} for case in CASES if arguments.only in case}  # type: dict[str, dict[str, list[dict[str, object]]]]
    deadline = time.monotonic() + BUDGET_S
    for idx in range(arguments.rounds):
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
    if sys.argv[1] in CHANGES:
        CHANGES[sys.argv[1]]()
        sys.argv = sys.argv[2:]
        runpy.run_path(sys.argv[0], run_name="__main__")
    else:
        main()
