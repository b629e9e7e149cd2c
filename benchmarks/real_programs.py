"""What `kprof record --inductor` costs programs of others, on one GPU.

    python -m benchmarks.real_programs FOLDER
    python -m benchmarks.real_programs FOLDER --only graphs --ways recorded

Leaves real_programs.json in FOLDER. A machine's processors are faster at times, by more than the bars. So both ways take
turns within one process: 15 steps with Inductor's launchers, 15 with ours, and so on. A program gets faster or slower while
it runs, so the median of a turn is compared with those of the plain steps before and after it. Steps of calls that are left
out are listed apart. A graph cannot change its kernels, so the model is captured twice. Inductor compiles in the process
itself: its workers would still be busy while steps are timed.

The floor is Inductor's own kernel and launch with four numbers more that nobody reads: a recorder can hardly cost less.
`--only` takes the cases whose names have that text, `--ways` some ways to record: a,b.
"""

from __future__ import annotations

import atexit
import json
import re
import runpy
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks import harness
from benchmarks.runs import ROOT, environment

PROGRAMS = ROOT / "tests" / "real" / "programs"
# The mode, the layers, the steps that are timed.
CASES = {
    "training, 4 layers": ("train", "4", "300"),
    "inference, 2 layers": ("eval", "2", "1200"),
    "inference with CUDA graphs, 2 layers": ("decode", "2", "600"),
}
# Options of `kprof record`; "--floor" is ours.
TURNS = {
    "recorded": ["--inductor"],
    "one arena": ["--inductor", "--arena-size", "4GiB"],
    "floor": ["--inductor", "--floor"],
}
STEPS_OF_A_TURN = 15
# Of a way in a turn, or it is not compared.
LEAST_OF_A_TURN = 5
LIMIT_S = 150


def leave_kernels_alone() -> None:
    """From now on, in this process, kernels that are recorded get their four numbers and no span."""
    import triton

    from kprof.recording.rank.whole_launches import WholeLaunches
    from kprof.triton import inductor

    def compiled(_: Any, source: Any, target: Any, options: dict[str, Any]) -> Any:
        return triton.compile(source, target=target, options=options)

    def words(*_: object) -> tuple[int, int, int, int]:
        return (1 << 40, 1 << 41, 1 << 42, 1 << 43)

    inductor._Splicing.compile = compiled  # type: ignore[method-assign]
    WholeLaunches.launch_whole = words  # type: ignore[method-assign, assignment]


def call_plain(model: Any, inputs: dict[str, Any]) -> Any:
    """To be compiled."""
    return model(**inputs)


def call(model: Any, inputs: dict[str, Any]) -> Any:
    """To be compiled, too: torch compiles each function once."""
    return model(**inputs)


