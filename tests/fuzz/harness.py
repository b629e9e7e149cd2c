"""What all fuzzers share: cases by number, processes, limits, and a watch over what is touched.

A fuzzer is a function from (seed, number, folder) to a word for what came of the case. It raises for what must not be. Each case
runs in an empty folder of its own. The harness adds: nothing but a KprofError is a refusal, no case takes more than CPU_S of
processor time or HANG_S by the clock, nothing outside of the folder is opened for writing, removed, moved or linked, and no
process is started or signalled. An audit hook sees that; files that C++ opens (Arrow, DuckDB) it does not see, so a private file
beside the folder is compared as well.

Each failure is printed with the command that makes its case again.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

# Where a test finds it; by hand only this folder is looked into.
sys.path.append(str(Path(__file__).parents[1] / "support"))

CPU_S: Final = 20.0
HANG_S: Final = 600.0
SECRET: Final = "a private file that no fuzzer may show or change"
_MOST_FAILURES: Final = 20
# Where kprof itself keeps builds and the memory of recordings.
_OWN_PLACES: Final = (f"/dev/shm/kprof-{os.geteuid()}-v2",)
_CHANGES: Final = {
    "os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.link", "os.symlink", "os.truncate", "os.chmod", "os.chown",
    "os.utime", "os.mkfifo", "os.mknod", "shutil.rmtree", "shutil.move",
}  # fmt: skip
_TWO_PATHS: Final = ("os.rename", "os.link", "shutil.move")
_STARTS: Final = {
    "os.kill",
    "os.killpg",
    "os.system",
    "os.exec",
    "os.posix_spawn",
    "subprocess.Popen",
    "socket.connect",
}
_WRITES: Final = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND

Case = Callable[[int, int, Path], str]
Prepare = Callable[[], None]


class Broken(AssertionError):
    """The code under test did what it must not do."""


@dataclass
class Result:
    """What came of cases."""

    words: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    num_failures: int = 0
    most_cpu_s: float = 0.0

    def add(self, other: Result) -> None:
        """Add those of another process."""
        self.words += other.words
        self.failures += other.failures[: _MOST_FAILURES - len(self.failures)]
        self.num_failures += other.num_failures
        self.most_cpu_s = max(self.most_cpu_s, other.most_cpu_s)


class Watch:
    """Notes what is touched outside of the allowed places, while it is on."""

    def __init__(self) -> None:
        self.allowed: tuple[str, ...] = ()
        self.is_on = False
        self.others: set[int | None] = set()
        self.seen: list[str] = []
        sys.addaudithook(self._hear)

    @contextlib.contextmanager
    def over(self, *allowed: Path) -> Iterator[list[str]]:
        """What is touched outside of these folders in the block."""
        self.allowed = tuple(os.path.realpath(path) for path in allowed) + _OWN_PLACES
        self.seen = []
        # Threads of earlier tests, such as servers that end, are none of the case's.
        self.others = {one.ident for one in threading.enumerate()} - {threading.get_ident()}
        self.is_on = True
        try:
            yield self.seen
        finally:
            self.is_on = False

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.is_on or threading.get_ident() in self.others:
            return
        if event in _STARTS:
            self.seen.append(f"{event}{arguments[:2]}")
        elif event == "open":
            path, mode, flags = arguments
            is_written = (
                flags & _WRITES if isinstance(flags, int) else set(mode or "") & set("wax+")
            )
            if is_written and not isinstance(path, int):
                self._check(event, path)
        elif event in _CHANGES:
            # Of a link, where it leads to is not touched.
            touched = (
                arguments[1:2]
                if event == "os.symlink"
                else arguments[: 2 if event in _TWO_PATHS else 1]
            )
            for path in touched:
                # Relative to a directory that is open: its own opening was heard.
                if not isinstance(path, int) and (
                    Path(os.fsdecode(path)).is_absolute() or arguments[-1] == -1
                ):
                    self._check(event, path)

    def _check(self, event: str, path: Any) -> None:
        self.is_on = False
        try:
            text = os.fsdecode(path)
            folder, name = os.path.split(text)
            # Changes of a link are changes beside it, what is opened is where it leads to.
            real = (
                os.path.realpath(text) if event == "open" else f"{os.path.realpath(folder)}/{name}"
            )
            if real != "/dev/null" and not real.startswith(self.allowed):
                self.seen.append(f"{event}: {text}")
        finally:
            self.is_on = True


@contextlib.contextmanager
def limited() -> Iterator[None]:
    """Raise Broken where a case takes too long. For the main thread of a process."""

    def stop(number: int, _: object) -> None:
        which = "processor time" if number == signal.SIGVTALRM else "clock time"
        raise Broken(
            f"it takes more than {CPU_S if number == signal.SIGVTALRM else HANG_S:.0f} s of {which}"
        )

    before = [signal.signal(each, stop) for each in (signal.SIGVTALRM, signal.SIGALRM)]
    signal.setitimer(signal.ITIMER_VIRTUAL, CPU_S)
    signal.setitimer(signal.ITIMER_REAL, HANG_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in zip((signal.SIGVTALRM, signal.SIGALRM), before, strict=True):
            signal.signal(number, handler)


class Runner:
    """Runs the cases of one fuzzer in this process. `script` is how to make one again."""

    def __init__(self, case: Case, script: str, place: Path, *, has_files: bool = True) -> None:
        self.case, self.script, self.has_files = case, script, has_files
        self.folder = place / "case"
        self.secret = place / "private" / "secret.txt"
        self.secret.parent.mkdir(parents=True, exist_ok=True)
        self.secret.write_text(SECRET)
        self.watch = Watch()
        self.result = Result()

    def run(self, seed: int, number: int) -> None:
        """Run one case and count it."""
        begin_s = time.process_time()
        if self.has_files or not self.folder.exists():
            shutil.rmtree(self.folder, ignore_errors=True)
            self.folder.mkdir()
        try:
            with limited(), self.watch.over(self.folder) as touched:
                word = self.case(seed, number, self.folder)
            if touched:
                raise Broken(f"touched outside of its folder: {touched[:3]}")
            if self.secret.read_text() != SECRET or len(list(self.secret.parent.iterdir())) != 1:
                raise Broken("a private file was changed")
            self.result.words[word] += 1
        except Exception as error:
            self.result.num_failures += 1
            again = f"python {self.script} --seed {seed} --only {number}"
            where = traceback.extract_tb(error.__traceback__)[-1]
            text = f"{again}\n    {type(error).__name__}: {error} ({Path(where.filename).name}:{where.lineno})"
            if len(self.result.failures) < _MOST_FAILURES:
                self.result.failures.append(text)
                print(text, flush=True)
        self.result.most_cpu_s = max(self.result.most_cpu_s, time.process_time() - begin_s)


@contextlib.contextmanager
def own_places() -> Iterator[Path]:
    """A folder for a process's files, which is its home as well, so that nothing is kept anywhere else."""
    before, folder = dict(os.environ), Path(tempfile.mkdtemp(prefix="kprof-fuzz-"))
    for name in ("home", "tmp"):
        (folder / name).mkdir()
    tempfile.tempdir = None
    # What is compiled for a fuzzer is kept.
    cache = Path(before.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "kprof"
    os.environ.setdefault("KPROF_CACHE_DIR", str(cache))
    os.environ |= {
        "HOME": str(folder / "home"),
        "XDG_CACHE_HOME": str(folder / "home"),
        "TMPDIR": str(folder / "tmp"),
    }
    try:
        yield folder
    finally:
        tempfile.tempdir = None
        os.environ.clear()
        os.environ.update(before)
        shutil.rmtree(folder, ignore_errors=True)


def nothing() -> None:
    """Most fuzzers need no preparation."""


def _work(
    case: Case,
    script: str,
    has_files: bool,
    prepare: Prepare,
    share: tuple[int, int, int, int, float],
) -> Result:
    """The cases first, first + step, ... below `end`, or until the time is over."""
    seed, first, end, step, until_s = share
    with own_places() as place:
        runner = Runner(case, script, place, has_files=has_files)
        prepare()
        for number in range(first, end, step):
            if time.time() > until_s:
                break
            runner.run(seed, number)
    return runner.result


def run_cases(
    case: Case,
    script: str,
    count: int,
    seed: int,
    *,
    jobs: int = 1,
    minutes: float | None = None,
    has_files: bool = True,
    prepare: Prepare = nothing,
) -> Result:
    """Run so many cases, or as many as fit the time, in so many processes."""
    until_s = time.time() + 60 * minutes if minutes is not None else float("inf")
    shares = [(seed, first, count, jobs, until_s) for first in range(jobs)]
    if jobs == 1:
        return _work(case, script, has_files, prepare, shares[0])
    result = Result()
    # A process of its own for each share: threads of Arrow do not survive a fork.
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        for part in pool.starmap(
            _work, [(case, script, has_files, prepare, share) for share in shares]
        ):
            result.add(part)
    return result


def main(
    case: Case,
    what: str,
    script: str,
    *,
    has_files: bool = True,
    count: int = 1000,
    prepare: Prepare = nothing,
) -> int:
    """Parse, run, print; the exit code is 1 where a case failed."""
    parser = argparse.ArgumentParser(description=f"Fuzz {what}.")
    parser.add_argument(
        "--count", type=int, help=f"so many cases ({count} unless --minutes is given)"
    )
    parser.add_argument("--minutes", type=float, help="as many cases as fit the time")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1, help="so many processes")
    parser.add_argument("--only", type=int, help="this case alone, with the traceback of a failure")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    given = parser.parse_args()
    if given.only is not None:
        folder = Path(tempfile.mkdtemp(prefix=f"fuzz-{given.seed}-{given.only}-"))
        print(f"in {folder}: {case(given.seed, given.only, folder)}")
        return 0
    most = given.count or (sys.maxsize if given.minutes else count)
    begin_s = time.monotonic()
    result = run_cases(
        case,
        script,
        most,
        given.seed,
        jobs=given.jobs,
        minutes=given.minutes,
        has_files=has_files,
        prepare=prepare,
    )
    elapsed_s = time.monotonic() - begin_s
    num_cases = result.words.total() + result.num_failures
    figures = {
        "what": what,
        "seed": given.seed,
        "cases": num_cases,
        "failures": result.num_failures,
        "jobs": given.jobs,
        "elapsed_s": round(elapsed_s, 1),
        "cases_per_s_and_job": round(num_cases / elapsed_s / given.jobs, 1),
        "most_cpu_s": round(result.most_cpu_s, 2),
        "results": dict(sorted(result.words.items())),
    }
    print(json.dumps(figures, indent=1))
    if given.json:
        given.json.write_text(json.dumps(figures, indent=1) + "\n")
    return 1 if result.num_failures else 0
