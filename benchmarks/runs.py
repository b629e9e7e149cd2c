"""Commands of a GPU run, one log each: a run goes on after what fails, and stops when its time is up."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]


def environment(*places: Path, **variables: str) -> dict[str, str]:
    """That of a command: it imports what is in `places`, and kprof and the benchmarks of this checkout."""
    paths = [*map(str, places), str(ROOT), str(ROOT / "cli"), os.environ.get("PYTHONPATH", "")]
    more = {"PYTHONPATH": os.pathsep.join(paths), "PYTHONUNBUFFERED": "1"}
    return os.environ | more | variables


class Runs:
    """Runs commands with a log each, and keeps a line about each for the summary, and the names of those that failed.

    A command may take `limit_s`, and all together `total_s` from now on. `places` and `variables` are of `environment`.
    """

    def __init__(
        self,
        folder: Path,
        limit_s: float,
        total_s: float = float("inf"),
        *places: Path,
        **variables: str,
    ) -> None:
        self.folder = folder
        self.limit_s = limit_s
        self.deadline = time.monotonic() + total_s
        self.places, self.variables = places, variables
        self.lines: list[str] = []
        self.failed: set[str] = set()

    def __call__(self, name: str, arguments: Sequence[str | Path]) -> str:
        """What `python *arguments` prints; it may fail."""
        begin = time.monotonic()
        limit_s = max(0.1, min(self.limit_s, self.deadline - begin))
        log = self.folder / f"{name}.txt"
        with log.open("w") as file:
            try:
                code: object = subprocess.run(
                    [sys.executable, *arguments],
                    cwd=ROOT, env=environment(*self.places, **self.variables), stdout=file,
                    stderr=subprocess.STDOUT, timeout=limit_s, check=False,
                ).returncode  # fmt: skip
            except subprocess.TimeoutExpired:
                code = f"none after {limit_s:.0f} s"
        if code:
            self.failed.add(name)
        text = log.read_text(errors="replace")
        last = text.strip().splitlines()[-1:] or [""]
        elapsed_s = time.monotonic() - begin
        self.lines.append(f"{name}: exit code {code}, {elapsed_s:.0f} s: {last[0][:200]}")
        print(self.lines[-1], flush=True)
        return text

    def pack(self, output: Path) -> None:
        """Leave summary.txt, and runs.tgz with all logs and captures."""
        (output / "summary.txt").write_text("\n".join(self.lines) + "\n")
        with tarfile.open(output / "runs.tgz", "w:gz") as archive:
            archive.add(self.folder, "runs")
