"""How long a newcomer takes from `git clone` to the first finding about a kernel of his own,
without a GPU.

    python -m benchmarks.first_finding [--from URL] [--json FILE]

Does what docs/index.md and docs/own_kernel.md say, in an empty folder with an empty home: clones
the repository, makes an environment, installs kprof with the CPU build of torch, runs `kprof new
my_kernel`, and records it. Neither pip nor the build of kernels has anything in its cache.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import tempfile
import time
from pathlib import Path

from benchmarks import harness

ROOT = Path(__file__).parents[2]
STEPS = {
    "clone": "git clone --quiet '{origin}' kprof",
    "install": (
        "cd kprof && python3 -m venv ../env && ../env/bin/pip install -qq -c constraints.txt torch"
        " && ../env/bin/pip install -qq -c constraints.txt '.[torch]'"
    ),
    "write a kernel": "kprof new my_kernel",
    "build, record, report": "cd my_kernel && make NPROC=2",
}
FINDING = "finding "


def main() -> None:
    parser = harness.options(__doc__)
    parser.add_argument("--from", dest="origin", default=str(ROOT), help="what to clone")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        seconds, output = measure(Path(name), options.origin)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    processor_s = used.ru_utime + used.ru_stime
    assert FINDING in " ".join(output.split()), output
    for step, taken in seconds.items():
        print(f"{step:<24} {taken:6.1f} s")
    total = sum(seconds.values())
    print(
        f"{'to the first finding':<24} {total:6.1f} s, of which {processor_s:.1f} s of processor "
        "time"
    )
    if options.output:
        options.output.write_text(json.dumps(result(seconds, processor_s), indent=1) + "\n")


def measure(folder: Path, origin: str) -> tuple[dict[str, float], str]:
    """The seconds that each step takes, and what the last one prints."""
    home = folder / "home"
    home.mkdir()
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in ("PYTHONPATH", "VIRTUAL_ENV") and not name.startswith("KPROF")
    } | {"HOME": str(home), "PATH": f"{folder / 'env' / 'bin'}:{os.environ['PATH']}"}
    seconds, output = {}, ""
    for step, command in STEPS.items():
        begin = time.perf_counter()
        answer = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", command.format(origin=origin)],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        seconds[step] = time.perf_counter() - begin
        output = answer.stdout + answer.stderr
        if answer.returncode:
            raise SystemExit(f"{step}: {command}\n{output}")
    return seconds, output


def result(seconds: dict[str, float], processor_s: float) -> dict[str, object]:
    return {
        **harness.context("python -m benchmarks.first_finding"),
        "seconds": {step: round(taken, 1) for step, taken in seconds.items()},
        "total_s": round(sum(seconds.values()), 1),
        "processor_s": round(processor_s, 1),
    }


if __name__ == "__main__":
    main()
