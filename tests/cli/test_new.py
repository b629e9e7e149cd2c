"""`kprof new`: the folder that it writes runs as it is, under any name, and records what its kernel does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import kprof
from kprof.regions import RegionTable
from kprof_cli.main import run
from kprof_cli.new import FILES, TEMPLATE


def test_every_file_of_the_template_is_written() -> None:
    assert {path.name for path in TEMPLATE.iterdir() if path.is_file()} == set(FILES)


def test_the_name_is_put_in_everywhere(tmp_path: Path) -> None:
    assert run(["new", str(tmp_path / "ring_add")]) == 0
    texts = [(tmp_path / "ring_add" / name).read_text() for name in FILES]
    assert not any("my_kernel" in text for text in texts)
    assert any("void ring_add(" in text for text in texts)


@pytest.mark.parametrize("name", ["3rd", "a-b", "my kernel", "launch", "..", "a;b"])
def test_names_that_no_compiler_takes_are_refused(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["new", str(tmp_path / "x" / name)]) == 2
    assert "cannot be the name of a kernel" in capsys.readouterr().err
    assert not (tmp_path / "x").exists()


def test_nothing_is_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine").mkdir()
    assert run(["new", str(tmp_path / "mine")]) == 1
    assert "mine exists" in capsys.readouterr().err
    assert list((tmp_path / "mine").iterdir()) == []


def test_the_folder_is_recorded_at_once(tmp_path: Path) -> None:
    assert run(["new", str(tmp_path / "adder")]) == 0
    python = Path(sys.executable)
    answer = subprocess.run(
        ["make", "NPROC=2"],
        cwd=tmp_path / "adder",
        env={**os.environ, "PATH": f"{python.parent}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert "finding  " in answer.stdout
    trace = kprof.open(tmp_path / "adder" / "run.kprof")
    table = RegionTable.from_header(TEMPLATE / "regions.h")
    assert set(trace.to_pandas()["region"]) == set(table.names)
    # Eight calls, 16 rows, each sum sent by two ranks to two ranks.
    assert len(trace.flows()) == 8 * 16 * 2 * 2
    tiles = trace.frame(
        "SELECT rank, count(*) AS n FROM events WHERE region = 'add' GROUP BY ALL ORDER BY rank"
    )
    assert tiles["n"].tolist() == [8 * 16 * 64, 8 * 16 * 16]
    assert set(trace.launches()["kernel"]) == {"adder"}
