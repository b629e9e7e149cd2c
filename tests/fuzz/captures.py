"""Damaged captures against the commands that read them.

    python tests/fuzz/captures.py --minutes 30 --seed 7 --jobs 2      (or --count 2000)

Takes small well-formed captures, damages one thing (see damage.py), and runs six commands on each,
in one process that is watched and started again when it dies. Whatever the damage:

    the exit code is 0, 1, 2 or 3; 1 comes with exactly one line on stderr, and never with one about a bug of kprof
    nothing that controls a terminal is printed
    no command takes --cpu-s more processor time than on a sound capture of its size: where one takes more than
    was measured at the beginning, both captures are read in turns, and the quickest run of each counts
    none waits for ever
    no file changes but the output, which is whole or not there; a file beside the capture is never shown
    where the capture's checksums are those of before the damage, what is accepted gives what the sound capture gives
    (queries are ordered: rows of a SELECT without ORDER BY come in another order each time); with --ranks, kprof
    leaves out another rank whose file is damaged: then the selected rank's events are those of the sound capture

Each failure is printed with the number of its capture: `--only NUMBER --seed SEED` makes it again
and keeps it.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import hashlib
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Final

# Where a test finds it; by hand only this folder is looked into.
sys.path.append(str(Path(__file__).parents[1] / "support"))

import pyarrow as pa
import pyarrow.parquet as pq
from damage import SECRET, damage, enlarged, write_seeds

# A command that takes that long by the clock waits for something that never comes: the machine may
# be loaded.
_HANG_S: Final = 900.0
# One of so many commands runs as a process of its own, as users run it.
_PROCESS_EVERY: Final = 150
# A command that seems slow runs so often, in turns with the same one on a sound capture.
_TURNS: Final = 3
# From so many events on a capture is judged by the large sound one.
_LARGE: Final = 1000
# What the interpreter and the imports of a process of its own take.
_START_CPU_S: Final = 6.0
_EVENTS: Final = "SELECT * FROM events ORDER BY ALL"


@dataclass(frozen=True)
class Run:
    """One command line and what came of it."""

    command: tuple[str, ...]
    code: int
    out: str
    err: str
    cpu_s: float


@dataclass
class Tally:
    """What a run of the fuzzer counted."""

    captures: int = 0
    codes: Counter[str] = field(default_factory=Counter)
    damages: Counter[str] = field(default_factory=Counter)
    checksums: Counter[str] = field(default_factory=Counter)
    accepted_as_sound: int = 0
    usual: dict[str, float] = field(default_factory=dict)
    usual_of_large: dict[str, float] = field(default_factory=dict)
    slowest: dict[str, float] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def count(self, run: Run) -> None:
        """Add a command."""
        self.codes[f"exit {run.code}"] += 1
        name = run.command[0]
        self.slowest[name] = max(self.slowest.get(name, 0.0), round(run.cpu_s, 3))


def commands(rng: random.Random, run: Path, output: Path) -> Iterator[tuple[str, ...]]:
    """Six command lines for a capture, with options at random."""
    chosen: list[str] = rng.choice(
        [
            [],
            [],
            ["--time", "0us..1us"],
            ["--ranks", "0"],
            ["--regions", "dispatch/*"],
            ["--blocks", "1"],
        ]
    )
    form: list[str] = rng.choice([[], ["--json"]])
    path = str(run)
    yield "info", path, *form
    yield "stats", path, "--by", rng.choice(["region", "rank", "block"]), *form, *chosen
    by = rng.choice(["rank", "block", "region", "peer", "matrix", "sender"])
    yield "waits", path, "--by", by, *form, *chosen
    page = rng.choice([[], ["--json"], ["-o", str(output / "report.html")]])
    yield "report", path, *page, *chosen
    name = rng.choice(["trace.pftrace", "trace.json", "trace.json.gz"])
    yield "export", path, "-o", str(output / name), *chosen
    view = rng.choice(["events", "flows", "launches"])
    sql = f"SELECT * FROM {view} ORDER BY ALL"
    yield "query", path, sql, *rng.choice([[], ["--json"], ["--csv"]]), *chosen


def faults(run: Run, output: Path, most_cpu_s: float) -> Iterator[str]:
    """What is wrong with how a command ended."""
    if run.code not in (0, 1, 2, 3):
        yield f"exit code {run.code}"
    lines = run.err.splitlines()
    if run.code == 1 and (len(lines) != 1 or run.out):
        yield f"an error of {len(lines)} lines"
    if "Traceback" in run.err or "kprof has a bug here" in run.err:
        yield "an error that nobody foresaw"
    if not all(line.startswith("kprof: ") for line in lines if run.code in (0, 1)):
        yield "words on stderr that are not kprof's"
    is_data = "--csv" in run.command
    if any(not c.isprintable() and c != "\n" for c in run.err + ("" if is_data else run.out)):
        yield "control characters"
    if run.cpu_s > most_cpu_s:
        yield f"{run.cpu_s:.2f} s of processor time"
    written = [file.read_bytes() for file in output.iterdir()]
    if run.code == 1 and written:
        yield "an output in spite of the error"
    if any(SECRET in text for text in (run.out, run.err)) or any(
        SECRET.encode() in data for data in written
    ):
        yield "the content of a private file"


def results(run: Run, output: Path) -> tuple[str, dict[str, bytes]]:
    """What a command said and wrote, without the size of the capture."""
    written = {}
    for file in output.iterdir():
        data = file.read_bytes()
        written[file.name] = gzip.decompress(data) if file.suffix == ".gz" else data
    if run.command[0] == "info":
        return re.sub(r'\(.*?, format 1\)|"size_bytes": ?\d+', "", run.out), written
    return run.out, written


class Worker:
    """A process that runs command lines one after the other.

    Started again after a hang or a crash.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def run(self, command: tuple[str, ...]) -> Run:
        """Run one; code 124 where it hangs, and that of the process where it dies."""
        process = self._started()
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(command).encode() + b"\n")
        process.stdin.flush()
        line = _line_within(process.stdout, _HANG_S)
        if not line:
            process.kill()
            process.communicate()
            code = process.returncode
            self._process = None
            return Run(command, 124 if code == -9 else code, "", "", 0.0)
        return Run(command, **json.loads(line))

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            arguments = [sys.executable, __file__, "--worker"]
            self._process = subprocess.Popen(
                arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
        return self._process

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            # Waits for the process, and closes both pipes.
            self._process.communicate()
            self._process = None


def _line_within(stream: IO[bytes], seconds: float) -> bytes:
    """The next line, or nothing where none comes in time."""
    import select

    ready, _, _ = select.select([stream], [], [], seconds)
    return stream.readline() if ready else b""


def work() -> None:
    """Run the command lines that stdin holds.

    What they print goes into files, so that C++ cannot get past it.
    """
    from kprof_cli.main import run

    answers = os.fdopen(os.dup(1), "wb")
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        os.dup2(out.fileno(), 1)
        os.dup2(err.fileno(), 2)
        for line in sys.stdin:
            begin_s = time.process_time()
            code = run(json.loads(line))
            sys.stdout.flush()
            sys.stderr.flush()
            cpu_s = time.process_time() - begin_s
            texts = {"out": _taken(1), "err": _taken(2)}
            answers.write(json.dumps({"code": code, "cpu_s": cpu_s} | texts).encode() + b"\n")
            answers.flush()


def _taken(descriptor: int) -> str:
    """What was printed since the last time."""
    size = os.lseek(descriptor, 0, os.SEEK_END)
    data = os.pread(descriptor, size, 0)
    os.ftruncate(descriptor, 0)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return data.decode("utf-8", "surrogateescape")


def run_in_process(command: tuple[str, ...]) -> Run:
    """Run one as users do."""
    before = os.times()
    ended = subprocess.run(
        [sys.executable, "-m", "kprof_cli", *command],
        capture_output=True,
        timeout=_HANG_S,
        check=False,
    )
    after = os.times()
    cpu_s = after.children_user + after.children_system
    cpu_s -= before.children_user + before.children_system + _START_CPU_S
    out, err = (data.decode("utf-8", "surrogateescape") for data in (ended.stdout, ended.stderr))
    return Run(command, ended.returncode, out, err, max(0.0, cpu_s))


def state_of(folder: Path) -> dict[str, str]:
    """Every entry below a folder and what it holds; links and pipes are not followed."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_symlink():
            found[str(path)] = str(path.readlink())
        elif path.is_file():
            found[str(path)] = hashlib.sha256(path.read_bytes()).hexdigest()
        else:
            found[str(path)] = "other"
    return found


def _num_rows(run: Path) -> int:
    """How many events the files of a capture claim; 0 where they cannot be read."""
    num_rows = 0
    for path in run.glob("rank-*.parquet"):
        # One that is a pipe now would wait for somebody to write into it.
        if path.is_file():
            # UnicodeDecodeError: of a damaged name of a column
            with contextlib.suppress(pa.ArrowException, OSError, UnicodeDecodeError):
                num_rows += pq.read_metadata(path).num_rows
    return num_rows


def _empty(folder: Path) -> None:
    for file in folder.iterdir():
        file.unlink()


class Fuzzer:
    """Makes captures by number, so that each can be made again."""

    def __init__(self, seed: int, folder: Path, cpu_s: float) -> None:
        self._seed, self._cpu_s = seed, cpu_s
        self._outside = folder / "private" / "secret.txt"
        self._outside.parent.mkdir()
        self._outside.write_text(SECRET)
        (folder / "seeds").mkdir()
        self.seeds = write_seeds(folder / "seeds")
        self.place = folder / "place"
        self._large = folder / "large.kprof"
        self._folder = folder
        self._worker = Worker()
        self._num_commands = 0
        self.tally = Tally()

    def _measure(self, output: Path, captures: Sequence[Path]) -> dict[str, float]:
        """The most processor time of each command on sound captures.

        The first one pays for imports, and does not count.
        """
        usual: dict[str, float] = {}
        for i, capture in enumerate(captures):
            rng = random.Random(i)
            (output / str(i)).mkdir(parents=True)
            for command in commands(rng, capture, output / str(i)):
                run = self._worker.run(command)
                assert run.code == 0, run
                if i:
                    usual[command[0]] = max(usual.get(command[0], 0.0), run.cpu_s)
        return {name: round(cpu_s, 3) for name, cpu_s in usual.items()}

    def capture(self, number: int) -> None:
        """Make capture `number` and run the commands on it."""
        rng = random.Random(f"{self._seed} {number}")
        shutil.rmtree(self.place, ignore_errors=True)
        run, output = self.place / "run.kprof", self.place / "output"
        output.mkdir(parents=True)
        seed = rng.choice(self.seeds)
        kind, checksums = damage(rng, seed, run, self._outside)
        self.tally.captures += 1
        self.tally.checksums[checksums] += 1
        self.tally.damages[kind] += 1
        is_large = _num_rows(run) >= _LARGE
        usual = self.tally.usual_of_large if is_large else self.tally.usual
        like = self._large if is_large else seed
        before = state_of(self.place) | state_of(self._outside.parent)
        for command in commands(rng, run, output):
            done, most_cpu_s = self.run(command), usual[command[0]] + self._cpu_s
            if done.cpu_s > most_cpu_s:
                done, most_cpu_s = self._in_turns(command, like, output)
            self.tally.count(done)
            for fault in faults(done, output, most_cpu_s):
                self._fail(number, kind, done, fault)
            if checksums == "kept" and done.code in (0, 3):
                self.compare(number, kind, done, seed)
            _empty(output)
            if state_of(self.place) | state_of(self._outside.parent) != before:
                self._fail(number, kind, done, "a file changed")
                break

    def compare(self, number: int, kind: str, done: Run, seed: Path) -> None:
        """Fail where a damaged capture gives other figures than the sound one."""
        output = self.place / "output"
        given = results(done, output)
        _empty(output)
        sound = results(self._run_on_sound(done.command, seed), output)
        if given != sound and not self._is_of_another_rank(done.command, seed):
            self._fail(number, kind, done, "damage that nobody noticed")
        self.tally.accepted_as_sound += 1

    def _run_on_sound(self, command: tuple[str, ...], seed: Path) -> Run:
        """Run a command on the sound capture, at the path of the damaged one."""
        run, aside = self.place / "run.kprof", self._folder / "aside"
        run.rename(aside)
        shutil.copytree(seed, run)
        done = self.run(command)
        shutil.rmtree(run)
        aside.rename(run)
        return done

    def _is_of_another_rank(self, command: tuple[str, ...], seed: Path) -> bool:
        """Whether kprof refuses to read all ranks, and the events of the selected one are sound.

        `--ranks` reads the others without a damaged rank. What is said of the whole run then lacks
        that rank: its launches, a clock to compare with; a report says which rank is left out.
        """
        if "--ranks" not in command:
            return False
        everything = ("query", command[1], _EVENTS)
        refused = self.run(everything)
        selected = (*everything, "--ranks", command[command.index("--ranks") + 1])
        given, sound = self.run(selected), self._run_on_sound(selected, seed)
        is_same = (given.code, given.out) == (sound.code, sound.out)
        return refused.code == 1 and "name other ranks with --ranks" in refused.err and is_same

    def _in_turns(self, command: tuple[str, ...], sound: Path, output: Path) -> tuple[Run, float]:
        """The quickest of three runs of a command, and the most processor time that it may take.

        That comes from the same command on a sound capture, run in turns with it: beside other load
        a processor takes more time for the same work, and other options are other work.
        """
        name, _, *options = command
        of_damaged, of_sound = [], []
        for _ in range(_TURNS):
            for runs, path in ((of_sound, str(sound)), (of_damaged, command[1])):
                _empty(output)
                runs.append(self._worker.run((name, path, *options)))
        quickest, usual = (min(runs, key=lambda run: run.cpu_s) for runs in (of_damaged, of_sound))
        return quickest, usual.cpu_s + self._cpu_s

    def run(self, command: tuple[str, ...]) -> Run:
        """Run a command, now and then as a process of its own."""
        self._num_commands += 1
        if self._num_commands % _PROCESS_EVERY == 0:
            return run_in_process(command)
        return self._worker.run(command)

    def _fail(self, number: int, kind: str, run: Run, fault: str) -> None:
        words = " ".join(run.command)
        line = f"capture {number} ({kind}): {fault}: {words}: exit {run.code}: {run.err.strip()!r}"
        self.tally.failures.append(line)
        print(line, flush=True)

    def __enter__(self) -> Fuzzer:
        self.tally.usual = self._measure(self._folder / "usual", self.seeds)
        enlarged(self.seeds[-1], self._large)
        self.tally.usual_of_large = self._measure(
            self._folder / "large", [self._large, self._large]
        )
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the process that runs the commands."""
        self._worker.close()


def fuzz(
    seed: int,
    *,
    first: int = 0,
    captures: int | None = None,
    minutes: float | None = None,
    cpu_s: float = 1.0,
) -> Tally:
    """Run from number `first` on until so many captures or minutes are done."""
    end_s = None if minutes is None else time.monotonic() + 60 * minutes
    with (
        tempfile.TemporaryDirectory(prefix="kprof-fuzz-") as folder,
        Fuzzer(seed, Path(folder), cpu_s) as fuzzer,
    ):
        tally = fuzzer.tally
        while (captures is None or tally.captures < captures) and (
            end_s is None or time.monotonic() < end_s
        ):
            fuzzer.capture(first + tally.captures)
            if tally.captures % 100 == 0:
                print(f"{tally.captures} captures, {len(tally.failures)} failures", flush=True)
    return tally


def keep_one(seed: int, number: int, cpu_s: float) -> Tally:
    """Make one capture again, and leave it in the current folder."""
    with tempfile.TemporaryDirectory(prefix="kprof-fuzz-") as folder:
        with Fuzzer(seed, Path(folder), cpu_s) as fuzzer:
            fuzzer.capture(number)
        kept = Path(f"fuzz-{seed}-{number}.kprof")
        shutil.rmtree(kept, ignore_errors=True)
        (fuzzer.place / "run.kprof").rename(kept)
        print(f"kept as {kept}")
    return fuzzer.tally


def figures(tally: Tally, seed: int, elapsed_s: float) -> dict[str, Any]:
    """What goes into benchmarks/results."""
    return {
        "seed": seed,
        "captures": tally.captures,
        "commands": sum(tally.codes.values()),
        "failures": len(tally.failures),
        "exit_codes": dict(sorted(tally.codes.items())),
        "damages": dict(sorted(tally.damages.items())),
        "checksums": dict(sorted(tally.checksums.items())),
        "accepted_as_sound": tally.accepted_as_sound,
        "most_cpu_s": tally.slowest,
        "cpu_s_before_damage": tally.usual,
        "cpu_s_before_damage_of_large": tally.usual_of_large,
        "elapsed_s": round(elapsed_s),
    }


def in_processes(given: argparse.Namespace) -> int:
    """Share the captures among processes, each with the next numbers; 1 where one of them fails."""
    share = -(-(given.count or 1 << 20) // given.jobs)
    begin_s = time.monotonic()
    processes = []
    for job in range(given.jobs):
        limits = ["--minutes", str(given.minutes)] if given.minutes else []
        limits += ["--count", str(share)] if given.count or not given.minutes else []
        numbers = ["--seed", str(given.seed), "--first", str(given.first + job * share)]
        command = [sys.executable, __file__, *limits, *numbers, "--cpu-s", str(given.cpu_s)]
        processes.append(subprocess.Popen(command))
    codes = [process.wait() for process in processes]
    print(f"{given.jobs} processes in {time.monotonic() - begin_s:.0f} s: exit codes {codes}")
    return int(any(codes))


def main(arguments: Sequence[str]) -> int:
    """Parse, run, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--minutes", type=float)
    parser.add_argument("--count", type=int, help="so many captures")
    parser.add_argument("--jobs", type=int, default=1, help="so many processes")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="the number of the first capture")
    parser.add_argument("--cpu-s", type=float, default=1.0)
    parser.add_argument("--only", type=int, help="make this capture again and keep it")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.worker:
        work()
        return 0
    if given.jobs > 1:
        return in_processes(given)
    begin_s = time.monotonic()
    if given.only is not None:
        tally = keep_one(given.seed, given.only, given.cpu_s)
    else:
        captures = 200 if given.count is None and given.minutes is None else given.count
        tally = fuzz(
            given.seed,
            first=given.first,
            captures=captures,
            minutes=given.minutes,
            cpu_s=given.cpu_s,
        )
    found = figures(tally, given.seed, time.monotonic() - begin_s)
    text = json.dumps(found, indent=1)
    print(text)
    if given.json:
        given.json.write_text(text + "\n")
    return 1 if tally.failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
