"""`kprof align`, `kprof merge` and `kprof import --from-flows` through the command line."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest

from unaligned import Writer, chrome, parts_of


def test_align_prints_the_bound_and_what_has_none(kprof, tmp_path: Path) -> None:
    path = Writer(3).exchange(0, 1).write(tmp_path / "run.kprof")
    result = kprof("align", str(path))
    assert result.code == 0
    assert "2 ranks on the clock of rank 0, any two within " in result.out
    assert "not      rank 2: no message bounds the clock from both sides" in result.out


def test_align_takes_several_captures_and_one_output(kprof, tmp_path: Path) -> None:
    paths = [str(Writer(2, i).exchange(0, 1).write(tmp_path / f"{i}.kprof")) for i in range(2)]
    assert kprof("align", *paths, "-o", str(tmp_path / "o.kprof")).code == 2
    assert kprof("align", *paths).out.count("aligned") == 2


def test_merge_aligns_what_is_not_and_says_what_is_missing(kprof, tmp_path: Path) -> None:
    whole = Writer(4).exchange(0, 1, 2, 3, count=60).write(tmp_path / "whole.kprof")
    first, second, third = map(str, parts_of(whole, [0], [1, 2], [3]))
    result = kprof("merge", third, first, second, "-o", str(tmp_path / "run.kprof"))
    assert result.code == 0
    assert "merged   " in result.out
    assert "4 of 4 ranks" in result.out
    assert "4 ranks on the clock of rank 0" in result.out
    result = kprof("merge", second, "-o", str(tmp_path / "half.kprof"))
    assert "missing  ranks 0, 3: in none of the parts" in result.out


def test_parts_that_cannot_be_aligned_are_merged_all_the_same(kprof, tmp_path: Path) -> None:
    whole = Writer(2).meet(range(2)).write(tmp_path / "whole.kprof")
    parts = map(str, parts_of(whole, [0], [1]))
    result = kprof("merge", *parts, "-o", str(tmp_path / "run.kprof"))
    assert result.code == 0
    assert "no two ranks bound each other" in result.err
    assert kprof("info", str(tmp_path / "run.kprof")).code == 0


def test_an_import_is_aligned_by_its_collectives(kprof, tmp_path: Path) -> None:
    file, path = chrome(tmp_path / "t.json", 8, 40), tmp_path / "run.kprof"
    given = ["import", str(file), "--tick-ns", "1", "-o", str(path), "--from-flows"]
    result = kprof(*given)
    assert result.code == 0, result.err
    assert "8 ranks on the clock of rank 0" in result.out
    assert kprof(*given, "-f", "--bound", "1us").code == 2


def test_parts_in_a_folder_and_behind_a_url_are_found(
    kprof, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = pytest.importorskip("fsspec").filesystem("memory")
    copies = tmp_path / "copies"
    copies.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(copies))
    shared = tmp_path / "shared"
    shared.mkdir()
    whole = Writer(4).exchange(0, 1, 2, 3, count=60).write(tmp_path / "whole.kprof")
    first, second, third = parts_of(whole, [0], [1, 2], [3])
    shutil.move(first, shared)
    shutil.move(second, shared)
    storage.put(f"{third}/", "/bucket/run/host2.kprof/", recursive=True)
    storage.pipe_file("/bucket/run/host2.kprof/deeper/notes", b"not of the capture")
    result = kprof("merge", str(shared), "memory://bucket/run", "-o", str(tmp_path / "run.kprof"))
    assert result.code == 0, result.err
    assert "4 of 4 ranks" in result.out
    assert not list(copies.iterdir())


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("memory://nothing", "holds no capture"),
        ("nosuch://bucket/run", "nosuch://bucket/run cannot be read: Protocol not known: nosuch"),
    ],
)
def test_a_url_that_leads_to_no_capture_is_named(
    kprof, tmp_path: Path, url: str, said: str
) -> None:
    pytest.importorskip("fsspec")
    result = kprof("merge", url, "-o", str(tmp_path / "run.kprof"))
    assert result.code == 1
    assert said in result.err
