"""The table of docs/triton.md says what benchmarks/results/triton_overhead.json says."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.triton_overhead.table import MISSING, table_of

ROOT = Path(__file__).parents[2]


def test_the_table_of_the_page_is_made_of_the_results() -> None:
    results = json.loads((ROOT / "benchmarks" / "results" / "triton_overhead.json").read_text())
    assert {"device", "triton", "date_utc", "command"} <= results.keys()
    assert table_of(results) in (ROOT / "docs" / "triton.md").read_text()


def test_what_was_not_measured_says_so() -> None:
    proton = {"slowdown_percent": -0.5, "events": 16, "lost": 0, "bytes_per_event": 16}
    results = {
        "matmul": {"kprof": {"slowdown_percent": 0.256}},
        "copy with Proton": proton,
        "records": {"matmul, kprof": {"events": 4, "lost": 1, "bytes_per_event": 544.0}},
    }
    rows = dict(line[2:-2].split(" | ", 1) for line in table_of(results).splitlines()[2:])
    assert rows["matmul: slowdown"] == f"+0.26 % | {MISSING} | {MISSING}"
    assert rows["copy, 2 programs per SM: slowdown"] == f"{MISSING} | -0.50 % | {MISSING}"
    assert rows["copy: events"] == f"{MISSING} | 16 | {MISSING}"
    assert rows["matmul: events lost"] == f"1 | {MISSING} | {MISSING}"
