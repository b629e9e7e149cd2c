"""The table of docs/triton.md, from what the benchmark measured.

python -m benchmarks.triton_overhead.table benchmarks/results/triton_overhead.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

COLUMNS = ("kprof", "Proton", "Triton-distributed's scheme")
MISSING = "not measured"


def table_of(results: dict[str, Any]) -> str:
    """Markdown: a row per question, a column per profiler."""
    rows = [
        ("copy, 2 programs per SM: slowdown", _slowdowns(results, "copy, 2 programs per SM", "copy")),
        ("copy, 4 programs per SM: slowdown", _slowdowns(results, "copy, 4 programs per SM", None)),
        ("matmul: slowdown", _slowdowns(results, "matmul", "matmul")),
        ("copy: bytes per event", _records(results, "copy", "bytes_per_event")),
        ("matmul: bytes per event", _records(results, "matmul", "bytes_per_event")),
        ("copy: events", _records(results, "copy", "events")),
        ("copy: events lost", _records(results, "copy", "lost")),
        ("matmul: events", _records(results, "matmul", "events")),
        ("matmul: events lost", _records(results, "matmul", "lost")),
        ("copy: first to last event, in kernel times", _extents(results, "copy")),
        ("matmul: first to last event, in kernel times", _extents(results, "matmul")),
    ]  # fmt: skip
    lines = [f"| | {' | '.join(COLUMNS)} |", "|---" * (1 + len(COLUMNS)) + "|"]
    return "\n".join(lines + [f"| {name} | {' | '.join(cells)} |" for name, cells in rows]) + "\n"


def _slowdowns(results: dict[str, Any], table: str, with_proton: str | None) -> list[str]:
    proton = results.get(f"{with_proton} with Proton", {})
    measured = [
        proton if name == "Proton" else results.get(table, {}).get(name, {}) for name in COLUMNS
    ]
    return [
        f"{each['slowdown_percent']:+.2f} %" if "slowdown_percent" in each else MISSING
        for each in measured
    ]


def _records(results: dict[str, Any], kernel: str, key: str) -> list[str]:
    found = [
        results.get(f"{kernel} with Proton", {})
        if name == "Proton"
        else results.get("records", {}).get(f"{kernel}, {name}", {})
        for name in COLUMNS
    ]
    return [f"{each[key]:g}" if key in each else MISSING for each in found]


def _extents(results: dict[str, Any], kernel: str) -> list[str]:
    return _records(results, kernel, "first to last event, of the launch")


def main() -> None:
    print(table_of(json.loads(Path(sys.argv[1]).read_text())), end="")


if __name__ == "__main__":
    main()
