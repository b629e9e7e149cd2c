"""The table of docs/triton.md says what benchmarks/results/triton_overhead.json says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
COLUMNS = ("kprof", "Proton", "Triton-distributed's scheme")
MISSING = "not measured"


def table_of(results: dict[str, Any]) -> str:
    """Markdown: a row per question, a column per profiler."""
    records = results["records"]
    rows = {
        f"{table}: slowdown": cells(results, proton, results.get(table, {}), "slowdown_percent")
        for table, proton in (
            ("copy, 2 programs per SM", "copy"),
            ("copy, 4 programs per SM", ""),
            ("matmul", "matmul"),
        )
    }
    for name, key in (
        ("copy: bytes per event", "bytes_per_event"),
        ("matmul: bytes per event", "bytes_per_event"),
        ("copy: events", "events"),
        ("copy: events lost", "lost"),
        ("matmul: events", "events"),
        ("matmul: events lost", "lost"),
        ("copy: first to last event, in kernel times", "first to last event, of the launch"),
        ("matmul: first to last event, in kernel times", "first to last event, of the launch"),
    ):
        kernel = name.partition(":")[0]
        of_kernel = {column: records.get(f"{kernel}, {column}", {}) for column in COLUMNS}
        rows[name] = cells(results, kernel, of_kernel, key)
    lines = [f"| | {' | '.join(COLUMNS)} |", "|---" * (1 + len(COLUMNS)) + "|"]
    lines += [f"| {name} | {' | '.join(row)} |" for name, row in rows.items()]
    return "\n".join(lines) + "\n"


def cells(results: dict[str, Any], proton: str, others: dict[str, Any], key: str) -> list[str]:
    """One for each column: Proton was measured alone, and its table is named after it."""
    columns = others | {"Proton": results.get(f"{proton} with Proton", {})}
    shown = "{:+.2f} %" if key == "slowdown_percent" else "{:g}"
    found = [columns.get(name, {}).get(key) for name in COLUMNS]
    return [MISSING if value is None else shown.format(value) for value in found]


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
