"""How large and how fast is what a reader of captures installs, without torch?

`python -m benchmarks.install` builds the wheel and the sdist, installs each into a bare virtual
environment with pip, and reads a recording with it. It needs pip's network or cache, and takes about
three minutes on two cores; what pip downloads is in the time.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import harness

ROOT = Path(__file__).parents[1]
RECORDING = ROOT / "traces" / "all_to_all-token_flags-4xH200-skew3-264blocks.kprof"
MIB = 1 << 20


def main() -> None:
    arguments = harness.options(__doc__).parse_args()
    result = harness.context("python -m benchmarks.install")
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "hatchling", "build", "-d", folder]
        subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
        for kind, pattern in (("wheel", "*.whl"), ("sdist", "*.tar.gz")):
            (file,) = Path(folder).glob(pattern)
            result[kind] = installed(file, Path(folder) / kind)
    harness.show_and_write(result, arguments.output)


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
