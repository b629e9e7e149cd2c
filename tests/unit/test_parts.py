"""Parts of a rank's events: each is complete, and together they are one file."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from kprof.capture.directory import event_schema, events_file_name
from kprof.capture.parts import PartWriter
from synthetic import TraceBuilder


def test_many_small_parts_become_few_row_groups(tmp_path: Path) -> None:
    build = TraceBuilder('REGION(A, "a", compute)', 1)
    build.span(rank=0, region="a", start_ns=0, duration_ns=1)
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
