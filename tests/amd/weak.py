"""The kernels' tests as gfx942 machine code, on an emulator with a weak memory model: `make amd-test`, `amd-soak` and `amd-faults`.

    test     the strict setting on what the host reads while kernels run; every test once, a quarter of them in each of
             uncached and fine-grained memory with two seeds; some of the planted faults. Seeds and quarters go by the commit.
             WORKERS of these run at a time.
    soak     all tests with one seed after another, for MINUTES; writes what every pass has shown
    faults   every planted fault of mutations.py; writes the table of results

Without the weak model (AMD_EMULATOR/weak) `test` takes the plain emulator, and without that it says that it is skipped.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from mutations import FAULTS, READ_WHILE_RUNNING, STRICT, Fault

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "amd_faults.json"
SOAKED = RESULTS.with_name("amd_soak.json")
KINDS = ("uc", "fg")
# Of pytest: interrupted, its own error, wrong usage, no tests.
_NOTHING_RAN = (2, 3, 4, 5)
# A fault that keeps kernels from ending is seen by their time limits long before.
FAULT_LIMIT_S = 1800.0
# A soak runs beside other work, and a test of it may have to compile.
PATIENCE_S = "7200"


@dataclass(frozen=True)
class Run:
    """One call of the emulator's run-pytest. `failed` are the tests that failed; none if nothing could run.

    `said` is pytest's last line: how many tests passed, and in how many seconds.
    """

    settings: dict[str, str]
    arguments: tuple[str, ...]
    root: Path = ROOT
    failed: list[str] = field(default_factory=list)
    said: list[str] = field(default_factory=list)

    def command(self, emulator: Path, arguments: tuple[str, ...] | None = None) -> list[str]:
        chosen = self.arguments if arguments is None else arguments
        return [str(emulator / "weak" / "run-pytest"), "-m", "amd", "-q", *chosen]

    def environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "PYTHON": sys.executable,
            "AMD_EMULATOR_DIR": str(ROOT / ".amd-emulator"),
            "EMU_FP8": "fnuz",
            **self.settings,
        }

    def succeeds(self, emulator: Path, limit_s: float | None = None) -> bool:
        """Also prints what pytest does; a failure with the command that repeats it."""
        process = subprocess.Popen(
            self.command(emulator),
            cwd=self.root,
            env=self.environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            self.failed.append("did not end")
            return False
        self.failed.extend(re.findall(r"^(?:FAILED|ERROR) (\S+)", output, flags=re.MULTILINE))
        self.said.extend(
            re.findall(r"^(?=.*\d (?:passed|failed)).* in [\d.]+s.*$", output, flags=re.MULTILINE)
        )
        print(output if process.returncode else output.strip().splitlines()[-2:], flush=True)
        if process.returncode == 0:
            return True
        if process.returncode in _NOTHING_RAN:
            raise SystemExit(f"the tests could not run (exit code {process.returncode} of pytest)")
        self.failed.extend([] if self.failed else [f"exit code {process.returncode}"])
        return False

    def tell(self, emulator: Path) -> None:
        """The command that repeats what failed, one test after the other."""
        settings = [f"{name}={value}" for name, value in sorted(self.settings.items())]
        settings.append("EMU_FP8=fnuz")
        tests = tuple(test for test in self.failed if "::" in test) or self.arguments
        command = shlex.join(
            [*settings, "PYTHON=.venv/bin/python", *self.command(emulator, ("-n0", *tests))]
        )
        print(f"FAILED on the weak memory model; again:\n  {command}", flush=True)


def runs_of(seed: int) -> list[Run]:
    """The strict setting, and every test once: all four passes would take longer than CI has."""
    runs = [Run({**STRICT, "EMU_SEED": str(seed)}, ("-n0", *READ_WHILE_RUNNING))]
    for i, kind in enumerate(KINDS * 2):
        part = f"{(i + seed) % 4}/4"
        settings = {"EMU_SEED": str(seed + i), "WEAK_HEAP": kind, "KPROF_TEST_PART": part}
        runs.append(Run(settings, ("-n0", "tests/kernels")))
    return runs


def commit() -> str:
    """Nothing where there is no git."""
    command = ["git", "rev-parse", "--short=6", "HEAD"]
    answer = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return answer.stdout.strip()


def seed_of_commit() -> int:
    """Another one for every commit; that of the day where there is no git."""
    return int(commit() or "0", 16) or int(time.time() // 86_400)


def test(emulator: Path, seed: int, workers: int) -> bool:
    """Each run is one process: one that a core waits for would take the other's share."""
    set_up = Run({}, ("--version",))
    subprocess.run(set_up.command(emulator), cwd=ROOT, env=set_up.environment(), check=True)
    runs = runs_of(seed)
    with ThreadPoolExecutor(workers) as pool:
        passing = pool.map(lambda run: run.succeeds(emulator), runs)
        planted = [fault for fault in FAULTS if fault.in_ci]
        outcomes = pool.map(lambda fault: outcome_of(fault, emulator), planted)
        passed = list(passing)
        are_caught = [outcome["is_right"] for outcome in outcomes]
    for run, has_passed in zip(runs, passed, strict=True):
        if not has_passed:
            run.tell(emulator)
    return all(passed) and all(are_caught)


