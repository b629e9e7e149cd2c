"""Kernels that hang on two GPUs, each with one planted mistake: what `kprof record` says.

    python -m benchmarks.hangs_on_gpus FOLDER [--device cpu] [--only cycle]

Plants the mistakes of `tests/support/planted_hangs/` in an exchange between two processes, each on
a GPU of its own: the eight of `benchmarks/planted_hangs.py`, a kernel that writes to an illegal
address and one that traps, a process that is killed, one that is stopped, and one that holds the
interpreter lock. A run ends when its report names what was planted, or after `--limit-s`. Leaves in
FOLDER transcript.txt (the commands and what they printed) and hangs.json. Exits with 1 when a root was not
named. With two H200 it takes at most four minutes.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks import harness
from benchmarks.runs import ROOT, environment
from kprof.capture.names import UNFINISHED_SUFFIX
from kprof.recording.launcher.stopping import processes_of, signal_all
from planted_hangs.processes import EXPECTED

_TOTAL_S = 230


def run(name: str, device: str, folder: Path, limit_s: float) -> tuple[str, bool]:
    """The transcript of a run, and whether the report named what was planted."""
    capture = folder / f"{name}.kprof"
    workload = ["python", "-m", "planted_hangs.processes", name, device]
    recording = ["record", "--hang-after", "2", "-o", str(capture)]
    log = folder / f"{name}.txt"
    with log.open("w") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "kprof_cli", *recording, "--", *workload],
            env=environment(ROOT / "tests" / "support"),
            stdout=file,
            stderr=subprocess.STDOUT,
        )
        try:
            process.wait(limit_s)
            has_ended = True
        except subprocess.TimeoutExpired:
            unfinished = capture.with_name(capture.name + UNFINISHED_SUFFIX)
            signal_all([process.pid, *processes_of(unfinished)], signal.SIGKILL)
            process.wait()
            has_ended = False
    text = log.read_text()
    command = f"$ kprof record --hang-after 2 -- {' '.join(workload)}\n"
    clean = text.replace(f"{ROOT}/", "").replace(f"{folder}/", "")
    return command + clean + ("" if has_ended else f"(killed after {limit_s:.0f} s)\n"), has_ended


def main() -> int:
    parser = harness.options(__doc__, has_folder=True)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--only", choices=EXPECTED, action="append")
    parser.add_argument("--limit-s", type=float, default=40.0)
    arguments = parser.parse_args()
    deadline_s = time.monotonic() + _TOTAL_S
    transcript, named = "", dict[str, bool]()
    with tempfile.TemporaryDirectory() as scratch:
        for name in arguments.only or EXPECTED:
            limit_s = min(arguments.limit_s, max(1.0, deadline_s - time.monotonic()))
            text, named[name] = run(name, arguments.device, Path(scratch), limit_s)
            transcript += f"{text}\n"
            print(f"{name}: {'named' if named[name] else 'NOT NAMED'}", flush=True)
            (arguments.folder / "transcript.txt").write_text(transcript)
    device = "cuda" if arguments.device == "cuda" else ""
    result = harness.context("python -m benchmarks.hangs_on_gpus FOLDER", device)
    harness.write(result | {"named_right": named}, arguments.folder / "hangs.json")
    return 0 if all(named.values()) else 1


if __name__ == "__main__":
    raise SystemExit(main())
