"""Size and shape of the product code: lines, functions, modules at the root of kprof, imports
between its folders, uses of `Any`.

    python -m benchmarks.code_size                      this checkout
    python -m benchmarks.code_size --against COMMIT     a table: the commit, and this checkout

Lines are those with code: no blank lines, comments or docstrings. The last rows of the table leave
out features that one side does not have, file by file: ADDED and REPLACED below. What a new feature
added to an existing file stays in.
"""

from __future__ import annotations

import argparse
import ast
import io
import statistics
import subprocess
import tarfile
import tempfile
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PRODUCT = ("kprof", "cli", "instrumented_kernels")
CPP_SUFFIXES = (".h", ".hip", ".cu")
_NOT_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}

# Since 4518b88, the commit before the folders of today.
BEFORE = "4518b88"
# Files and folders of features that came since.
ADDED = {
    "findings as gains": (
        "kprof/analysis/replay",
        "kprof/analysis/findings",
        "kprof/analysis/equivalence.py",
        "kprof/report/changes.py",
    ),
    "graphs, schedules, draining, hangs": (
        "kprof/recording/retention/call_lengths.py",
        "kprof/recording/retention/drainer.py",
        "kprof/recording/arenas/ledger.py",
        "kprof/recording/rank/outliving.py",
        "kprof/recording/finishing/salvage.py",
        "kprof/devices/mapping.py",
        "kprof/recording/retention/flight.py",
        "kprof/hangs",
        "kprof/analysis/hung.py",
        "kprof/include/kprof/late_wait.h",
        "kprof/include/kprof/wait_lines.h",
        "kprof/report/figures/hung.py",
        "cli/kprof_cli/watching.py",
        "kprof/recording/retention/keeping.py",
        "kprof/recording/finishing/numbering.py",
        "kprof/recording/finishing/open_spans.py",
        "kprof/recording/launches/progress.py",
        "kprof/recording/decoding/replays.py",
        "kprof/recording/retention/retention.py",
        "kprof/recording/launcher/sessions.py",
        "kprof/recording/retention/slowest.py",
        "kprof/recording/rank/torch_debug.py",
        "kprof/recording/rank/torch_page.py",
        "kprof/recording/arenas/turns.py",
        "kprof/recording/rank/waits.py",
        "kprof/recording/launches/wanted.py",
        "kprof/recording/rank/watchdog.py",
    ),
    "first screen, notebooks, rates": (
        "kprof/run.py",
        "kprof/analysis/achieved.py",
        "kprof/recording/rank/ceilings.py",
        "kprof/export/grouping.py",
        "kprof/export/overview.py",
        "kprof/report/markdown.py",
        "kprof/report/opening.py",
        "kprof/report/timeline.py",
        "kprof/report/figures/small.py",
        "kprof/report/figures/svg.py",
        "cli/kprof_cli/new.py",
        "cli/kprof_cli/templates",
    ),
    "kernels for one GPU": (
        "instrumented_kernels/moe_align_sort",
        "instrumented_kernels/rms_norm_fp8",
        "instrumented_kernels/skinny_gemm",
        "instrumented_kernels/swiglu_fp8",
        "instrumented_kernels/fp8.py",
        "instrumented_kernels/fp8_workload.py",
        "instrumented_kernels/local_plan.py",
        "instrumented_kernels/repeated_calls.py",
        "instrumented_kernels/ops.py",
        "instrumented_kernels/device/block_sums.h",
        "instrumented_kernels/device/fp8_rows.h",
        "instrumented_kernels/device/local_call.h",
        "kprof/include/kprof/compute.h",
        "kprof/include/kprof/platform/compute_cpu.h",
        "kprof/include/kprof/platform/compute_cuda.h",
        "kprof/include/kprof/platform/compute_hip.h",
        "kprof/include/kprof/platform/fp8.h",
    ),
    "Triton": (
        "kprof/triton",
        "instrumented_kernels/triton_collectives",
        "instrumented_kernels/triton_matmul",
    ),
    "damaged input, ranks that die or disagree": (
        "kprof/capture/checksums.py",
        "kprof/capture/checks.py",
        "kprof/capture/claims.py",
        "kprof/capture/files.py",
        "kprof/capture/parts.py",
        "kprof/recording/arenas/arena_state.py",
        "kprof/recording/finishing/finishing.py",
        "kprof/recording/decoding/inspection.py",
        "kprof/recording/endings/lifetime.py",
        "kprof/recording/finishing/recover.py",
        "kprof/recording/rank/saver.py",
        "kprof/recording/launcher/stopping.py",
        "instrumented_kernels/call_ledger.py",
        "instrumented_kernels/plan_cache.py",
    ),
}
# Files of BEFORE whose feature is gone: the findings above took its place.
REPLACED = ("kprof/analysis/rules", "kprof/report/verdict.py")


