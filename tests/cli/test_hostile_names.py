"""Names from strangers on a terminal, in JSON and on pages: shown, never obeyed."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kprof.capture.names import MANIFEST_NAME
from kprof.capture.printable import printable, printable_json
from kprof.errors import BUG_SENTENCE, RegionError
from kprof.recording.launches.launch_log import LaunchLog
from kprof.recording.launches.wanted import EVERYTHING
from kprof.regions import RegionTable
from sealing import write_manifest

CLI = Path(__file__).parents[2] / "cli" / "kprof_cli"
# Retitles the terminal, clears it, rings, forges a line, turns text round, ends a string in C.
NAME = (
    "\x1b]0;owned\x07\x1b[2J\x9b31m\x00a\nkprof: all is well\r\u202egnp.exe\u2066\u200f\u2028"
    "</script><script>alert(1)</script>"
)
COMMANDS = [
    ["info"],
    ["info", "--json"],
    ["stats"],
    ["stats", "--json"],
    ["waits", "--by", "region"],
    ["report"],
    ["report", "--json"],
    ["query", "SELECT DISTINCT region, kernel FROM events"],
    ["query", "SELECT DISTINCT region, kernel FROM events", "--json"],
    ["stats", "--regions", "nothing"],
    ["query", 'SELECT "\x1b[31m" FROM events'],
]


def renamed(run: Path) -> Path:
    """Give every name in a capture a hostile end."""
    path = run / MANIFEST_NAME
    manifest = json.loads(path.read_text())
    manifest["command"] = [NAME]
    manifest["kprof_version"] = NAME
    manifest["overhead_note"] = NAME
    for info in manifest["ranks"]:
        info |= dict.fromkeys(("host", "target", "device", "arch"), NAME)
        info["notes"] = [NAME]
        for described in (*info["launches"], *info["regions"]["regions"]):
            key = "kernel" if "kernel" in described else "name"
            described[key] += NAME
    write_manifest(run, manifest)
    return run


def test_no_name_reaches_the_terminal_as_it_is(kprof, small):
    run = renamed(small)
    for command, *rest in COMMANDS:
        result = kprof(command, run, *rest)
        shown = result.out + result.err
        assert [c for c in shown if not c.isprintable() and c != "\n"] == [], command
        assert not any(line.startswith("kprof: all is well") for line in shown.splitlines())
        # 2: a region that is not there.
        assert result.code in (0, 1, 2)


def test_json_holds_the_names_as_they_are(kprof, small):
    out = kprof("info", renamed(small), "--json").out
    assert json.loads(out)["command"] == [NAME]
    assert out.isascii()
    report = json.loads(kprof("report", small, "--json").out)
    assert report["capture"]["command"] == [NAME]


def test_pages_show_names_and_run_none(kprof, small, tmp_path):
    run = renamed(small)
    for arguments in (["report", run], ["diff", run, run]):
        page = tmp_path / f"{arguments[0]}.html"
        assert kprof(*arguments, "-o", page).code == 0
        text = page.read_text(encoding="utf-8")
        assert "<script>alert(1)" not in text
        assert "</script><script>alert" not in text
        assert not set(text) & set("\x00\x07\x1b\x9b\u202e\u2066\u200f\u2028")


def test_traces_hold_names_as_data(kprof, small, tmp_path, processor):
    run = renamed(small)
    for suffix in ("json", "pftrace"):
        assert kprof("export", run, "-o", tmp_path / f"t.{suffix}").code == 0
    events = json.loads((tmp_path / "t.json").read_bytes())["traceEvents"]
    assert any(event["name"].endswith(NAME) for event in events)
    shown = processor(tmp_path / "t.pftrace").column("SELECT DISTINCT name FROM slice")
    assert any(region.startswith("dispatch/wait-token") for region in shown)


def test_a_new_line_or_escape_is_shown_as_in_a_literal():
    assert printable("a\n\x1b[1m\u202eb\ud800") == r"a\n\x1b[1m\u202eb\ud800"
    assert printable("a\nb\tc", keep="\n") == "a\nb\\tc"
    assert printable("Größe 3 µs, 名") == "Größe 3 µs, 名"


@pytest.mark.parametrize("text", ["\x9b\u202e\U000e0001\x7f", "plain", "名\u2028"])
def test_json_keeps_its_value(text):
    encoded = msgspec.json.encode({text: [text]}).decode()
    safe = printable_json(encoded)
    assert safe.isprintable()
    assert json.loads(safe) == {text: [text]}


def test_all_that_is_printed_goes_through_one_module():
    """Anything else that writes to a terminal would pass names on as they are."""
    offences = []
    for file in sorted(CLI.glob("*.py")):
        if file.name == "output.py":
            continue
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            is_print = isinstance(node, ast.Name) and node.id == "print"
            is_stream = isinstance(node, ast.Attribute) and ast.unparse(node) in (
                "sys.stdout.write",
                "sys.stderr.write",
                "sys.stdout.buffer",
                "sys.stderr.buffer",
            )
            if is_print or is_stream:
                offences.append(f"{file.name}:{node.lineno}")
    assert offences == []


def test_what_nobody_foresaw_is_one_line(kprof, small, monkeypatch):
    def fail(*_: object) -> None:
        raise KeyError("a\x1b[2J")

    monkeypatch.setattr("kprof.trace.Trace.open", fail)
    result = kprof("stats", small)
    assert (result.code, result.out) == (1, "")
    assert result.error_line.startswith(f"kprof: {BUG_SENTENCE} (KeyError);")
    assert "Traceback" in kprof("--debug", "stats", small).err


def test_a_matrix_that_nobody_could_read_is_for_machines(kprof, small):
    manifest = json.loads((small / MANIFEST_NAME).read_text())
    write_manifest(small, manifest | {"world_size": 1000})
    shown = kprof("waits", small, "--by", "matrix")
    assert "the 256 ranks that were waited for longest, of 1,000" in shown.err
    assert shown.out.count("for_rank_") == 256
    (row, *_) = json.loads(kprof("waits", small, "--by", "matrix", "--json").out)["rows"]
    assert len(row) == 1001


# A file name with a byte of Latin-1, as Python has it.
LATIN = "caf\udce9"
RANKS = str(Path(__file__).parent / "workloads" / "ranks.py")


def test_a_name_that_is_not_utf8_is_a_sentence(kprof, small, tmp_path):
    run = tmp_path / f"{LATIN}.kprof"
    small.rename(run)
    assert f"{tmp_path}/caf\\udce9.kprof is not UTF-8" in kprof("info", run).error_line
    recorded = kprof("record", "-f", "-o", run, "--", "true")
    assert "caf\\udce9.kprof is not UTF-8" in recorded.error_line
    assert run.exists()


def test_text_that_is_not_utf8_is_a_sentence(kprof, small, tmp_path):
    assert "the query was refused" in kprof("query", small, f"SELECT {LATIN}").error_line
    table = tmp_path / "run.parquet"
    latin = pa.Array.from_buffers(pa.string(), 1, pa.array([b"caf\xe9"], pa.binary()).buffers())
    numbers = {key: [0] for key in ("rank", "block", "start_ns", "duration_ns")}
    pq.write_table(pa.table(numbers | {"region": latin}), table)
    line = kprof("import", "--kind", "table", table, "-o", tmp_path / "run.kprof").error_line
    assert line.startswith(f"kprof: {table} holds text that is not UTF-8 (b'caf\\xe9'); ")


def test_a_command_and_a_file_with_names_that_are_not_utf8_work(kprof, tmp_path):
    run, line = tmp_path / "run.kprof", ("python", RANKS, "--started", "0", "--finished", "0")
    assert kprof("record", "-o", run, "--", *line, "--say", LATIN).code == 0
    assert "--say 'caf\\udce9'" in kprof("info", run).out
    events = tmp_path / f"{LATIN}.json"
    events.write_text('[{"ph": "X", "name": "a", "ts": 1, "dur": 2, "pid": 0, "tid": 0}]')
    imported = tmp_path / "imported.kprof"
    assert kprof("import", "--kind", "chrome", events, "-o", imported).code == 0
    assert "caf\\udce9.json" in kprof("info", imported).out


def test_a_kernel_has_a_name_that_can_be_written():
    log = LaunchLog(None, EVERYTHING)
    for _ in range(2):
        log.add(log.plan(LATIN, 1, 1, 0))
    assert [each.kernel for each in log.waiting()] == ["caf\\udce9"] * 2
    with pytest.raises(RegionError, match=r"'caf\\udce9' is not UTF-8"):
        RegionTable.of([LATIN])
