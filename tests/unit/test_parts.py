"""Parts of a rank's events: each is complete, and together they are one file."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace

from kprof.capture.claims import read_messages
from kprof.capture.directory import event_schema
from kprof.capture.manifest import Launch
from kprof.capture.names import events_file_name
from kprof.capture.parts import PartWriter, part_name, read_info, recover_rank
from kprof.errors import CaptureError
from synthetic import TraceBuilder


def test_many_small_parts_become_few_row_groups(tmp_path: Path) -> None:
    build = TraceBuilder('REGION(A, "a", compute)', 1)
    build.span(0, "a", 0, 1)
    table, info = build.table(), build.manifest().ranks[0]
    writer = PartWriter(tmp_path, 0)
    for start_ns in range(50):
        column = pa.array([start_ns], pa.int64())
        at = event_schema().get_field_index("start_ns")
        writer.save([table.set_column(at, event_schema().field(at), column)], lambda: info)
        writer.keep()
    writer.finish(info)
    path = tmp_path / events_file_name(0)
    assert pq.read_metadata(path).num_row_groups == 1
    assert pq.read_table(path)["start_ns"].to_pylist() == list(range(50))


def write_parts(directory: Path, number: int) -> PartWriter:
    """Parts of one event each; the count of the last is that of all."""
    build = TraceBuilder('REGION(A, "a", compute)', 1)
    build.span(0, "a", 0, 1)
    table, info = build.table(), build.manifest().ranks[0]
    writer = PartWriter(directory, 0)
    for part in range(number):
        counts = replace(info.counts, recorded=part + 1)
        launches = (replace(info.launches[0], launch=part),)
        writer.save([table], lambda: replace(info, counts=counts, launches=launches))  # noqa: B023
        writer.keep()
    return writer


def damage(directory: Path, part: int, how: str) -> None:
    path = directory / part_name(0, part)
    data = path.read_bytes()
    path.write_bytes(data[:-9] if how == "truncated" else data[:4] + b"\xff" * 60 + data[64:])


@pytest.mark.parametrize("how", ["truncated", "bits"])
def test_damaged_parts_are_named_and_the_others_are_kept(tmp_path: Path, how: str) -> None:
    write_parts(tmp_path, 9)
    for part in range(1, 8):
        damage(tmp_path, part, how)
    info = recover_rank(tmp_path, 0)
    assert info is not None
    assert info.counts.recorded == pq.read_metadata(tmp_path / events_file_name(0)).num_rows == 2
    (said,) = read_messages(tmp_path)
    assert said.startswith("rank 0: part-00000-00001.parquet, part-00000-00002.parquet, ")
    assert said.endswith(" and 2 more are damaged, so launches or events are missing")
    assert recover_rank(tmp_path, 0) == info
    assert read_messages(tmp_path) == (said,)


@pytest.mark.parametrize("source", ["part-00000-00002.parquet", "part-00001-00000.parquet"])
def test_a_part_that_holds_another_part_is_damaged(tmp_path: Path, source: str) -> None:
    """Else a launch is listed twice, or a rank has events of another, and no reader opens the capture."""
    write_parts(tmp_path, 3)
    build = TraceBuilder('REGION(A, "a", compute)', 2)
    build.span(1, "a", 0, 1)
    other = build.manifest().ranks[1]
    PartWriter(tmp_path, 1).save([build.table()], lambda: other)
    (tmp_path / part_name(0, 1)).write_bytes((tmp_path / source).read_bytes())
    info = recover_rank(tmp_path, 0)
    assert info is not None
    assert [launch.launch for launch in info.launches] == [0, 2]
    said = "rank 0: part-00000-00001.parquet is damaged, so launches or events are missing"
    assert read_messages(tmp_path) == (said,)


@pytest.mark.parametrize("how", ["truncated", "bits"])
def test_an_only_part_that_is_damaged_is_named(tmp_path: Path, how: str) -> None:
    write_parts(tmp_path, 1)
    damage(tmp_path, 0, how)
    info = recover_rank(tmp_path, 0)
    assert info is None or info.counts.recorded == 0
    said = "rank 0: part-00000-00000.parquet is damaged, so launches or events are missing"
    assert read_messages(tmp_path) == (said,)


def test_a_rank_that_ends_names_the_part_that_it_cannot_read(tmp_path: Path) -> None:
    writer = write_parts(tmp_path, 2)
    damage(tmp_path, 1, "bits")
    with pytest.raises(CaptureError, match=r"00001\.parquet was written, but cannot be read"):
        writer.finish(TraceBuilder("", 1).manifest().ranks[0])


def test_a_part_of_more_launches_than_parquet_expects_is_read(tmp_path: Path) -> None:
    """A footer of 100 MB and more: the launches of a long run."""
    writer = PartWriter(tmp_path, 0)
    info = TraceBuilder("", 1).manifest().ranks[0]
    name = "a kernel with a long name " * 10_000
    launches = tuple(Launch(number, name, number) for number in range(400))
    writer.save([], lambda: replace(info, launches=launches))
    writer.keep()
    assert writer.launches() == launches


@pytest.mark.parametrize(
    ("column", "value"), [("start_ns", (1 << 62) + 1), ("warp", -2), ("hw_id", None)]
)
def test_a_part_with_events_that_no_reader_takes_is_damaged(
    tmp_path: Path, column: str, value: int | None
) -> None:
    write_parts(tmp_path, 2)
    path = tmp_path / part_name(0, 1)
    table = pq.read_table(path)
    at = table.schema.get_field_index(column)
    footer = pq.read_schema(path).metadata or pq.read_metadata(path).metadata
    if value is None:
        changed = table.drop_columns([column])
    else:
        values = pa.array([value] * len(table), table.schema.field(at).type)
        changed = table.set_column(at, table.schema.field(at), values)
    pq.write_table(changed.replace_schema_metadata(footer), path)
    assert read_info(path) is not None
    info = recover_rank(tmp_path, 0)
    assert info is not None
    assert info.counts.recorded == 1
    assert read_messages(tmp_path) == (
        "rank 0: part-00000-00001.parquet is damaged, so launches or events are missing",
    )