@dataclass(frozen=True)
class Size:
    """The product code of a checkout."""

    python: dict[str, int]  # lines of code by path
    cpp: dict[str, int]
    functions: list[tuple[int, str]]  # (length, path:name), the longest first
    num_modules: int  # at the top level of kprof
    num_packages: int
    num_edges: int
    num_any: int

    @staticmethod
    def of(root: Path) -> Size:
        paths = [path for folder in PRODUCT for path in sorted((root / folder).rglob("*"))]
        python = [path for path in paths if path.suffix == ".py"]
        cpp = [path for path in paths if path.suffix in CPP_SUFFIXES]
        package = root / "kprof"
        return Size(
            {str(path.relative_to(root)): num_python_lines(path.read_text()) for path in python},
            {str(path.relative_to(root)): num_cpp_lines(path.read_text()) for path in cpp},
            sorted(
                (
                    (length, f"{path.relative_to(root)}:{name}")
                    for path in python
                    for length, name in functions_of(path)
                ),
                reverse=True,
            ),
            len([path for path in package.glob("*.py") if path.stem != "__init__"]),
            len(list(package.glob("*/__init__.py"))),
            len({edge for path in package.rglob("*.py") for edge in edges_of(path, package)}),
            sum(num_uses_of_any(path.read_text()) for path in python),
        )

    def without(self, left_out: tuple[str, ...]) -> int:
        """Lines of Python and C++ in all other files and folders."""
        return sum(
            lines
            for path, lines in (self.python | self.cpp).items()
            if not any(path == each or path.startswith(f"{each}/") for each in left_out)
        )

    def rows(self) -> list[tuple[str, str]]:
        lengths = sorted(length for length, _ in self.functions)
        return [
            ("lines of Python", f"{sum(self.python.values()):,}"),
            ("lines of C++", f"{sum(self.cpp.values()):,}"),
            ("files", str(len(self.python) + len(self.cpp))),
            ("functions", str(len(lengths))),
            ("median length", f"{statistics.median(lengths):.0f}"),
            ("90th percentile", str(lengths[int(0.9 * len(lengths))])),
            ("longest", str(lengths[-1])),
            ("modules at the root of kprof", str(self.num_modules)),
            ("packages below it", str(self.num_packages)),
            ("import edges between these", str(self.num_edges)),
            ("lines with `Any`", str(self.num_any)),
        ]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--against", metavar="COMMIT", help=f"such as {BEFORE}")
    options = parser.parse_args()
    now = Size.of(ROOT)
    if options.against is None:
        for what, number in now.rows():
            print(f"{what:30} {number:>8}")
    else:
        compare(Size.of(checkout(options.against)), now)
    print("\nlongest functions of this checkout:")
    for length, name in now.functions[:15]:
        print(f"  {length:4} {name}")


def compare(before: Size, now: Size) -> None:
    print(f"{'':44} {'before':>8} {'now':>8}")
    for (what, one), (_, other) in zip(before.rows(), now.rows(), strict=True):
        print(f"{what:44} {one:>8} {other:>8}")
    added = tuple(path for paths in ADDED.values() for path in paths)
    for feature, paths in ADDED.items():
        print(f"added: {feature:37} {'':>8} {now.without(()) - now.without(paths):>8,}")
    print(f"{'replaced by them':44} {before.without(()) - before.without(REPLACED):>8,}")
    rest_before, rest_now = before.without(REPLACED), now.without(added)
    change = rest_now / rest_before - 1
    print(f"{'all other files':44} {rest_before:>8,} {rest_now:>8,} {change:>+8.1%}")


def checkout(commit: str) -> Path:
    """The product code of a commit, in a temporary folder."""
    folder = Path(tempfile.mkdtemp(prefix="code_size-"))
    archive = subprocess.run(
        ["git", "-C", ROOT, "archive", commit, *PRODUCT], check=True, capture_output=True
    ).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        files.extractall(folder, filter="data")
    return folder


def num_uses_of_any(text: str) -> int:
    """Lines that use `Any` in an annotation, imports not counted."""
    return len(
        {
            node.lineno
            for node in ast.walk(ast.parse(text))
            if isinstance(node, ast.Name) and node.id == "Any"
        }
    )


def num_python_lines(text: str) -> int:
    """Lines with code, docstrings left out."""
    docstrings = {
        line
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    used = {
        line
        for token in tokens
        if token.type not in _NOT_CODE
        for line in range(token.start[0], token.end[0] + 1)
    }
    return len(used - docstrings)


def num_cpp_lines(text: str) -> int:
    """Lines that are neither blank nor a comment as a whole."""
    stripped = (line.strip() for line in text.splitlines())
    return sum(bool(line) and not line.startswith(("//", "/*", "*")) for line in stripped)


def functions_of(path: Path) -> Iterator[tuple[int, str]]:
    """Length, the docstring included, and name of every function."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield (node.end_lineno or node.lineno) - node.lineno + 1, node.name


def edges_of(path: Path, package: Path) -> Iterator[tuple[str, str]]:
    """(importing, imported) between the modules and packages right below kprof, imports inside functions included."""
    importing = path.relative_to(package).parts[0].removesuffix(".py")
    for node in ast.walk(ast.parse(path.read_text())):
        names: list[str] = []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = (
                [node.module]
                if node.module != "kprof"
                else [f"kprof.{alias.name}" for alias in node.names]
            )
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        for name in names:
            parts = name.split(".")
            if parts[0] == "kprof" and len(parts) > 1 and parts[1] != importing:
                yield importing, parts[1]


if __name__ == "__main__":
    main()
