"""Bad input: one clear line on stderr, nothing on stdout, the right exit code."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

READERS = [
    ["info", "RUN"],
    ["stats", "RUN"],
    ["waits", "RUN"],
    ["report", "RUN"],
    ["query", "RUN", "SELECT 1"],
    ["export", "RUN", "-o", "OUT"],
    ["view", "RUN", "--no-open"],
    ["diff", "RUN", "RUN"],
]


def arguments(command, run, tmp_path):
    names = {"RUN": str(run), "OUT": str(tmp_path / "out.pftrace")}
    return [names.get(word, word) for word in command]


def no_such(tmp_path, small):
    return tmp_path / "nothing.kprof", "does not exist"


def no_capture(tmp_path, small):
    (tmp_path / "folder").mkdir()
    return tmp_path / "folder", "is not a capture"


def newer(tmp_path, small):
    manifest = json.loads((small / "manifest.json").read_text())
    (small / "manifest.json").write_text(json.dumps(manifest | {"format_version": 99}))
    return small, "upgrade kprof"


def damaged_manifest(tmp_path, small):
    text = (small / "manifest.json").read_text()
    (small / "manifest.json").write_text(text[: len(text) // 2])
    return small, "manifest.json is damaged"


def truncated_events(tmp_path, small):
    data = (small / "rank-00001.parquet").read_bytes()
    (small / "rank-00001.parquet").write_bytes(data[:-20])
    return small, "rank-00001.parquet is damaged"


def missing_events(tmp_path, small):
    (small / "rank-00000.parquet").unlink()
    return small, "rank-00000.parquet is missing"


def strange_rank(tmp_path, small):
    manifest = json.loads((small / "manifest.json").read_text())
    manifest["alignment"]["ranks"][1]["rank"] = 7
    (small / "manifest.json").write_text(json.dumps(manifest))
    return small, "it names rank 7 in a run of 2"


@pytest.mark.parametrize(
    ("command", "damage"),
    [
        *((command, damaged_manifest) for command in READERS),
        *(
            (READERS[1], damage)
            for damage in (
                no_such,
                no_capture,
                newer,
                truncated_events,
                missing_events,
                strange_rank,
            )
        ),
    ],
    ids=lambda value: value.__name__ if callable(value) else value[0],
)
def test_every_reader_says_what_is_wrong_with_a_capture(kprof, small, tmp_path, command, damage):
    run, sentence = damage(tmp_path, small)
    result = kprof(*arguments(command, run, tmp_path))
    assert result.code == 1
    assert sentence in result.error_line
    assert not (tmp_path / "out.pftrace").exists()


NO_SELECTIONS = [
    ("--ranks", "5", "rank 5 was not recorded"),
    ("--ranks", "0-", "neither a number nor a range"),
    ("--launches", "999", "--launches 999 leaves no events"),
    ("--blocks", "x", "--blocks 'x'"),
    ("--regions", "nothing/*", "no region matches"),
    ("--time", "soon", "write it like 10us..50us"),
    ("--time", "5s..6s", "--time 5s..6s leaves no events: there are launches 0-0 and blocks"),
    ("--blocks", "999", "--blocks 999 leaves no events: there are launches 0-0 and blocks"),
]


@pytest.mark.parametrize(
    ("command", "option", "value", "sentence"),
    [
        *((command, *NO_SELECTIONS[0]) for command in READERS[2:]),
        *((READERS[1], *selection) for selection in NO_SELECTIONS),
    ],
)
def test_a_selection_that_cannot_be_read_is_one_line(
    kprof, small, tmp_path, command, option, value, sentence
):
    result = kprof(*arguments(command, small, tmp_path), option, value)
    assert result.code == 2
    assert sentence in result.error_line


@pytest.mark.parametrize("command", ["report", "diff", "export"])
def test_a_folder_that_does_not_exist_is_said_before_the_work_is_done(
    kprof, small, tmp_path, command, monkeypatch
):
    def work(*_arguments, **_options):
        raise AssertionError("the capture was opened")

    monkeypatch.setattr("kprof.trace.Trace.open", work)
    name = "out.pftrace" if command == "export" else "out.html"
    output = tmp_path / "nowhere" / name
    runs = [small] * (2 if command == "diff" else 1)
    result = kprof(command, *runs, "-o", output)
    assert result.code == 1
    assert result.error_line.endswith(
        "No such file or directory; make its folder first, or choose another -o"
    )


@pytest.mark.parametrize("sql", ["SELEC 1", "SELECT nothing", "SELECT * FROM '/etc/passwd'", ""])
def test_a_query_that_is_refused_is_one_line(kprof, small, sql):
    result = kprof("query", small, sql)
    assert result.code == 2
    assert "query" in result.error_line


@pytest.mark.parametrize(
    "line",
    [
        ["stats"],
        ["stats", "run.kprof", "--nonsense"],
        ["nonsense"],
        ["record"],
        ["record", "--nproc", "many", "--", "true"],
        ["stats", "run.kprof", "--by", "colour"],
        ["export", "run.kprof"],
    ],
)
def test_usage_errors_exit_with_2(kprof, line):
    result = kprof(*line)
    assert result.code == 2
    assert result.out == ""
    assert "Usage" in result.err


def test_debug_shows_the_traceback_before_the_line(kprof, tmp_path):
    for line in (["--debug", "stats", "nothing"], ["stats", "nothing", "--debug"]):
        result = kprof(*line)
        assert result.code == 1
        assert "Traceback" in result.err
        assert result.err.splitlines()[-1].startswith("kprof: nothing does not exist")


def test_a_recorded_command_keeps_its_own_debug_flag(kprof, tmp_path):
    result = kprof("record", "-o", tmp_path / "run.kprof", "no-such-command", "--debug")
    assert "Traceback" not in result.err


def test_an_interrupted_reader_exits_with_130(kprof, small, monkeypatch):
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("kprof.analysis.stats", interrupt)
    result = kprof("stats", small)
    assert (result.code, result.err) == (130, "")


def test_a_system_that_gives_no_threads_is_one_line(kprof, small, monkeypatch):
    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("kprof.analysis.stats", refuse)
    result = kprof("stats", small)
    assert result.code == 1
    assert "not let this process start more threads" in result.error_line


@pytest.mark.parametrize("flags", [[], ["--csv"]])
def test_a_reader_that_goes_away_is_not_an_error_message(small, flags):
    command = [
        sys.executable,
        "-m",
        "kprof_cli",
        "query",
        str(small),
        "SELECT * FROM range(20000)",
    ]
    reading, writing = os.pipe()
    os.close(reading)
    process = subprocess.run(
        [*command, "--limit", "0", *flags], stdout=writing, stderr=subprocess.PIPE, text=True
    )
    os.close(writing)
    assert process.stderr == ""


def test_help_and_version(kprof):
    assert kprof("--version").out.startswith("kprof 0.")
    listed = kprof("--help").out
    names = "record info stats waits report explain export view query diff import demo doctor"
    for name in names.split():
        assert name in listed
        assert kprof(name, "--help").code == 0


@pytest.mark.parametrize(
    ("command", "name"),
    [("report", "x.pdf"), ("diff", "x.md"), ("export", "x.foo"), ("export", "x.html")],
)
def test_names_that_say_another_format_are_refused_before_any_work(
    kprof, small, tmp_path, monkeypatch, command, name
):
    def no_work(*_):
        raise AssertionError("work was done")

    monkeypatch.setattr("kprof_cli.reading.open_trace", no_work)
    monkeypatch.setattr("kprof_cli.exporting.open_capture", no_work)
    monkeypatch.setattr("kprof_cli.reporting.open_trace", no_work)
    runs = (small, small) if command == "diff" else (small,)
    result = kprof(command, *runs, "-o", tmp_path / name)
    assert result.code == 2
    assert name in result.err
    assert len(result.err.splitlines()) == 1
    assert not (tmp_path / name).exists()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("junk.txt", b"any text"),
        ("page.pftrace", b"<!doctype html>"),
        ("lines.pftrace", b"\n\nlines\n"),
        ("empty.pftrace", b""),
        ("manifest.json", b'{"format_version": 3}'),
        ("broken.json.gz", b"\x1f\x8bno"),
    ],
)
def test_view_refuses_files_that_are_no_trace(kprof, tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    result = kprof("view", tmp_path / name, "--no-open", "--port", 0, "--timeout", 0)
    assert result.code == 1
    assert "neither a capture nor a trace" in result.err
    assert len(result.err.splitlines()) == 1


@pytest.mark.parametrize("suffix", [".pftrace", ".pftrace.gz", ".json", ".json.gz"])
def test_view_takes_every_format_that_export_writes(kprof, small, tmp_path, suffix):
    file = tmp_path / f"trace{suffix}"
    assert kprof("export", small, "-o", file, "--no-findings").code == 0
    result = kprof("view", file, "--no-open", "--port", 0, "--timeout", 0)
    assert result.code == 0, result.err
    assert "kprof: open http" in result.err
