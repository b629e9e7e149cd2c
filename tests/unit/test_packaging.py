"""What users install: the wheel is complete, and importing kprof does no work."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
# What reading the version, the errors or the help must not load.
HEAVY = {"torch", "pandas", "duckdb", "pyarrow", "plotly", "perfetto", "jinja2", "numpy"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> zipfile.ZipFile:
    directory = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", directory],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    (file,) = directory.iterdir()
    return zipfile.ZipFile(file)


def test_the_wheel_holds_everything_that_is_not_python(wheel):
    sources = [
        file.relative_to(ROOT).as_posix()
        for package in ("kprof", "instrumented_kernels")
        for file in (ROOT / package).rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    ]
    assert {".h", ".hip", ".typed", ".j2"} <= {Path(name).suffix for name in sources}
    assert {*sources, "kprof_cli/main.py"} <= set(wheel.namelist())


def test_the_wheel_takes_no_other_top_level_name(wheel):
    tops = {name.split("/")[0] for name in wheel.namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == {
        "kprof",
        "kprof_cli",
        "instrumented_kernels",
    }


def loaded_by(code: str) -> set[str]:
    """Top-level modules in a fresh interpreter after `code`."""
    program = f"{code}\nimport sys\nprint(*sorted({{name.split('.')[0] for name in sys.modules}}))"
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    return set(run.stdout.splitlines()[-1].split())


def test_a_recorder_that_is_off_and_errors_load_nothing_heavy():
    code = "import kprof; kprof.KprofError; assert kprof.recorder().launch('copy').arena == 0"
    assert loaded_by(code) & HEAVY == set()


def test_the_help_of_every_command_is_quick():
    commands = [
        "record", "info", "stats", "waits", "report", "export", "view", "query", "demo", "doctor",
    ]  # fmt: skip
    code = (
        "from kprof_cli.main import run\n"
        f"for name in {commands!r}: assert run([name, '--help']) == 0"
    )
    assert loaded_by(code) & HEAVY == set()


def test_reading_a_capture_never_loads_torch(tmp_path):
    from synthetic import TraceBuilder

    build = TraceBuilder('REGION(A, "a", compute)', 1)
    build.span(0, "a", 0, 1)
    run = build.write(tmp_path / "run.kprof").path
    code = (
        "from kprof_cli.main import run\n"
        "for name in ('info', 'stats', 'waits', 'report'):\n"
        f"    assert run([name, {str(run)!r}]) == 0"
    )
    assert "torch" not in loaded_by(code)
