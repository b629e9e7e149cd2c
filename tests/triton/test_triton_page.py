"""docs/triton.md, followed literally in Triton's interpreter: the kernel, the changes, the commands, the finding."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from needed import require_interpreter

require_interpreter()

PAGE = (Path(__file__).parents[2] / "docs" / "triton.md").read_text()
MOST_CHANGED_LINES = 10


def block(language: str) -> str:
    found = re.search(rf"```{language}\n(.*?)```", PAGE, flags=re.DOTALL)
    assert found is not None
    return found.group(1)


def side(sign: str) -> str:
    """One side of the diff: its lines, and those of both sides."""
    lines = [line for line in block("diff").splitlines() if not line or line[0] in (" ", sign)]
    return "".join(f"{line[1:]}\n" for line in lines)


def test_the_changes_apply_to_the_kernel_and_are_few() -> None:
    assert side("-") == block("python")
    assert (
        len([line for line in block("diff").splitlines() if line.startswith("+")])
        < MOST_CHANGED_LINES
    )


def test_the_page_leads_to_its_finding(tmp_path: Path) -> None:
    (tmp_path / "ragged.py").write_text(side("+"))
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    output = ""
    for line in block("console").splitlines():
        _, *arguments = line.split()
        answer = subprocess.run(
            [sys.executable, "-m", "kprof_cli", *arguments],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert answer.returncode == 0, answer.stdout + answer.stderr
        output += answer.stdout
    assert block("text").strip() in " ".join(output.split())


def test_the_kernel_of_the_page_runs_without_recording(tmp_path: Path) -> None:
    (tmp_path / "ragged.py").write_text(side("+"))
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    answer = subprocess.run(
        [sys.executable, "ragged.py"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr


def test_the_page_names_what_exists(monkeypatch: object) -> None:
    import kprof.triton as kp

    named = set(re.findall(r"\bkp\.(\w+)", PAGE))
    assert named <= set(kp.__all__)
    in_table = set(re.findall(r"^\| `[^`]*kp\.(\w+)", PAGE, flags=re.MULTILINE))
    assert in_table == {"open_track", "start", "stop", "lap", "span", "mark", "value"}
