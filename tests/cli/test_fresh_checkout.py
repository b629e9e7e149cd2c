"""The README's commands, typed in a fresh checkout with a home that nobody has used. What reading a capture does without:
pyarrow, plotly and torch; and how much it installs."""

from __future__ import annotations

import contextlib
import importlib.metadata
import re
import shutil
import subprocess
import sys
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


TRACES = ROOT / "traces"
ONE, OTHER = (
    TRACES / f"all_reduce-{name}-4xH200.kprof" for name in ("oneshot_lock", "oneshot_serial")
)
ABSENT = ("pyarrow", "plotly", "torch")
MOST_BYTES = 300_000_000
# Refuses the packages, as a Python without them does.
REFUSING = f"""
import sys
class Refusing:
    def find_spec(self, name, *_):
        if name.partition(".")[0] in {ABSENT!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Refusing())
"""


def commands(output: Path) -> list[list[object]]:
    """What a reader does with captures."""
    sql = "SELECT region, sum(duration_ns) AS ns FROM events GROUP BY ALL ORDER BY ALL"
    flows = "SELECT count(*) AS number FROM flows"
    return [
        ["info", ONE],
        ["stats", ONE, "--by", "block"],
        ["waits", ONE, "--by", "sender"],
        ["explain", ONE],
        ["diff", ONE, OTHER],
        ["diff", ONE, OTHER, "-o", output / "diff.html"],
        ["report", ONE, "--json"],
        ["report", ONE, "-o", output / "report.html"],
        ["query", ONE, sql, "--csv"],
        ["query", ONE, flows],
        ["export", ONE, "-o", output / "trace.pftrace"],
        ["export", ONE, "-o", output / "roles.json.gz", "--by", "role"],
        ["export", ONE, "-o", output / "processors.pftrace", "--by", "processor"],
        ["plot", ONE, "ribbon"],
        ["plot", ONE, "ribbon", "-o", output / "ribbon.svg"],
        ["align", ONE, "-o", output / "aligned.kprof"],
    ]


def reading(lines: list[list[object]]) -> str:
    """A program that runs commands, and prints on stderr how each ended."""
    lines = [list(map(str, line)) for line in lines]
    return f"""
import sys
from kprof_cli.main import run
for line in {lines!r}:
    print(run(line), line, file=sys.stderr)
"""


