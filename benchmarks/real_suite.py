"""Whether programs of others compute the same and end the same under `kprof record`, on one GPU.

    python -m benchmarks.real_suite FOLDER [--at-a-time 4] [--seconds 285]

Runs the programs of tests/real/on_gpus.py, each without kprof, then recorded, then in all other
ways to record it, which take turns: nothing is begun after so many seconds. overflow.py runs
with arenas of all sizes, and its losses are counted. One line per run; real_suite.json in FOLDER
has for each what was printed, how it ended, what kprof said, and the seconds that it took beside
others. A program that prints something else runs once more without kprof: it may do so by itself.
Exits with 1 if anything is not as it should be.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks import harness
from benchmarks.runs import ROOT
from kprof.trace import Trace

sys.path.insert(0, str(ROOT / "tests" / "real"))

import both_ways
import on_gpus
from both_ways import Ended
from on_gpus import Program

LIMIT_S = 90.0


class Suite:
    """The runs of all programs, and what they showed."""

    def __init__(self, folder: Path, budget_s: float) -> None:
        self.folder = folder
        self.deadline = time.monotonic() + budget_s
        self.lock = threading.Lock()
        self.plain: dict[str, Ended] = {}
        self.results: list[dict[str, Any]] = []
        self.not_run = 0

    def run_plain(self, program: Program) -> None:
        self.plain[program.name] = ended = both_ways.plain(
            program.file, *program.arguments, limit_s=LIMIT_S, **self._cache(program)
        )
        is_right = ended.exit_code == 0
        self.keep(program.name, "plain", "ok" if is_right else "FAILS BY ITSELF", ended)

    def run_recorded(self, program: Program, way: str) -> None:
        before = self.plain[program.name]
        if before.exit_code != 0:
            return
        capture = self.folder / f"{program.name} {way}.kprof".replace(" ", "_").replace(",", "")
        arguments = (*program.arguments, *program.with_spans)
        after = both_ways.recorded(
            capture, on_gpus.WAYS[way], program.file, *arguments,
            limit_s=LIMIT_S, **self._cache(program),
        )  # fmt: skip
        verdict = "ok"
        if after.exit_code is None:
            verdict = "HANGS"
        elif after.exit_code != before.exit_code:
            verdict = f"ENDS WITH {after.exit_code}"
        elif after.lines != before.lines:
            again = both_ways.plain(
                program.file, *program.arguments, limit_s=LIMIT_S, **self._cache(program)
            )
            is_stable = again.lines == before.lines
            verdict = "PRINTS SOMETHING ELSE" if is_stable else "prints something else by itself"
        elif "Traceback" in after.error:
            verdict = "HAS A TRACEBACK"
        events = counted(capture)
        if verdict == "ok" and (events["recorded"] == 0) != (way == "switched off"):
            verdict = "RECORDS NOTHING" if way != "switched off" else "RECORDS"
        self.keep(program.name, way, verdict, after, events=events)

    def run_overflow(self, arena_mib: int, arguments: tuple[str, ...]) -> None:
        way = " ".join([f"{arena_mib} MiB", *arguments])
        capture = self.folder / f"overflow_{way}.kprof".replace(" ", "_")
        programs, launches = on_gpus.OVERFLOW_PROGRAMS, on_gpus.OVERFLOW_LAUNCHES
        ended = both_ways.recorded(
            capture, ["--arena-size", f"{arena_mib}MiB"], "overflow.py",
            str(programs), str(launches), *arguments, limit_s=LIMIT_S,
        )  # fmt: skip
        events = counted(capture)
        fits = arena_mib >= on_gpus.OVERFLOW_FITS_MIB
        verdict = "ok"
        if (ended.exit_code, ended.lines) != (0, ("right: True",)):
            verdict = f"ENDS WITH {ended.exit_code}, PRINTS {ended.lines}"
        elif events["recorded"] + events["dropped"] != launches * programs:
            verdict = "MISCOUNTS"
        elif fits != (events["dropped"] == 0) or events["damaged"]:
            verdict = "LOSES OR DAMAGES"
        self.keep("overflow", way, verdict, ended, events=events)

    def keep(self, name: str, way: str, verdict: str, ended: Ended, **more: Any) -> None:
        said = [line for line in ended.error.splitlines() if line.startswith("kprof")]
        entry = asdict(ended) | more | {"program": name, "way": way, "verdict": verdict}
        entry |= {"said": said, "error": "" if verdict == "ok" else ended.error[-4000:]}
        plain = self.plain.get(name)
        times = f"{ended.wall_s:.1f} s"
        if plain is not None and way != "plain":
            times += f" (plain {plain.wall_s:.1f})"
            if plain.step_ms and ended.step_ms:
                times += f", a step {ended.step_ms:.2f} ms (plain {plain.step_ms:.2f})"
        with self.lock:
            self.results.append(entry)
            print(f"{name} | {way} | {verdict} | {times} | {more.get('events', '')}", flush=True)
            harness.write(self.results, self.folder / "real_suite.json")

    def begin(self, what: Callable[..., None], *arguments: Any) -> None:
        """One run, unless the time is over."""
        if time.monotonic() > self.deadline:
            with self.lock:
                self.not_run += 1
                print("not run:", *arguments, flush=True)
            return
        try:
            what(*arguments)
        except Exception as error:
            with self.lock:
                print(f"THE SUITE FAILS | {arguments} | {error!r}", flush=True)
                self.results.append({"verdict": "THE SUITE FAILS", "error": repr(error)})

    def _cache(self, program: Program) -> dict[str, str]:
        """What Inductor measures decides how kernels add up: all runs have what the first found."""
        folder = self.folder / "caches" / program.name.replace(" ", "_").replace(",", "")
        return {"TORCHINDUCTOR_CACHE_DIR": str(folder)}


def counted(capture: Path) -> dict[str, int]:
    """The events of a capture; all 0 where there is none."""
    if not capture.is_dir():
        return {"recorded": 0, "dropped": 0, "damaged": 0}
    counts = [rank.counts for rank in Trace.open(capture).ranks]
    return {
        "recorded": sum(each.recorded for each in counts),
        "dropped": sum(each.dropped for each in counts),
        "damaged": sum(each.torn_chunks + each.stray_chunks + each.torn_records for each in counts),
    }


def check_kprof() -> None:
    """Ends here, with what it prints, where kprof itself does not run."""
    command = [sys.executable, "-m", "kprof_cli", "record", "--", sys.executable, "-c", "pass"]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    if "without creating a kprof recorder" not in answer.stderr:
        sys.exit(f"kprof does not run here: {answer.stderr}")


def main() -> None:
    parser = harness.options(__doc__, has_folder=True)
    parser.add_argument("--at-a-time", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=285.0)
    arguments = parser.parse_args()
    check_kprof()
    suite = Suite(arguments.folder, arguments.seconds)
    programs = [program for program in on_gpus.PROGRAMS if program.is_here]
    for program in on_gpus.PROGRAMS:
        if program not in programs:
            print(f"{program.name}: {program.needs} is not here")

    def both(program: Program) -> None:
        suite.run_plain(program)
        suite.run_recorded(program, next(iter(on_gpus.WAYS)))

    with ThreadPoolExecutor(arguments.at_a_time) as pool:
        for program in programs:
            pool.submit(suite.begin, both, program)
    ways = list(on_gpus.WAYS)[1:]
    with ThreadPoolExecutor(arguments.at_a_time) as pool:
        for arena_mib in on_gpus.OVERFLOW_ARENAS_MIB:
            pool.submit(suite.begin, suite.run_overflow, arena_mib, ())
        for turn in range(len(ways)):
            for idx, program in enumerate(programs):
                way = ways[(idx + turn) % len(ways)]
                pool.submit(suite.begin, suite.run_recorded, program, way)
            if turn == 0:
                for arena_mib in on_gpus.OVERFLOW_ARENAS_MIB:
                    pool.submit(suite.begin, suite.run_overflow, arena_mib, ("claimed",))
    bad = [entry for entry in suite.results if entry["verdict"] != "ok"]
    print(f"{len(suite.results)} runs, {len(bad)} not as they should be, {suite.not_run} not run")
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
