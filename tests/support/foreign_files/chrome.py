"""Chrome JSON in its shapes: an object, an array that is not closed, pairs, text for ids."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from foreign_files import Row

EVENTS: list[dict[str, Any]] = [
    {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "rank 1"}},
    {"ph": "X", "name": "copy", "pid": 1, "tid": 4, "ts": 10.5, "dur": 2.25},
    {"ph": "X", "name": "wait", "pid": 0, "tid": "5", "ts": "12.125", "dur": 7},
    {"ph": "B", "name": "outer", "pid": 0, "tid": 6, "ts": 20},
    {"ph": "B", "name": "inner", "pid": 0, "tid": 6, "ts": 21.5},
    {"ph": "E", "pid": 0, "tid": 6, "ts": 22},
    {"ph": "E", "pid": 0, "tid": 6, "ts": 30},
    {"ph": "b", "name": "send", "cat": "c", "id": 7, "pid": 0, "tid": 6, "ts": 23},
    {"ph": "e", "name": "send", "cat": "c", "id": 7, "pid": 0, "tid": 6, "ts": 33},
    {"ph": "i", "name": "mark", "pid": 1, "tid": 4, "ts": 11, "s": "t"},
]


def make(folder: Path) -> list[Path]:
    path = folder / "trace.json"
    path.write_text(json.dumps({"displayTimeUnit": "ns", "traceEvents": EVENTS}))
    return [path]


def make_array(folder: Path) -> list[Path]:
    path = folder / "trace.json"
    path.write_text("[\n" + ",\n".join(json.dumps(event) for event in EVENTS) + ",\n")
    return [path]


def read(files: list[Path]) -> list[Row]:
    (path,) = files
    text = path.read_text()
    events = (
        json.loads(text)["traceEvents"] if text[0] == "{" else json.loads(text.rstrip(",\n") + "]")
    )
    rows = []
    opened = []
    for event in events:
        if event["ph"] == "M":
            continue
        ns = round(float(event["ts"]) * 1000)
        if event["ph"] in "Bb":
            opened.append((event, ns))
        elif event["ph"] in "Ee":
            begun, begin = opened.pop()
            rows.append(
                Row(int(begun["pid"]), int(begun["tid"]), -1, begun["name"], begin, ns - begin)
            )
        else:
            took = round(event.get("dur", 0) * 1000)
            rows.append(Row(int(event["pid"]), int(event["tid"]), -1, event["name"], ns, took))
    return rows
