"""The capture directory: what was written is read back, and every damage is one clear sentence."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kprof.capture import directory as capture
from kprof.capture.descriptors import OwnDescriptor
from kprof.capture.directory import (
    Capture,
    begin_capture,
    event_schema,
    finish_capture,
    read_alignment,
    read_rank_infos,
    write_rank_events,
    write_rank_info,
    writing_events,
)
from kprof.capture.journal import Aligned, say
from kprof.capture.manifest import FORMAT_VERSION, Alignment, RankStarted
from kprof.capture.names import MANIFEST_NAME
from kprof.capture.started import read_ranks_started
from kprof.errors import (
    CaptureError,
    CorruptCaptureError,
    NewerFormatError,
    NotACaptureError,
    OutputExistsError,
)
from kprof.trace import Trace
from sealing import editing_manifest, seal
from synthetic import TraceBuilder

REGIONS = 'REGION(A, "a", compute, bytes:32)'


def builder(num_ranks: int = 2, num_events: int = 100) -> TraceBuilder:
    build = TraceBuilder(REGIONS, num_ranks)
    for rank in range(num_ranks):
        for i in range(num_events):
            build.span(rank, "a", 10 * i, 5, block=i % 7, bytes=i)
    return build


@pytest.fixture
def run(tmp_path) -> Path:
    return builder().write(tmp_path / "run.kprof").path


def test_what_ranks_told_while_they_ran_does_not_stay(tmp_path):
    build = builder(num_ranks=1)
    source = tmp_path / "run.kprof.unfinished"
    build.write(source)
    kinds = "said live waits tracks arena launches-00000 announced"
    for kind in kinds.split():
        (source / f"rank-00000.{kind}").touch()
    kept = {"rank-00000.parquet", "summary-00000.parquet", "torch-rank-00000.json.gz", "hang.json"}
    for name in kept - {"rank-00000.parquet"}:
        (source / name).touch()
    finished = finish_capture(source, tmp_path / "run.kprof", build.manifest())
    assert {path.name for path in finished.path.iterdir()} == kept | {MANIFEST_NAME}


def test_what_cannot_be_removed_does_not_hinder_a_capture(tmp_path):
    build = builder(num_ranks=1)
    source = tmp_path / "run.kprof.unfinished"
    build.write(source)
    (source / "said").mkdir()
    finished = finish_capture(source, tmp_path / "run.kprof", build.manifest())
    assert Capture.open(finished.path).manifest.world_size == 1


@pytest.mark.parametrize("name", ["", ".", "/"])
def test_a_path_without_a_name_is_no_capture(name):
    with pytest.raises(NotACaptureError):
        Capture.open(Path(name))


def test_a_capture_is_read_back_as_it_was_written(tmp_path):
    build = builder()
    written = build.write(tmp_path / "run.kprof")

    read = Capture.open(tmp_path / "run.kprof")

    assert read.manifest == written.manifest
    rest = msgspec.structs.replace(read.manifest, files=(), checksum=None)
    assert rest == build.manifest()
    assert Trace.open(read).to_pandas().equals(build.trace().to_pandas())
    assert read.size_bytes == sum(file.stat().st_size for file in read.path.iterdir())
    names = sorted(file.name for file in read.path.iterdir())
    assert names == ["manifest.json", "rank-00000.parquet", "rank-00001.parquet"]
    assert [file.name for file in tmp_path.iterdir()] == ["run.kprof"]


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda path: path, "does not exist; `kprof record"),
        (lambda path: path.touch(), "is a file"),
        (lambda path: path.mkdir(), r"no manifest\.json"),
        (lambda path: begin_capture(path, force=False), "unfinished recording"),
    ],
)
def test_what_is_no_capture_is_called_what_it_is(tmp_path, make, sentence):
    path = tmp_path / "run.kprof"
    with pytest.raises(NotACaptureError, match=sentence):
        Capture.open(make(path) or path)


NO_VERSIONS = ['{"format_version": 1}', '{"format_version": "1"}', '{"ranks": []}']


@pytest.mark.parametrize("text", ["", "{", "[]", "null", *NO_VERSIONS, "\xff", "\x80\x04\x95"])
def test_a_damaged_manifest_is_one_sentence(run, text):
    (run / MANIFEST_NAME).write_bytes(text.encode("latin-1"))
    with pytest.raises(CorruptCaptureError, match=r"manifest\.json is damaged"):
        Capture.open(run)


def test_a_truncated_manifest_is_found_at_every_length(run):
    path = run / MANIFEST_NAME
    data = path.read_bytes()
    for length in range(0, len(data) - 2, 97):
        path.write_bytes(data[:length])
        with pytest.raises(CorruptCaptureError):
            Capture.open(run)


def test_a_newer_format_asks_for_an_upgrade(run):
    with editing_manifest(run) as manifest:
        manifest.update(format_version=FORMAT_VERSION + 1, ranks="something new")
    with pytest.raises(NewerFormatError, match=r"format version 2.*upgrade kprof"):
        Capture.open(run)


def test_fields_that_a_later_kprof_adds_do_not_hinder(run):
    with editing_manifest(run) as manifest:
        manifest["added_later"] = {"anything": 1}
    assert Capture.open(run).manifest.world_size == 2


def test_a_rank_file_that_the_manifest_lists_and_that_is_gone_is_named(run):
    (run / "rank-00001.parquet").unlink()
    with pytest.raises(CorruptCaptureError, match=r"rank-00001\.parquet is missing"):
        Capture.open(run)


@pytest.mark.slow
@pytest.mark.parametrize("keep", [0, 3, 100, -1, -8, -50])
def test_a_truncated_parquet_file_is_found_on_opening(run, keep):
    path = run / "rank-00001.parquet"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(CorruptCaptureError, match=r"rank-00001\.parquet is damaged"):
        Capture.open(run)


def test_a_parquet_file_of_something_else_is_refused(run):
    pq.write_table(pa.table({"a": [1]}), run / "rank-00000.parquet")
    with pytest.raises(CorruptCaptureError, match="does not have the columns"):
        Capture.open(run)


def test_damaged_pages_behind_a_good_footer_are_one_sentence(tmp_path):
    run = builder(num_events=5000).write(tmp_path / "run.kprof").path
    path = run / "rank-00000.parquet"
    data = bytearray(path.read_bytes())
    data[4 : len(data) // 2] = os.urandom(len(data) // 2 - 4)
    path.write_bytes(data)
    seal(run)
    with pytest.raises(CorruptCaptureError, match="reading the capture failed") as error:
        Trace.open(run).to_pandas()
    assert "\n" not in str(error.value)


def test_an_output_that_exists_needs_force(run):
    with pytest.raises(OutputExistsError, match="pass --force"):
        begin_capture(run, force=False)
    begin_capture(run, force=True)


def test_force_replaces_captures_only(tmp_path):
    (tmp_path / "homework").mkdir()
    with pytest.raises(OutputExistsError, match="will not delete it"):
        begin_capture(tmp_path / "homework", force=True)


def test_an_output_below_a_file_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CaptureError, match="cannot write"):
        begin_capture(tmp_path / "file" / "run.kprof", force=False)


def full(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_names_the_file_and_the_remedy(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(CaptureError, match=r"rank-00000\.said: No space left.*free some space"):
        write_rank_info(tmp_path, builder().manifest().ranks[0])


def test_events_on_a_full_disk_are_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setattr(pq.ParquetWriter, "write_table", full)
    with pytest.raises(CaptureError, match="No space left on device"):
        write_rank_events(tmp_path, 0, builder().table())
    assert not any(tmp_path.iterdir())


def test_a_parquet_file_has_its_name_only_when_it_is_complete(tmp_path):
    with writing_events(tmp_path / "rank-00003.parquet") as writer:
        writer.write_table(builder().table())
        assert not (tmp_path / "rank-00003.parquet").exists()
    assert [file.name for file in tmp_path.iterdir()] == ["rank-00003.parquet"]


def test_only_ranks_with_both_files_count_as_finished(tmp_path):
    infos = builder(num_ranks=3).manifest().ranks
    for info in infos:
        write_rank_info(tmp_path, info)
    for rank in (2, 0):
        write_rank_events(tmp_path, rank, event_schema().empty_table())
    assert read_rank_infos(tmp_path) == (infos[0], infos[2])


def test_ranks_started_are_read_in_order(tmp_path):
    for rank in (11, 2):
        say(tmp_path, rank, RankStarted(rank, 12, "host0", 42))
    assert [entry.rank for entry in read_ranks_started(tmp_path)] == [2, 11]


def test_the_last_calibration_counts(tmp_path):
    assert read_alignment(tmp_path) is None
    first, second = (Alignment(name, 0, ()) for name in ("first", "second"))
    say(tmp_path, 0, Aligned(first))
    say(tmp_path, 0, Aligned(second))
    assert read_alignment(tmp_path) == second


def test_events_of_a_recording_that_was_cut_off_are_not_discarded_in_silence(tmp_path):
    output = tmp_path / "run.kprof"
    left_over = capture.begin_capture(output, force=False)
    (left_over / "rank-00002.parquet").write_bytes(b"events")
    with pytest.raises(OutputExistsError, match="holds events of a recording that was cut off"):
        capture.begin_capture(output, force=False)
    assert (left_over / "rank-00002.parquet").exists()
    assert not any(capture.begin_capture(output, force=True).iterdir())


@pytest.fixture
def own(tmp_path: Path) -> Iterator[OwnDescriptor]:
    descriptor = OwnDescriptor(os.open(tmp_path / "own", os.O_RDWR | os.O_CREAT))
    yield descriptor
    descriptor.close()


def test_no_program_that_is_started_gets_a_descriptor_of_ours(own: OwnDescriptor) -> None:
    assert own.is_open()
    assert not os.get_inheritable(own.number)


def test_a_descriptor_that_was_closed_behind_its_back_is_not_closed_again(
    own: OwnDescriptor,
) -> None:
    os.close(own.number)
    assert not own.is_open()
    own.close()
    own.close()


def test_another_file_with_the_number_of_a_descriptor_is_left_alone(
    own: OwnDescriptor, tmp_path: Path
) -> None:
    other = os.open(tmp_path / "other", os.O_RDWR | os.O_CREAT)
    os.dup2(other, own.number)
    os.close(other)
    assert not own.is_open()
    own.close()
    os.write(own.number, b"still open")
    os.close(own.number)
    assert (tmp_path / "other").read_bytes() == b"still open"


def test_processes_of_the_workload_do_not_get_a_file_of_events(tmp_path: Path) -> None:
    with writing_events(tmp_path / "rank-00000.parquet"):
        # The listing itself has a descriptor, which is closed by then.
        links = [link for link in Path("/proc/self/fd").iterdir() if link.exists()]
        ours = [link.name for link in links if link.readlink().is_relative_to(tmp_path)]
        inherited = [number for number in ours if os.get_inheritable(int(number))]
    assert ours
    assert inherited == []
