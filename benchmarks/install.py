"""How large and how fast is what a reader of captures installs, without torch, what each command of the README takes,
and how long is it from `git clone` to the first finding about a kernel of one's own, without a GPU?

`python -m benchmarks.install` builds the wheel and the sdist, installs each into a bare virtual
environment with pip, and reads a recording with it. Then it types the README's commands in a fresh
checkout, and those of docs/own_kernel.md in an empty folder, where pip has nothing in its cache. It
needs pip's network, and takes about seven minutes on two cores; what pip downloads is in the times.
"""

from __future__ import annotations

import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import harness

ROOT = Path(__file__).parents[1]
RECORDING = ROOT / "traces" / "all_to_all-token_flags-4xH200-skew3-264blocks.kprof"
MIB = 1 << 20
FIRST_FINDING = (
    f"git clone --quiet '{ROOT}' kprof && python3 -m venv .venv",
    "(cd kprof && pip install -qq -c constraints.txt torch && pip install -qq -c constraints.txt '.[torch]')",
    "kprof new my_kernel && cd my_kernel && make NPROC=2",
)


def main() -> None:
    arguments = harness.options(__doc__).parse_args()
    result = harness.context("python -m benchmarks.install")
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "hatchling", "build", "-d", folder]
        subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
        for kind, pattern in (("wheel", "*.whl"), ("sdist", "*.tar.gz")):
            (file,) = Path(folder).glob(pattern)
            result[kind] = installed(file, Path(folder) / kind)
        of_readme = typed(checkout(Path(folder) / "checkout"), commands_of_readme())
        result["readme"] = [
            {key: row[key] for key in ("command", "seconds", "mib")} for row in of_readme
        ]
        result["first_finding"] = first_finding(Path(folder) / "empty")
    harness.show_and_write(result, arguments.output)


def checkout(folder: Path) -> Path:
    """A copy of the files that git knows, as they are now, without recordings."""
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True
    )
    for name in filter(None, listed.stdout.split("\0")):
        if not name.startswith("traces/") and (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    return folder


def commands_of_readme() -> list[str]:
    """What it says to type, line by line, but for `kprof view`, which waits for a browser."""
    fences = re.findall(
        r"^```console\n(.*?)^```$", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE
    )
    lines = [line.partition("  #")[0].strip() for fence in fences for line in fence.splitlines()]
    return [line for line in lines if not line.startswith("kprof view")]


def first_finding(folder: Path) -> dict[str, float]:
    """Seconds from `git clone` to a report that has a finding, and those of the processor."""
    folder.mkdir()
    rows = typed(folder, FIRST_FINDING, PIP_CACHE_DIR=str(folder / "pip"))
    assert "finding " in " ".join(rows[-1]["output"].split()), rows[-1]["output"]
    return {
        total: round(sum(row[each] for row in rows), 1)
        for total, each in (("total_s", "seconds"), ("processor_s", "processor_s"))
    }


def typed(folder: Path, commands: Sequence[str], **more: str) -> list[dict[str, Any]]:
    """Types commands in a folder, with a home that nobody has used: seconds of each, those of the processor, by how many
    MiB the folder and the home grew, and its output. After the first one in the environment that it made, as the README says.

    `more` are variables of the environment. Raises CalledProcessError for a command that fails.
    """
    home, here = folder / ".home", folder
    home.mkdir()
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("KPROF", "PYTHON"))
    }
    environment |= more | {"HOME": str(home)}
    environment.setdefault("PIP_CACHE_DIR", str(Path.home() / ".cache" / "pip"))
    place = home / "place"
    found: list[dict[str, Any]] = []
    size = size_bytes(folder)
    for command in commands:
        begin_s, processor_begin_s = time.perf_counter(), processor_s()
        script = ["bash", "-c", f"set -euo pipefail\n{command}\npwd > '{place}'"]
        answer = subprocess.run(
            script, cwd=here, env=environment, check=True, capture_output=True, text=True
        )
        seconds, before, size = time.perf_counter() - begin_s, size, size_bytes(folder)
        row = {"command": command, "seconds": round(seconds, 1), "output": answer.stdout}
        row |= {
            "mib": round((size - before) / MIB, 1),
            "processor_s": processor_s() - processor_begin_s,
        }
        found.append(row)
        here = Path(place.read_text().strip())
        # As `. .venv/bin/activate` does.
        environment["PATH"] = f"{folder / '.venv' / 'bin'}:{os.environ['PATH']}"
    return found


def processor_s() -> float:
    """Of the commands that ended until now."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def installed(file: Path, venv: Path) -> dict[str, Any]:
    """Seconds and MiB of an installation into a bare environment, and the first report with it."""
    subprocess.run([sys.executable, "-m", "venv", venv], check=True)
    before = size_bytes(venv)
    seconds = timed([venv / "bin" / "pip", "install", "-q", file])
    report = timed([venv / "bin" / "kprof", "report", RECORDING])
    return {
        "file_mib": round(file.stat().st_size / MIB, 2),
        "install_s": round(seconds, 1),
        "installed_mib": round((size_bytes(venv) - before) / MIB),
        "first_report_s": round(report, 1),
        "has_torch": any(venv.glob("lib/python3*/site-packages/torch")),
    }


def timed(command: list[Any]) -> float:
    begin_s = time.perf_counter()
    # Outside of the checkout, whose folders would be imported instead.
    subprocess.run(command, check=True, capture_output=True, cwd="/")
    return time.perf_counter() - begin_s


def size_bytes(folder: Path) -> int:
    return sum(file.lstat().st_size for file in folder.rglob("*") if file.is_file())


if __name__ == "__main__":
    main()
