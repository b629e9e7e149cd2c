"""The documentation as tests follow it: its blocks of code, in order, written, run and compared.

A fence says what it is. `title="name"` is a file; `console` holds commands; `text` behind them, or
behind `python`, is what they print, among other things; `diff` is a patch of a file before it;
`python` is run after the page's Python before it. A comment `<!-- needs: ... -->` right before a
fence names what the machine must have for it.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from in_process import run_kprof
from kprof.devices.cache import CACHE_VARIABLE, cache_dir

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
_FENCE = re.compile(
    r"^(?:<!-- needs: (?P<needs>[^>]*) -->\n)?"
    r"^```(?P<language>\w*)(?: title=\"(?P<title>[^\"]+)\")?\n(?P<text>.*?)^```$",
    flags=re.DOTALL | re.MULTILINE,
)


@dataclass(frozen=True)
class Block:
    """One fence of a page; `line` is where it begins."""

    language: str
    text: str
    title: str
    needs: str
    line: int


def blocks_of(page: Path) -> list[Block]:
    """All fences of a page, in order."""
    text = page.read_text()
    found = [
        Block(
            match["language"],
            match["text"],
            match["title"] or "",
            (match["needs"] or "").strip(),
            text[: match.start()].count("\n") + 1,
        )
        for match in _FENCE.finditer(text)
    ]
    assert len(found) * 2 == len(re.findall(r"^```", text, flags=re.MULTILINE)), (
        f"{page}: a fence is not read"
    )
    return found


def one_line(text: str) -> str:
    """Without line breaks, which depend on the width of a terminal."""
    return " ".join(text.split())


class Reader:
    """Someone who does what a page says, in an empty folder, with an environment of his own.

    `has` says whether the machine has what a fence needs; what it has not is left out. With
    `one_core` all commands share one core of the machine.
    """

    def __init__(self, folder: Path, has: Callable[[str], bool], *, one_core: bool = False) -> None:
        self.folder = folder
        self._has = has
        self._output = ""
        self._python = ""
        self.left_out: list[Block] = []
        self.environment = _environment(folder)
        self._shell = ["taskset", "-c", _first_core(), "bash", "-c"] if one_core else ["bash", "-c"]

    def follow(self, blocks: list[Block]) -> None:
        """Do everything, in order."""
        for block in blocks:
            if block.needs and not self._has(block.needs):
                self.left_out.append(block)
            elif block.title:
                (self.folder / block.title).write_text(block.text)
            elif block.language == "console":
                self._output = self._run(block.text, block.line)
            elif block.language == "python":
                self._python += block.text
                (self.folder / "page.py").write_text(self._python)
                self._output = self._run("python page.py", block.line)
            elif block.language == "diff":
                (self.folder / "change.diff").write_text(block.text)
                self._run("patch -p0 < change.diff", block.line)
            elif block.language == "text":
                assert one_line(block.text) in one_line(self._output), (
                    f"line {block.line}:\n{self._output}"
                )

    def _run(self, commands: str, line: int) -> str:
        lines = commands_of_kprof(commands)
        if lines and self._shell[0] == "bash":
            answers = [
                run_kprof(words, environment=self.environment, folder=self.folder)
                for words in lines
            ]
            output = "".join(answer.stdout + answer.stderr for answer in answers)
            assert not any(answer.returncode for answer in answers), f"line {line}:\n{output}"
            return output
        script = f"set -euo pipefail\n{commands}\npwd > '{self._place}'\n"
        answer = subprocess.run(
            [*self._shell, script],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        output = answer.stdout + answer.stderr
        assert answer.returncode == 0, f"line {line}: {commands}\n{output}"
        self.folder = Path(self._place.read_text().strip())
        return output

    @property
    def _place(self) -> Path:
        return Path(self.environment["HOME"]) / "place"


def commands_of_kprof(commands: str) -> list[list[str]]:
    """The arguments of each line, where all that a shell would do is to start `kprof` with them."""
    lines = commands.replace("\\\n", " ").splitlines()
    words = [shlex.split(line, comments=True) for line in lines]
    is_plain = all(each[:1] == ["kprof"] for each in words)
    if not is_plain or re.search(r"[|&;<>$`*~]", re.sub(r"'[^']*'|#.*", "", commands)):
        return []
    return [each[1:] for each in words]


def _first_core() -> str:
    return str(min(os.sched_getaffinity(0)))


def _environment(folder: Path) -> dict[str, str]:
    """Little more than what a login gives: a home that nobody has used, and the commands of this
    Python. Builds of kernels are shared by all readers.

    The folder of shortcuts comes first on PATH.
    """
    home = folder / ".home"
    shortcuts = home / "bin"
    shortcuts.mkdir(parents=True)
    python = Path(sys.executable)
    # The commands as an installation has them, of the code that is tested.
    write_command(shortcuts / "python", f'exec "{python}" "$@"')
    write_command(shortcuts / "kprof", f'exec "{python}" -m kprof_cli "$@"')
    kept = {
        name: os.environ[name] for name in ("LD_LIBRARY_PATH", "CUDA_HOME") if name in os.environ
    }
    return {
        "HOME": str(home),
        "PATH": f"{shortcuts}:{os.environ['PATH']}",
        "PYTHONPATH": f"{ROOT}:{ROOT / 'cli'}",
        CACHE_VARIABLE: str(cache_dir().parent),
        **kept,
    }


def write_command(path: Path, line: str) -> None:
    """An executable of one line."""
    path.write_text(f"#!/bin/sh\n{line}\n")
    path.chmod(0o755)
