"""docs/triton.md, read for the tests that follow it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

PAGE = (Path(__file__).parents[2] / "docs" / "triton.md").read_text()


def block(language: str) -> str:
    """The first block of code in a language."""
    found = re.search(rf"```{language}\n(.*?)```", PAGE, flags=re.DOTALL)
    assert found is not None
    return found.group(1)


def finding(line: int = 0) -> str:
    """A pattern for the page's finding, on a GPU or (line 1) in the interpreter: how much and how
    long are of one run, the rest has to be."""
    text = re.escape(block("text").strip().splitlines()[line])
    return re.sub(r"(?:\d|\\\.)+(x|\\ %)", lambda number: rf"[\d.]+{number[1]}", text)


def side(sign: str) -> str:
    """One side of the diff: its lines, and those of both sides."""
    lines = [line for line in block("diff").splitlines() if not line or line[0] in (" ", sign)]
    return "".join(f"{line[1:]}\n" for line in lines)


def follow(folder: Path, **environment: str) -> str:
    """Writes the changed kernel, runs the page's commands, and returns what they print, in one line."""
    (folder / "ragged.py").write_text(side("+"))
    output = ""
    for line in block("console").splitlines():
        _, *arguments = line.split()
        answer = subprocess.run(
            [sys.executable, "-m", "kprof_cli", *arguments],
            cwd=folder,
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            check=False,
        )
        assert answer.returncode == 0, answer.stdout + answer.stderr
        output += answer.stdout
    return " ".join(output.split())
