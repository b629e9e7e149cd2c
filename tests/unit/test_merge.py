"""`kprof merge`: what several hosts recorded of one run becomes one capture, and what is missing is named."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from kprof.aligning.align import align, copy_files
from kprof.aligning.merge import merge
from kprof.capture.directory import Capture, begin_capture, finish_capture
from kprof.capture.manifest import Manifest
from kprof.capture.torch_traces import host_trace_name, torch_trace_name
from kprof.errors import CaptureError, CorruptCaptureError, OutputExistsError
from kprof.trace import Trace
from unaligned import Writer, parts_of, worst_error_ns


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    return Writer(4).exchange(0, 1, 2, 3, count=60).write(tmp_path / "whole.kprof")


def events(path: Path) -> list[tuple[int, ...]]:
    frame = Trace.open(path).frame(
        "SELECT rank, start_ns, duration_ns, payload FROM raw_events ORDER BY ALL"
    )
    return [tuple(row) for row in frame.to_numpy().tolist()]


@pytest.mark.slow
def test_parts_in_any_order_are_the_whole(whole: Path, tmp_path: Path) -> None:
    first, second = parts_of(whole, [2, 0], [3, 1])
    merged = merge([second, first], tmp_path / "run.kprof")
    assert merged.missing_ranks == ()
    assert events(merged.path) == events(whole)
    assert [info.rank for info in Capture.open(merged.path).manifest.ranks] == [0, 1, 2, 3]
    found = align(merged.path)
    assert worst_error_ns(merged.path, [0, 1, 2, 3]) <= found.alignment.widest_bound_ns < 8000


@pytest.mark.slow
def test_a_calibration_of_all_ranks_is_kept(whole: Path, tmp_path: Path) -> None:
    known = align(whole).alignment
    first, second = parts_of(whole, [0, 1], [2, 3])
    manifest = Capture.open(second).manifest
    assert manifest.alignment is not None
    assert merge([first, second], tmp_path / "run.kprof").manifest.alignment == known


@pytest.mark.slow
def test_a_host_that_is_missing_is_named_and_the_rest_opens(whole: Path, tmp_path: Path) -> None:
    first, _, third = parts_of(whole, [0], [1, 2], [3])
    merged = merge([third, first], tmp_path / "run.kprof")
    assert merged.missing_ranks == (1, 2)
    trace = Trace.open(merged.path)
    assert trace.frame("SELECT DISTINCT rank FROM events ORDER BY 1")["rank"].tolist() == [0, 3]


@pytest.mark.slow
@pytest.mark.parametrize("how", ["changed", "cut", "removed"])
def test_a_rank_with_a_damaged_file_is_left_out_and_named(
    how: str, whole: Path, tmp_path: Path
) -> None:
    first, second = parts_of(whole, [0, 1], [2, 3])
    file = second / "rank-00003.parquet"
    data = bytearray(file.read_bytes())
    if how == "removed":
        file.unlink()
    else:
        data[len(data) // 2] ^= 1
        file.write_bytes(data if how == "changed" else data[: len(data) // 2])
    merged = merge([first, second], tmp_path / "run.kprof")
    assert merged.missing_ranks == (3,)
    assert any(
        text.startswith("without rank 3: ") for text in Capture.open(merged.path).manifest.messages
    )
    assert not (merged.path / "rank-00003.parquet").exists()


def test_a_part_that_cannot_be_opened_ends_the_merge_and_leaves_nothing(
    whole: Path, tmp_path: Path
) -> None:
    first, second = parts_of(whole, [0, 1], [2, 3])
    (second / "manifest.json").write_text("{")
    with pytest.raises(CorruptCaptureError, match="host1"):
        merge([first, second], tmp_path / "run.kprof")
    assert not (tmp_path / "run.kprof").exists()
    assert not (tmp_path / "run.kprof.unfinished").exists()


def test_parts_of_different_runs_are_refused(whole: Path, tmp_path: Path) -> None:
    first, second = parts_of(whole, [0, 1], [1, 2])
    with pytest.raises(CaptureError, match=r"rank 1 is in .*host0.* and in .*host1.*RANK"):
        merge([first, second], tmp_path / "run.kprof")
    other = Writer(2).exchange(0, 1, count=5).write(tmp_path / "other.kprof")
    with pytest.raises(CaptureError, match=r"a run of 4 ranks .* one of 2"):
        merge([first, other], tmp_path / "run.kprof")


@pytest.mark.slow
def test_an_output_is_replaced_only_by_force(whole: Path, tmp_path: Path) -> None:
    parts = parts_of(whole, [0, 1], [2, 3])
    merge(parts, tmp_path / "run.kprof")
    with pytest.raises(OutputExistsError):
        merge(parts, tmp_path / "run.kprof")
    assert merge(parts, tmp_path / "run.kprof", force=True).missing_ranks == ()


def test_an_exit_code_that_is_not_0_stays(whole: Path, tmp_path: Path) -> None:
    first, second = parts_of(whole, [0, 1], [2, 3])
    manifest: Manifest = Capture.open(second).manifest
    failed = msgspec.structs.replace(manifest, exit_code=9, files=(), checksum=None)
    temporary = begin_capture(tmp_path / "failed.kprof", False)
    copy_files(Capture.open(second), temporary, [2, 3])
    finish_capture(temporary, tmp_path / "failed.kprof", failed)
    merged = merge([first, tmp_path / "failed.kprof"], tmp_path / "run.kprof")
    assert merged.manifest.exit_code == 9


def test_only_files_of_the_chosen_ranks_are_copied(whole: Path, tmp_path: Path) -> None:
    names = [name for rank in (0, 1) for name in (torch_trace_name(rank, 1), host_trace_name(rank))]
    for name in names:
        (whole / name).touch()
    copy_files(Capture.open(whole), tmp_path, [1])
    assert [(tmp_path / name).exists() for name in names] == [False, False, True, True]
