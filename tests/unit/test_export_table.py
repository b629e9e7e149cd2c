"""Events as CSV and Parquet, and back."""

from __future__ import annotations

from pathlib import Path

import pytest

import kprof
from kprof.errors import OutputExistsError
from kprof.export import write
from kprof.importers import import_events
from synthetic import TraceBuilder

COLUMNS = "rank, launch, block, warp, region, start_ns, duration_ns, peer, slot"
REGIONS = """
REGION(R_SEND, "send", send, peer:8, slot:16)
REGION(R_WORK, "work", compute)
"""


@pytest.mark.parametrize("suffix", [".csv", ".csv.gz", ".parquet"])
def test_a_table_that_was_exported_can_be_imported(suffix: str, tmp_path: Path) -> None:
    build = TraceBuilder(REGIONS, 2)
    for rank in range(2):
        for block in range(3):
            at = 1000 * rank + 100 * block
            build.span(rank, "work", at, 40, block=block)
            build.span(rank, "send", at + 50, 9, block=block, peer=1 - rank, slot=block)
    trace = build.trace()
    summary = write(trace, tmp_path / f"events{suffix}")
    assert summary.num_slices == 12
    again = import_events(None, [summary.path], tmp_path / "again.kprof")
    order = f"SELECT {COLUMNS} FROM events ORDER BY ALL"
    found, expected = kprof.open(again.path).frame(order), trace.frame(order)
    keys = ["rank", "launch", "block", "warp", "region", "start_ns", "duration_ns"]
    assert found[keys].to_numpy().tolist() == expected[keys].to_numpy().tolist()
    with pytest.raises(OutputExistsError):
        write(trace, summary.path)