def check(program: list[object], output: Path) -> None:
    """Run that program: every command ends well."""
    run = subprocess.run(program, cwd=output, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    codes = [line[0] for line in run.stderr.splitlines() if re.match(r"\d \[", line)]
    assert set(codes) == {"0"}, run.stderr
    assert (output / "report.html").stat().st_size > 100_000


def refusing(code: str) -> subprocess.CompletedProcess[str]:
    """Run a program without the packages."""
    program = [sys.executable, "-c", REFUSING + code]
    return subprocess.run(program, cwd=ROOT, capture_output=True, text=True)


@pytest.mark.slow
def test_readers_commands_work_without_what_they_do_not_install(tmp_path):
    check([sys.executable, "-c", REFUSING + reading(commands(tmp_path))], tmp_path)


NEEDS = re.compile(r"(?:kprof: )?.* needs (\w+), which is not installed: pip install \1")


@pytest.mark.slow
@pytest.mark.parametrize(
    "line",
    [
        ["record", "-o", "new.kprof", "--", "true"],
        ["recover", "cut.kprof.unfinished"],
        ["import", "events.csv", "-o", "new.kprof"],
        ["export", ONE, "-o", "new.csv"],
    ],
)
def test_commands_that_need_a_package_name_what_installs_it(tmp_path, line):
    (tmp_path / "events.csv").write_text("rank,block,region,start_ns,duration_ns\n0,0,a,0,1\n")
    cut = tmp_path / "cut.kprof.unfinished"
    cut.mkdir()
    (cut / "said").touch()
    run = refusing(
        f"import os\nos.chdir({str(tmp_path)!r})\n"
        f"from kprof_cli.main import run\nsys.exit(run({list(map(str, line))!r}))"
    )
    assert run.returncode == 1
    assert needed(run.stderr) == "pyarrow"
    assert not list(tmp_path.glob("new*"))


def needed(sentence: str) -> str:
    """The package that a sentence says to install."""
    found = NEEDS.fullmatch(sentence.strip())
    assert found, sentence
    return found[1]


@pytest.mark.slow
def test_python_says_what_figures_and_arrow_tables_need():
    run = refusing(f"""
import kprof
from kprof.hangs.asking import ask
trace = kprof.open({str(ONE)!r})
assert len(trace.flows()) and len(trace.to_pandas())
uses = [trace.timeline, trace.ribbon, lambda: trace.query("SELECT 1"), lambda: trace.sql("SELECT 1"),
    lambda: trace.batches("SELECT 1"), lambda: ask(trace, for_records=True)]
for use in uses:
    try:
        use()
    except kprof.KprofError as error:
        print(error)
""")
    packages = [needed(line) for line in run.stdout.splitlines()]
    assert packages == ["plotly"] * 2 + ["pyarrow"] * 4, run.stderr


@pytest.mark.slow
def test_a_program_runs_on_where_its_recorder_lacks_a_package(tmp_path):
    run = refusing(f"""
import os
os.environ["KPROF_RECORD_DIR"] = {str(tmp_path)!r}
import kprof
print(kprof.recorder().is_recording, kprof.recorder().launch("copy").arena)
""")
    assert (run.returncode, run.stdout) == (0, "False 0\n")
    assert needed(run.stderr.partition("records nothing: ")[2]) == "pyarrow"


def needed_by(requirements: list[str]) -> set[str]:
    """Packages with all that these need, as installed here, without extras."""
    found, ahead = set(), list(requirements)
    while ahead:
        requirement, _, marker = ahead.pop().partition(";")
        name = re.split(r"[^\w.-]", requirement)[0].lower()
        # What is another system's or another Python's is not installed here.
        if name in found or "extra" in marker or not is_installed(name):
            continue
        found.add(name)
        ahead += importlib.metadata.requires(name) or ()
    return found


def is_installed(name: str) -> bool:
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return bool(importlib.metadata.version(name))
    return False


def test_a_reader_needs_less_than_300_megabytes():
    """As the packages' own lists of files say."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    listed = re.search(r"^dependencies = \[(.*?)^\]", text, re.MULTILINE | re.DOTALL)
    assert listed
    names = needed_by(re.findall(r'"(.*)"', listed[1]))
    assert {"duckdb", "numpy", "pandas"} <= names
    assert not names & {*ABSENT, "triton"}
    files = [file for name in names for file in importlib.metadata.files(name) or ()]
    assert sum(file.size or 0 for file in files) < MOST_BYTES


@pytest.mark.slow
def test_a_wheel_in_a_bare_environment_is_small_and_reads(tmp_path):
    build = [sys.executable, "-m", "hatchling", "build", "-d", tmp_path]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    assert list(tmp_path.glob("kprof*.tar.gz"))
    (wheel,) = tmp_path.glob("kprof*.whl")
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", venv], check=True)
    python = venv / "bin" / "python"
    install = [python, "-m", "pip", "install", "-q", wheel]
    installed = subprocess.run(install, cwd=tmp_path, capture_output=True, text=True)
    if "No matching distribution" in installed.stderr:
        pytest.skip("needs a package index")
    assert installed.returncode == 0, installed.stderr
    # Outside of the checkout, whose folders would be imported instead.
    some = [line for line in commands(tmp_path) if line[0] in ("report", "query", "export")]
    check([python, "-W", "error", "-c", reading(some)], tmp_path)
    (packages,) = venv.glob("lib/python3*/site-packages")
    assert not [name for name in ABSENT if (packages / name).exists()]
    files = [path.lstat().st_size for path in packages.rglob("*") if path.is_file()]
    assert sum(files) < MOST_BYTES
    shutil.rmtree(venv)
