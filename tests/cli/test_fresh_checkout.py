"""The README's commands, typed in a fresh checkout with a home that nobody has used: they install, record and report."""

from __future__ import annotations

import importlib.metadata
import shutil
import subprocess
from pathlib import Path

import pytest

from benchmarks.install import ROOT, checkout, commands_of_readme, typed

NO_INDEX = ("No matching distribution", "Could not find a version", "Temporary failure in name")


def test_the_readme_says_what_to_type() -> None:
    commands = commands_of_readme()
    assert commands[:2] == ["make demo", "pip install '.[torch]'"]
    assert "kprof new my_kernel && cd my_kernel && make" in commands
    assert not [command for command in commands if "#" in command or not command]


def torch_of_the_tests(folder: Path) -> Path:
    """A folder with nothing but the torch that is installed here, which takes pip a minute: `make setup` has installed
    it with the line of `make demo`. What it needs is installed anew."""
    folder.mkdir()
    package = importlib.metadata.distribution("torch")
    for part in {file.parts[0] for file in package.files or ()} - {"..", "__pycache__"}:
        (folder / part).symlink_to(Path(str(package.locate_file(part))))
    return folder


@pytest.mark.slow
def test_the_readmes_commands_work_in_a_fresh_checkout(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Python compiles what it imports.
    monkeypatch.setenv("PIP_NO_COMPILE", "1")
    pytest.importorskip("torch")
    if not (ROOT / ".git").exists() or not shutil.which("make"):
        pytest.skip("needs make, and git's list of the files of a checkout")
    folder = checkout(tmp_path / "kprof")
    try:
        torch = torch_of_the_tests(tmp_path / "torch")
        rows = typed(folder, commands_of_readme(), PYTHONPATH=str(torch))
    except subprocess.CalledProcessError as error:
        said = f"{error.stdout}\n{error.stderr}"
        if any(words in said for words in NO_INDEX):
            pytest.skip("needs a package index")
        pytest.fail(f"{error.cmd[-1]}\n{said}")
    with capsys.disabled():
        for row in rows:
            print(f"\n  {row['seconds']:6.1f} s {row['mib']:8.1f} MiB  {row['command']}", end="")
        print()
    demo, report = rows[0]["output"], rows[-1]["output"]
    assert (folder / "kprof-demo" / "report.html").is_file()
    # What it says to type next can be typed as it stands.
    (following,) = (line[9:] for line in demo.splitlines() if line.startswith("next "))
    again = subprocess.run(following, shell=True, cwd=folder, capture_output=True, text=True)
    assert again.returncode == 0, again.stderr
    assert "Rank" in report
    shutil.rmtree(folder)
