"""`kprof import`, `kprof export --torch`, `kprof align` and `kprof merge`: what others recorded, through the command line."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest

from synthetic import TraceBuilder
from unaligned import Writer, parts_of
from unaligned import chrome as chrome_of_ranks

REGIONS = 'REGION(R_SEND, "send", send)\nREGION(R_RECV, "recv", wait)\n'


@pytest.fixture
def buffers(tmp_path):
    """Two ranks: start, duration, tag, threadblock in ticks."""
    files = []
    for rank in (0, 1):
        files.append(tmp_path / f"rank{rank}.bin")
        np.array([2, 100 + rank, 5, 0, 3, 110, 7, 1, 4], dtype="<i8").tofile(files[-1])
    return files


@pytest.fixture
def chrome(tmp_path):
    event = {"ph": "X", "name": "copy", "pid": 1, "tid": 4, "ts": 10, "dur": 3}
    file = tmp_path / "trace.json"
    file.write_text(json.dumps({"traceEvents": [event]}))
    return file


@pytest.fixture
def table(tmp_path):
    file = tmp_path / "events.csv"
    file.write_text("rank,block,region,start_ns,duration_ns\n0,1,copy,5,9\n")
    return file


def events(kprof, run):
    columns = "rank, block, region, start_ns, duration_ns"
    query = f"SELECT {columns} FROM events ORDER BY rank, start_ns"
    return [
        tuple(row.values()) for row in json.loads(kprof("query", run, query, "--json").out)["rows"]
    ]


def test_classic_buffers_become_a_capture(kprof, buffers, tmp_path):
    (tmp_path / "regions.h").write_text(REGIONS)
    run = tmp_path / "run.kprof"
    options = ["--kind", "classic", "--names", "send,recv", "--regions", tmp_path / "regions.h"]
    result = kprof("import", *buffers, "-o", run, *options, "--tick-ns", 20, "--bound", "100ns")
    assert (result.code, result.err) == (0, "")
    assert f"{run}: 4 events of 2 ranks" in result.out
    assert result.out.splitlines()[-1] == f"next     kprof report {run}"
    assert events(kprof, run)[:2] == [(0, 3, "send", 2000, 100), (0, 4, "recv", 2200, 140)]
    waits = json.loads(kprof("waits", run, "--json").out)["rows"]
    assert [row["wait_ns"] for row in waits] == [140, 140]
    assert "within 100 ns" in kprof("info", run).out


def test_one_table_says_what_was_taken_for_what(kprof, chrome, tmp_path):
    result = kprof("import", chrome, "-o", tmp_path / "run.kprof")
    lines = [line.split("  ") for line in result.out.splitlines()]
    said = {cells[0].strip(): [c.strip() for c in cells[1:] if c.strip()] for cells in lines}
    assert said["format"] == ["chrome", "--kind"]
    assert said["rank"] == ["pid"]
    assert said["block"] == ["tid", "--rank-in-tid, if thread ids include the rank"]
    assert said["clock"] == ["microseconds, as the format says", "--tick-ns NS"]
    assert said["category compute"] == ["copy (a guess)", "--regions FILE"]


def test_a_file_of_no_format_is_one_line(kprof, tmp_path):
    (tmp_path / "notes").write_text("what I saw")
    result = kprof("import", tmp_path / "notes", "-o", tmp_path / "run.kprof")
    assert result.code == 1
    assert "does not recognise" in result.error_line
    assert "--kind" in result.error_line


def test_tags_without_names_are_said(kprof, buffers, tmp_path):
    result = kprof("import", buffers[0], "-o", tmp_path / "run.kprof", "--kind", "classic")
    assert result.code == 0
    assert "numbers of tags" in result.out
    assert "--names a,b,c" in result.out


def test_a_table_becomes_a_capture_once(kprof, table, tmp_path):
    line = ["import", table, "-o", tmp_path / "run.kprof", "--kind", "table"]
    assert kprof(*line).code == 0
    assert events(kprof, tmp_path / "run.kprof") == [(0, 1, "copy", 5, 9)]
    assert "--force" in kprof(*line).error_line
    assert kprof(*line, "--force").code == 0


@pytest.mark.parametrize("kind", ["classic", "chrome", "table"])
def test_a_file_of_another_format_is_one_line(kprof, tmp_path, kind):
    file = tmp_path / "picture.csv"
    file.write_bytes(b"\x89PNG")
    result = kprof("import", file, "-o", tmp_path / "run.kprof", "--kind", kind)
    assert result.code == 1
    assert "picture.csv" in result.error_line
    assert not (tmp_path / "run.kprof").exists()


@pytest.mark.parametrize(
    ("kind", "options", "sentence"),
    [
        ("table", ["--names", "a"], "--names is for"),
        ("table", ["--tick-ns", "5"], "--tick-ns is for"),
        ("classic", ["--rank-in-tid"], "--rank-in-tid is for"),
        ("chrome", ["--tick-ns", "0"], "above 0"),
        ("chrome", ["second.json"], "takes one file"),
    ],
)
def test_an_option_that_would_do_nothing_is_a_usage_error(kprof, table, kind, options, sentence):
    result = kprof("import", table, "--kind", kind, *options)
    assert result.code == 2
    assert sentence in " ".join(result.err.split())


@pytest.fixture
def launched(tmp_path):
    """Two ranks, one kernel each, from 1 us to 5 us."""
    build = TraceBuilder('REGION(R_COPY, "copy", compute)\n', 2)
    build.launch(1, "all_reduce")
    for rank in (0, 1):
        build.span(rank, "copy", 1000, 4000, block=0, launch=1)
    return build.write(tmp_path / "launched.kprof").path


@pytest.fixture
def profiles(tmp_path):
    """What the PyTorch profiler saw: the same kernel, 100 ns longer at both ends, on a clock 1 ms ahead."""
    for rank in (0, 1):
        kernel = {"ph": "X", "cat": "kernel", "name": "all_reduce", "tid": 7}
        seen = [kernel | {"ts": 1000.9, "dur": 4.2}]
        document = {"distributedInfo": {"rank": rank}, "traceEvents": seen}
        (tmp_path / f"trace_rank{rank}.json").write_text(json.dumps(document))
    return tmp_path


def test_torch_traces_by_pattern_or_by_name(kprof, launched, profiles, tmp_path):
    names = [word for rank in (0, 1) for word in ("--torch", profiles / f"trace_rank{rank}.json")]
    for i, chosen in enumerate((["--torch", profiles / "trace_rank*.json"], names)):
        file = tmp_path / f"out{i}.json"
        result = kprof("export", launched, "-o", file, *chosen)
        assert result.code == 0
        assert "aligned with the device clock within 100 ns" in result.err
        assert file.read_text().count("PyTorch stream 7") == 2


def test_a_pattern_that_matches_nothing_is_one_line(kprof, launched, tmp_path):
    file = tmp_path / "out.json"
    result = kprof("export", launched, "-o", file, "--torch", tmp_path / "none*.json")
    assert result.code == 1
    assert "matches no file" in result.error_line
    assert not file.exists()


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
    file, path = chrome_of_ranks(tmp_path / "t.json", 8, 40), tmp_path / "run.kprof"
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
