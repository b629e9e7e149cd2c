"""A byte that was changed in a file of a capture: no command shows numbers made from it."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from kprof.capture.checksums import Checksums
from kprof.capture.directory import Capture
from kprof.capture.names import MANIFEST_NAME, summary_file_name
from kprof.capture.rank_summary import stored_summaries, write_summary
from kprof.capture.torch_traces import torch_trace_name
from kprof.errors import CorruptCaptureError
from kprof.trace import Trace
from sealing import check_checksums, remove_checksums, seal

COMMANDS = [
    ("info",), ("stats",), ("stats", "--time", "0us..1us"), ("stats", "--ranks", "1"),
    ("waits", "--by", "sender"), ("report",), ("report", "-o", "report.html"),
    ("export", "-o", "trace.pftrace"), ("export", "-o", "trace.json"),
    ("query", "SELECT (SELECT max(duration_ns) FROM events) AS longest"),
    ("query", "SELECT count(*) AS n FROM raw_events"), ("diff",),
]  # fmt: skip


def change_a_page(path: Path, column: str) -> None:
    """Change the lowest byte of the first value of a column, in a file without compression."""
    metadata = pq.read_metadata(path)
    names = [metadata.schema.column(i).path for i in range(metadata.num_columns)]
    place = metadata.row_group(0).column(names.index(column))
    data = bytearray(path.read_bytes())
    # Plain values are the end of their page.
    data[place.data_page_offset + place.total_compressed_size - 8 * metadata.num_rows] ^= 1
    path.write_bytes(data)


def without_compression(run: Path, name: str) -> Path:
    path = run / name
    pq.write_table(pq.read_table(path), path, compression="none", use_dictionary=False)
    seal(run)
    return path


@pytest.fixture
def changed(small: Path) -> Path:
    change_a_page(without_compression(small, "rank-00001.parquet"), "duration_ns")
    return small


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


@pytest.mark.parametrize(
    "damage", [lambda path: change_a_page(path, "duration_ns"), truncate, Path.unlink]
)
def test_the_other_ranks_can_be_read_without_a_damaged_one(kprof, small, damage, tmp_path):
    damage(without_compression(small, "rank-00001.parquet"))
    count = "SELECT DISTINCT rank FROM events"
    for ranks in ((), ("--ranks", "1"), ("--ranks", "0-1")):
        error = kprof("query", small, count, *ranks).error_line
        assert "rank-00001.parquet" in error
        assert error.endswith("or name other ranks with --ranks to read those alone")
    result = kprof("query", small, count, "--ranks", "0", "--csv")
    assert result.out == '"rank"\n0\n'
    assert result.err.startswith("kprof: without rank 1: ")
    report = kprof("report", small, "--ranks", "0").out
    assert "without rank 1: " in report
    assert "name other ranks" not in report
    exported = kprof("export", small, "--ranks", "0", "-o", tmp_path / "run.pftrace")
    assert exported.code == 0
    assert "without rank 1: " in exported.err


@pytest.mark.parametrize("command", COMMANDS, ids=lambda words: " ".join(words[:3]))
def test_every_command_refuses_changed_events(kprof, changed, command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    runs = [changed, changed] if command == ("diff",) else [changed]
    result = kprof(command[0], *runs, *command[1:])
    assert result.code == 1
    assert f"{changed}/rank-00001.parquet was changed after it was written" in result.error_line
    assert "restore the file or record again" in result.error_line
    assert [path.name for path in tmp_path.iterdir()] == [changed.name]


def test_without_its_checksum_the_change_is_another_number(changed):
    """That is what the checksum is for; captures of older versions have none."""
    total = "SELECT sum(duration_ns) AS n FROM raw_events"
    with pytest.raises(CorruptCaptureError, match="was changed"):
        Trace.open(changed).sql(total)
    remove_checksums(changed)
    assert Capture.open(changed).manifest.files == ()
    (found,) = Trace.open(changed).sql(total)["n"].to_pylist()
    change_a_page(changed / "rank-00001.parquet", "duration_ns")
    (sound,) = Trace.open(changed).sql(total)["n"].to_pylist()
    assert abs(found - sound) == 1


def test_a_refused_file_stays_refused(changed):
    trace = Trace.open(changed)
    for _ in range(2):
        with pytest.raises(CorruptCaptureError, match="was changed"):
            trace.window_ns()
        with pytest.raises(CorruptCaptureError, match="was changed"):
            trace.select(rank=0).to_pandas()


def test_a_file_of_another_size_is_refused_before_it_is_read(small):
    without_compression(small, "rank-00000.parquet")
    path = small / "rank-00000.parquet"
    pq.write_table(pq.read_table(path), path, compression="zstd")
    with pytest.raises(CorruptCaptureError, match=r"rank-00000\.parquet was changed"):
        Capture.open(small)


def test_a_changed_summary_is_made_again_from_the_events(kprof, small):
    manifest = Capture.open(small).manifest
    for info in manifest.ranks:
        write_summary(small, info, manifest.world_size)
    path = without_compression(small, summary_file_name(1))
    # Sums are enough for this command: it reads no events.
    assert Trace.open(small).summarised_ranks == {0, 1}
    sound = kprof("stats", small, "--json")
    change_a_page(path, "last_ns")
    assert stored_summaries(Capture.open(small))[1] == path
    assert Trace.open(small).summarised_ranks == {0}
    assert kprof("stats", small, "--json") == sound


def test_a_changed_trace_of_the_profiler_is_refused(kprof, small):
    """Its own checksum holds: it was packed again."""
    path = small / torch_trace_name(0)
    path.write_bytes(gzip.compress(b'{"traceEvents": []}'))
    seal(small)
    check_checksums(small)
    assert Capture.open(small).torch_traces() == (path,)
    path.write_bytes(gzip.compress(b'{"traceEvents": [1]}'))
    refused = kprof("export", small, "-o", small.parent / "trace.pftrace")
    assert f"{path} was changed after it was written" in refused.error_line


def test_a_trace_of_the_profiler_that_is_gone_is_missed(kprof, small):
    """Else an export without its kernels would look like one of a run that nobody profiled."""
    path, output = small / torch_trace_name(0), small.parent / "trace.pftrace"
    path.write_bytes(gzip.compress(b'{"traceEvents": []}'))
    seal(small)
    path.unlink()
    command = ("export", small, "-o", output)
    missed = kprof(*command)
    assert f"cannot read {path}: No such file or directory; restore the file" in missed.error_line
    assert not output.exists()
    assert kprof(*command, "--no-torch").code == 0


@pytest.mark.parametrize("table", [("stats", "--by", "rank"), ("waits",)])
def test_sums_are_shown_without_reading_the_events(kprof, changed, table):
    """They were made before the change, so they are right, and large files need not be read."""
    manifest = Capture.open(changed).manifest
    change_a_page(changed / "rank-00001.parquet", "duration_ns")
    for info in manifest.ranks:
        write_summary(changed, info, manifest.world_size)
    seal(changed)
    command = (*table, changed, "--json")
    sound = kprof(*command)
    change_a_page(changed / "rank-00001.parquet", "duration_ns")
    assert kprof(*command) == sound
    assert sound.code == 0


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('"shift": 8', '"shift": 7'),
        ('"kernel": "kernel"', '"kernel": "colonel"'),
        ('"from_ns": 0', '"from_ns": 8'),
        ('"recorded": 4', '"recorded": 5'),
    ],
)
def test_a_manifest_that_was_edited_is_refused_unless_its_checksum_is_removed(
    kprof, small, before, after
):
    path = small / MANIFEST_NAME
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after))
    for command in ("info", "stats"):
        assert "manifest.json was changed after it was written" in kprof(command, small).error_line
    assert (
        'remove "checksum" from it if you edited it on purpose' in kprof("info", small).error_line
    )
    remove_checksums(small)
    assert kprof("stats", small).code == 0


def test_a_manifest_may_be_laid_out_anew(kprof, small):
    path = small / MANIFEST_NAME
    path.write_text(json.dumps(json.loads(path.read_text()), indent=7, sort_keys=True))
    assert kprof("info", small).code == 0


def test_a_file_is_read_once(small):
    capture = Capture.open(small)
    checksums = Checksums(capture.manifest.files)
    paths = [small / entry.name for entry in capture.manifest.files]
    assert list(checksums.unread(paths)) == paths
    checksums.check(paths)
    assert not checksums.unread(paths)


@pytest.mark.parametrize("is_changed", [False, True])
def test_a_capture_whose_finishing_was_cut_off_keeps_its_checksums(kprof, small, is_changed):
    """kprof was killed between the manifest and the directory's final name."""
    path = without_compression(small, "rank-00001.parquet")
    if is_changed:
        change_a_page(path, "duration_ns")
    unfinished = small.rename(f"{small}.unfinished")
    assert kprof("recover", unfinished).code == 0
    if is_changed:
        assert "rank-00001.parquet was changed" in kprof("stats", small).error_line
    else:
        check_checksums(small)
