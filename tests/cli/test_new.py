"""`kprof new`: what it writes, and what it refuses. tests/docs/test_own_kernel_page.py builds and records it."""

from __future__ import annotations

from pathlib import Path

import pytest

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