def take_turns() -> None:
    """From now on, in this process, launchers change every STEPS_OF_A_TURN steps; at the end, prints the times.

    A step of the programs ends with torch.cuda.synchronize().
    """
    import torch as typed_torch

    from kprof.triton import inductor as typed_inductor

    torch: Any = typed_torch
    inductor: Any = typed_inductor
    tuners: list[Any] = []
    recorders: set[Any] = set()
    take_over, synchronize = inductor._Copies.take_over, torch.cuda.synchronize
    # The way, the turn and the time of each step.
    steps_ms: list[tuple[str, int, float]] = []
    state: dict[str, Any] = {
        "begin_s": 0.0,
        "steps": 0,
        "now": "ours",
        "launchers": [],
        "replays": {},
    }

    def take_over_noted(copies: Any, tuner: Any) -> None:
        take_over(copies, tuner)
        is_ours = [hasattr(each, inductor._ORIGINAL) for each in tuner.launchers] == [True]
        if is_ours and tuner not in tuners:
            tuners.append(tuner)
            state["launchers"].append(tuner.launchers)
            recorders.add(copies.recorder)

    def change() -> None:
        state["now"] = "ours" if state["now"] == "plain" else "plain"
        if state["replays"]:
            torch.cuda.CUDAGraph.replay = state["replays"][state["now"]]
        for tuner, ours in zip(tuners, state["launchers"], strict=True):
            original = [getattr(ours[0], inductor._ORIGINAL)]
            tuner.launchers = ours if state["now"] == "ours" else original
            if hasattr(tuner, "_cached_launcher"):
                tuner._cached_launcher = None

    def end_step(*arguments: Any) -> None:
        synchronize(*arguments)
        # Inductor's tuner and kprof call it, too.
        if sys._getframe(1).f_globals["__name__"] != "__main__":
            return
        took_ms = (time.perf_counter() - state["begin_s"]) * 1e3
        # The first step of a turn finds other code in the caches.
        if state["steps"] % STEPS_OF_A_TURN > 1:
            is_left_out = state["now"] == "ours" and any(
                each._turns.is_left_out for each in recorders
            )
            way = "left out" if is_left_out else state["now"]
            steps_ms.append((way, state["steps"] // STEPS_OF_A_TURN, took_ms))
        state["steps"] += 1
        if state["steps"] % STEPS_OF_A_TURN == 0:
            change()
        state["begin_s"] = time.perf_counter()

    def compile_twice(model: Any, **options: Any) -> Any:
        """With Inductor's kernels in its graphs, and with ours."""
        if options.get("mode") != "reduce-overhead":
            return compile_once(model, **options)
        both = {"plain": compile_once(call_plain, **options), "ours": compile_once(call, **options)}

        def call_one(**inputs: Any) -> Any:
            for way in () if state["replays"] else both:
                take = take_over_noted if way == "ours" else lambda *_: None
                inductor._Copies.take_over = take
                for _ in range(4):
                    torch.compiler.cudagraph_mark_step_begin()
                    both[way](model, inputs)
            if not state["replays"]:
                replay: Any = torch.cuda.CUDAGraph.replay
                state["replays"] = {"ours": replay, "plain": replay.__wrapped__}
            return both[state["now"]](model, inputs)

        return call_one

    inductor._Copies.take_over = take_over_noted
    compile_once, torch.compile = torch.compile, compile_twice
    torch.cuda.synchronize = end_step
    atexit.register(lambda: print("turns", json.dumps(steps_ms)))


CHANGES = {"--floor": leave_kernels_alone, "--turns": take_turns}


def run(folder: Path, case: str, options: list[str]) -> dict[str, Any]:
    """One run; its median step, the times of its turns, and what kprof says."""
    capture = folder / "run.kprof"
    command = [sys.executable, str(PROGRAMS / "llama.py"), *CASES[case]]
    ours = [option for option in options if option in CHANGES]
    command[1:1] = ["-m", "benchmarks.real_programs", *ours, "--turns"]
    kprof = [sys.executable, "-m", "kprof_cli", "record", "--force", "-o", str(capture)]
    command = [*kprof, *(each for each in options if each not in CHANGES), "--", *command]
    begin_s = time.monotonic()
    try:
        answer = subprocess.run(
            command, cwd=ROOT, env=environment(TORCHINDUCTOR_COMPILE_THREADS="1"),
            capture_output=True, text=True, check=False, timeout=LIMIT_S,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return {"exit_code": None}
    found = re.search(r"time ([\d.]+)", answer.stdout)
    value = re.search(r"value (\S+)", answer.stdout)
    turns = re.search(r"turns (.*)", answer.stdout)
    said = [line for line in answer.stderr.splitlines() if line.startswith("kprof")]
    return {
        "exit_code": answer.returncode,
        "step_ms": float(found[1]) if found else None,
        "turns": shares(json.loads(turns[1])) if turns else None,
        "value": value[1] if value else None,
        "whole_s": round(time.monotonic() - begin_s, 1),
        "summary": answer.stdout.split("capture ")[-1].splitlines()[1:5],
        "said": said[:12],
        "errors": answer.stderr[-1500:] if answer.returncode else "",
    }


def shares(steps_ms: list[tuple[str, int, float]]) -> dict[str, Any]:
    """Quartiles of steps by way, and how many percent longer than plain steps those of a turn take:
    the median over turns, and their quartiles."""
    by_turn: dict[tuple[str, int], list[float]] = {}
    for way, turn, ms in steps_ms:
        by_turn.setdefault((way, turn), []).append(ms)
    turns = {
        at: statistics.median(each) for at, each in by_turn.items() if len(each) >= LEAST_OF_A_TURN
    }
    longer: dict[str, list[float]] = {}
    for (way, turn), median_ms in turns.items():
        plain = ("plain", turn - 1), ("plain", turn + 1)
        beside_ms = [turns[each] for each in plain if each in turns]
        if way != "plain" and beside_ms:
            longer.setdefault(way, []).append(100 * (median_ms / statistics.mean(beside_ms) - 1))
    ways = {way: [ms for each, _, ms in steps_ms if each == way] for way, _, _ in steps_ms}
    return {
        "steps": {way: len(each) for way, each in ways.items()},
        "step_ms": {way: harness.spread(each, 4) for way, each in ways.items()},
        "turns": {way: len(each) for way, each in longer.items()},
        "percent_longer": {way: round(statistics.median(each), 1) for way, each in longer.items()},
        "percent_longer_spread": {way: harness.spread(each) for way, each in longer.items()},
    }


def main() -> None:
    parser = harness.options(__doc__, has_folder=True)
    parser.add_argument("--only", default="")
    parser.add_argument("--ways", default=",".join(TURNS))
    arguments = parser.parse_args()
    folder: Path = arguments.folder
    results: dict[str, Any] = harness.context("python -m benchmarks.real_programs FOLDER", "cuda")

    def keep(case: str, way: str, ran: dict[str, Any]) -> None:
        results.setdefault(case, {}).setdefault(way, []).append(ran)
        turns = (ran.get("turns") or {}).get("percent_longer")
        print(
            case, way, ran["exit_code"], ran.get("step_ms"), turns, ran.get("summary"), flush=True
        )
        harness.write(results, folder / "real_programs.json")

    ways = {way: TURNS[way] for way in arguments.ways.split(",")}
    for case in CASES:
        if arguments.only not in case:
            continue
        for way, options in ways.items():
            keep(case, way, run(folder, case, options))


if __name__ == "__main__":
    if sys.argv[1] in CHANGES:
        while sys.argv[1] in CHANGES:
            CHANGES[sys.argv.pop(1)]()
        sys.argv = sys.argv[1:]
        runpy.run_path(sys.argv[0], run_name="__main__")
    else:
        main()
