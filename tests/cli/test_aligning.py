"""`kprof align`, `kprof merge` and `kprof import --from-flows` through the command line."""

from __future__ import annotations

from pathlib import Path

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
