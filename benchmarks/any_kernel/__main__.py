"""Does `kprof record --any-kernel` name what is planted in kernels that know nothing of kprof, and what does it cost?

    pip install --no-deps nvidia-cutlass-dsl-libs-base
    python -m benchmarks.any_kernel FOLDER [--run-iket SITE] [--only NAME ...]

On one GPU of SM90 or later, in at most four minutes. SITE is a folder into which that package was unpacked, where it is
not installed. Twenty kernels (`cases.py`) of Triton, of a C++ extension and of PyTorch are launched by `program.py`: a
block, an SM, the last blocks of a grid, or a wave with few blocks is late in each. They run plain and recorded, and for each:

    named     the report says which block or SM it was, or that the last wave is the cause (`judge`)
    gpu, host us per launch plain and recorded, by events and by the clock; seconds of the program

Leaves any_kernel.json, the captures, their reports and a log of each run in FOLDER.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import torch

from benchmarks import harness
from benchmarks.any_kernel.cases import CASES, NUM_SKIPPED, Case, judge
from benchmarks.runs import Runs

HERE: Final = Path(__file__).parent
TOTAL_S, RUN_S, NUM_AT_A_TIME = 215.0, 60.0, 6
# Loads the extension as PyTorch builds it, and says where it is.
BUILD: Final = """
import sys, torch.utils.cpp_extension as extension
print("library", extension.load("planted_kernels", [sys.argv[1]], build_directory=sys.argv[2], is_python_module=False))
"""
LIBRARY: Final = "planted_kernels.so"


class Bench:
    """Runs programs with a log each until the time is up; later ones are then said to be missing."""

    def __init__(self, folder: Path, site: Path | None) -> None:
        self.folder = folder
        places = [site / "nvidia_cutlass_dsl" / "dsl_packages"] if site else []
        self.run = Runs(folder, RUN_S, TOTAL_S, *places, TORCH_CUDA_ARCH_LIST="9.0")

    def __call__(self, name: str, arguments: Sequence[str | Path]) -> str | None:
        """What `python *arguments` prints; None where it fails."""
        text = self.run(name, arguments)
        return None if name in self.run.failed else text

    def build(self) -> tuple[str, Path]:
        """How the kernels of planted.cu were built, and the library."""
        library = self.folder / LIBRARY
        text = self("build", ["-c", BUILD, HERE / "planted.cu", self.folder])
        if text is not None and library.exists():
            return "torch.utils.cpp_extension", library
        source = ["-O3", "-shared", "-Xcompiler", "-fPIC", str(HERE / "planted.cu")]
        subprocess.run(["nvcc", "-arch=sm_90", *source, "-o", library], check=False)
        return "nvcc", library

    def case(self, case: Case, library: Path) -> dict[str, Any]:
        """One case, plain and recorded."""
        program = [str(HERE / "program.py"), case.name, str(self.folder / "gpu.lock"), str(library)]
        capture = self.folder / f"{case.name}.kprof"
        options = ["--any-kernel", "--force", "--kernels", case.kernels, "--skip", str(NUM_SKIPPED)]
        plain = self(f"{case.name}_plain", program)
        kprof = ["-m", "kprof_cli"]
        recorded = self(
            f"{case.name}_recorded",
            [*kprof, "record", *options, "-o", capture, "--", "python", *program],
        )
        result: dict[str, Any] = {"plain": _last(plain), "recorded": _last(recorded)}
        text = self(f"{case.name}_report", [*kprof, "report", capture]) if recorded else None
        found = self(f"{case.name}_report_json", [*kprof, "report", "--json", capture])
        if text is None or found is None:
            return result | {"is_named": False, "why": "no report"}
        report = json.loads(found)
        rows = report["tables"]["warp_lifetimes"]
        return result | judge(case, rows, text, report["verdict"])


def _last(text: str | None) -> dict[str, Any] | None:
    """The program's own line, which stands among those of other tools."""
    lines = [line for line in (text or "").splitlines() if line.startswith('{"program"')]
    return json.loads(lines[-1]) if lines else None


def _cost(results: Mapping[str, Mapping[str, Any]], what: str) -> dict[str, float] | None:
    """Recorded over plain, over all cases that ran both ways."""
    ratios = [
        each["recorded"][what] / each["plain"][what]
        for each in results.values()
        if each.get("plain") and each.get("recorded")
    ]
    return {**harness.spread(ratios), "most": round(max(ratios), 3)} if ratios else None


def _row(name: str, result: Mapping[str, Any]) -> str:
    times = [
        f"{result[way]['gpu_us']:8.0f} {result[way]['host_us']:8.0f}"
        if result.get(way)
        else " " * 17
        for way in ("plain", "recorded")
    ]
    said = result.get("why") or f"{result['right_launches']}/{result['launches']} {result['found']}"
    return f"{name:26} {'yes' if result['is_named'] else 'NO':4} {'  '.join(times)}  {said}"


def _write(folder: Path, built: str, results: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """The figures of the cases that have run; also where others are cut off."""
    done = dict(results)
    planted = [each["is_named"] for name, each in done.items() if CASES[name].plant]
    device = "cuda" if torch.cuda.is_available() else ""
    result = {
        "context": harness.context("python -m benchmarks.any_kernel", device),
        "extension": built,
        "named": sum(planted),
        "of": len(planted),
        "recorded_over_plain": {
            what: _cost(done, what) for what in ("gpu_us", "host_us", "seconds")
        },
        "cases": {name: done[name] for name in CASES if name in done},
    }
    harness.write(result, folder / "any_kernel.json")
    return result


def main() -> None:
    parser = harness.options(__doc__, has_folder=True)
    parser.add_argument("--run-iket", type=Path, metavar="SITE")
    parser.add_argument("--only", choices=CASES, nargs="+", default=list(CASES))
    given = parser.parse_args()
    folder: Path = given.folder
    bench = Bench(folder, given.run_iket.absolute() if given.run_iket else None)
    built, library = bench.build()
    cases = [CASES[name] for name in given.only]
    results: dict[str, dict[str, Any]] = {}

    def run(case: Case) -> None:
        try:
            results[case.name] = bench.case(case, library)
        except (OSError, ValueError, LookupError) as error:
            results[case.name] = {"is_named": False, "why": f"{type(error).__name__}: {error}"}
        print(_row(case.name, results[case.name]), flush=True)
        _write(folder, built, results)

    print(f"{'':26} named    gpu us  host us plain    recorded")
    with ThreadPoolExecutor(NUM_AT_A_TIME) as threads:
        list(threads.map(run, cases))
    result = _write(folder, built, results)
    print(
        f"named: {result['named']} of {result['of']}; recorded over plain: {result['recorded_over_plain']}"
    )
    sys.exit(result["named"] < result["of"])


if __name__ == "__main__":
    main()
