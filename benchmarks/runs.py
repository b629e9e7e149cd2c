"""Commands of a GPU run, one log each: a run goes on after what fails, and stops when its time is up."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tarfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parents[1]


def output_folder(description: str | None) -> Path:
    """The folder that the command line names, made if it is not there."""
    return output_folder_and_parts(description, ())[0]


def output_folder_and_parts(
    description: str | None, parts: Sequence[str]
) -> tuple[Path, Sequence[str]]:
    """The same, and which `parts` to run: the one that `--only` names, all unless given."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    if parts:
        parser.add_argument("--only", choices=parts, help="run this part alone")
    arguments = parser.parse_args()
    folder: Path = arguments.folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    only: str | None = getattr(arguments, "only", None)
    return folder, [only] if only else parts


class Runs:
    """Runs commands with a log each, and keeps a line about each for the summary.

    A command may take `limit_s`, and all together `total_s` from now on.
    """

    def __init__(self, folder: Path, limit_s: float, total_s: float = float("inf")) -> None:
        self.folder = folder
        self.limit_s = limit_s
        self.deadline = time.monotonic() + total_s
        self.lines: list[str] = []
        self.reports = ThreadPoolExecutor()

    def __call__(self, name: str, arguments: Sequence[str], gpu: int | None = None) -> str:
        """What `python *arguments` prints; it may fail. `gpu` is the one that it sees, all unless given."""
        path = os.pathsep.join([str(ROOT), str(ROOT / "cli"), os.environ.get("PYTHONPATH", "")])
        environment = os.environ | {"PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}
        if gpu is not None:
            environment["CUDA_VISIBLE_DEVICES"] = str(gpu)
        begin = time.monotonic()
        limit_s = max(0.1, min(self.limit_s, self.deadline - begin))
        log = self.folder / f"{name}.txt"
        with log.open("w") as file:
            try:
                code: object = subprocess.run(
                    [sys.executable, *arguments],
                    cwd=ROOT, env=environment, stdout=file, stderr=subprocess.STDOUT,
                    timeout=limit_s, check=False,
                ).returncode  # fmt: skip
            except subprocess.TimeoutExpired:
                code = f"none after {limit_s:.0f} s"
        text = log.read_text(errors="replace")
        last = text.strip().splitlines()[-1:] or [""]
        elapsed_s = time.monotonic() - begin
        self.lines.append(f"{name}: exit code {code}, {elapsed_s:.0f} s: {last[0][:200]}")
        print(self.lines[-1], flush=True)
        return text

    def report(self, name: str) -> None:
        """The report of a capture, as text and as JSON, while other things run."""
        capture = str(self.folder / f"{name}.kprof")
        self.reports.submit(self, f"{name}_report", ["-m", "kprof_cli", "report", capture])
        json_report = ["-m", "kprof_cli", "report", "--json", capture]
        self.reports.submit(self, f"{name}_report_json", json_report)

    def pack(self, output: Path, more: str = "") -> None:
        """Leave summary.txt, with `more` behind the lines, and runs.tgz with all logs and captures."""
        (output / "summary.txt").write_text("\n".join(self.lines) + "\n" + more)
        with tarfile.open(output / "runs.tgz", "w:gz") as archive:
            archive.add(self.folder, "runs")