def soak(emulator: Path, seed: int, workers: int, minutes: float) -> bool:
    """Ends after the pass in which the time is over. Writes the table of passes after each."""
    end = time.monotonic() + 60 * minutes
    passes: list[dict[str, object]] = []
    while time.monotonic() < end:
        kind = KINDS[seed % 2]
        arguments = ("-n", str(workers), "--timeout", PATIENCE_S, "tests/kernels")
        run = Run({"EMU_SEED": str(seed), "WEAK_HEAP": kind}, arguments)
        begin_s, begin_cpu_s = time.monotonic(), cpu_seconds()
        if not run.succeeds(emulator):
            run.tell(emulator)
        passes.append(
            {
                "seed": seed,
                "heap": kind,
                "said": run.said[-1].strip(" =") if run.said else "",
                "failed": run.failed,
                "seconds": round(time.monotonic() - begin_s, 1),
                "cpu_seconds": round(cpu_seconds() - begin_cpu_s, 1),
            }
        )
        row = {
            "command": f"make amd-soak MINUTES={minutes:g}",
            "commit": commit(),
            "date": time.strftime("%Y-%m-%d"),
            "machine": f"{os.cpu_count()} cores, load average {os.getloadavg()[2]:.0f} at the end",
            "passes": passes,
        }
        SOAKED.write_text(json.dumps(row, indent=1) + "\n")
        seed += 1
    return not any(row["failed"] for row in passes)


def cpu_seconds() -> float:
    """What ended processes of this one have taken."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def plant(fault: Fault, folder: Path) -> None:
    """A copy of the project with the fault in it."""
    for name in ("kprof", "instrumented_kernels", "tests", "pyproject.toml"):
        source, target = ROOT / name, folder / name
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, target)
    path = folder / fault.path
    text = path.read_text()
    assert text.count(fault.old) == 1, f"{fault.name}: not once in {fault.path}: {fault.old!r}"
    path.write_text(text.replace(fault.old, fault.new))


def outcome_of(fault: Fault, emulator: Path) -> dict[str, object]:
    """Tries the fault with one seed after another, until a test fails."""
    begin, failed = time.monotonic(), []
    with tempfile.TemporaryDirectory(prefix="kprof-fault-") as folder:
        plant(fault, Path(folder))
        for number in range(fault.num_seeds):
            settings = {
                "EMU_SEED": str(1 + number),
                "WEAK_HEAP": "fg",
                "EMU_TIMEOUT": "120",
                **fault.settings,
            }
            run = Run(settings, ("-n0", "-x", "--timeout", "240", *fault.tests), Path(folder))
            if not run.succeeds(emulator, FAULT_LIMIT_S):
                failed = run.failed
                break
    is_right = bool(failed) != bool(fault.survives)
    word = f"caught by {failed[0]}" if failed else f"survives {fault.num_seeds} seeds"
    print(f"{'ok' if is_right else 'WRONG'}: {fault.name}: {word}", flush=True)
    return {
        "fault": fault.name,
        "path": fault.path,
        "caught_by": failed[0] if failed else "",
        "seeds": 1 + number,
        "survives_because": fault.survives,
        "is_right": is_right,
        "seconds": round(time.monotonic() - begin, 1),
        "date": time.strftime("%Y-%m-%d"),
    }


def try_faults(emulator: Path, only: str) -> bool:
    """Runs the faults whose name has `only` in it, and keeps what is known of the others."""
    known = (
        {row["fault"]: row for row in json.loads(RESULTS.read_text())} if RESULTS.exists() else {}
    )
    chosen = [fault for fault in FAULTS if only in fault.name]
    for fault in chosen:
        known[fault.name] = outcome_of(fault, emulator)
        rows = [known[each.name] for each in FAULTS if each.name in known]
        RESULTS.write_text(json.dumps(rows, indent=1) + "\n")
    return all(known[fault.name]["is_right"] for fault in chosen)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("test", "soak", "faults"))
    parser.add_argument("--emulator", type=Path, default=ROOT.parent / "shared" / "amd-emulator")
    parser.add_argument(
        "--seed", type=int, default=None, help="of the first run; by default from the commit"
    )
    parser.add_argument("--workers", type=int, default=2, help="processes of pytest")
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--only", default="", help="faults with this in their name")
    options = parser.parse_args()
    emulator = options.emulator.resolve()
    seed = seed_of_commit() if options.seed is None else options.seed
    if not (emulator / "weak" / "run-pytest").exists():
        print(
            f"Skipped: no weak memory model of gfx942 in {emulator}; AMD_EMULATOR may name another folder."
        )
        return 0
    if options.what == "test":
        return 0 if test(emulator, seed, options.workers) else 1
    if options.what == "soak":
        return 0 if soak(emulator, seed, options.workers, options.minutes) else 1
    return 0 if try_faults(emulator, options.only) else 1


if __name__ == "__main__":
    sys.exit(main())
