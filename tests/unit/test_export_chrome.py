"""Chrome JSON: read as JSON, and by the real trace processor."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kprof.capture.directory import EVENT_OPEN
from kprof.export import write
from kprof.trace import Trace
from synthetic import TraceBuilder

REGIONS = """
REGION(R_SEND, "send", send, peer:8, slot:24)
REGION(R_WAIT, "wait", wait, peer:8, slot:24)
REGION(R_EVIL, "<script>alert(1)</script> мир", compute)
MARK(R_MARK, "mark", sync, peer:8)
VALUE(R_LEFT, "left", other)
FLOW(R_SEND, R_WAIT)
"""

Processor = Callable[[Path], Any]


def events(trace: Trace, tmp_path: Path) -> list[dict[str, Any]]:
    path = write(trace, tmp_path / "run.json", force=True).path
    found: list[dict[str, Any]] = json.loads(path.read_text())["traceEvents"]
    return found


def exchange() -> TraceBuilder:
    build = TraceBuilder(REGIONS, num_ranks=2)
    build.span(0, "send", 1_000, 10, block=10, warp=1, peer=1, slot=7)
    build.span(0, "send", 1_001, 10, block=2, peer=1, slot=8)
    build.span(1, "wait", 900, 200, block=3, peer=0, slot=7)
    return build


def test_processes_and_threads_have_names_and_an_order(tmp_path: Path) -> None:
    found = events(exchange().trace(), tmp_path)
    processes = {e["pid"]: e["args"]["name"] for e in found if e["name"] == "process_name"}
    # Viewers write the process id behind the name: "host0, device 1, rank 1".
    assert processes == {0: "host0, device 0, rank", 1: "host0, device 1, rank"}
    rank0 = 0
    threads = {
        e["tid"]: e["args"]["name"]
        for e in found
        if e["name"] == "thread_name" and e["pid"] == rank0
    }
    order = {e["tid"]: e["args"]["sort_index"] for e in found if e["name"] == "thread_sort_index"}
    assert [threads[tid] for tid in sorted(threads, key=lambda tid: order[tid])] == [
        "kernel launches",
        "block 2",
        "block 10",
        "block 10 warp 1",
    ]


def test_no_thread_is_taken_for_the_main_thread_of_its_process(tmp_path: Path) -> None:
    build = exchange()
    found = events(build.trace(), tmp_path)
    pids = {e["pid"] for e in found}
    tids = {e["tid"] for e in found if e["ph"] in "Xi"}
    assert not pids & tids


def test_times_are_microseconds_with_nanoseconds_as_fraction(tmp_path: Path) -> None:
    build = TraceBuilder(REGIONS, num_ranks=1)
    base = 1_700_000_000_000_000_000
    # A day apart: still exact to the nanosecond.
    for offset in (0, 1, 86_400_000_000_123):
        build.span(0, "send", base + offset, 3, block=offset % 7, peer=0, slot=1)
    spans = [e for e in events(build.trace(), tmp_path) if e["ph"] == "X" and e["name"] == "send"]
    assert sorted((round(e["ts"] * 1000), round(e["dur"] * 1000)) for e in spans) == [
        (1_000, 3),
        (1_001, 3),
        (86_400_000_001_123, 3),
    ]


def test_a_flow_starts_with_the_send_and_finishes_within_the_wait(tmp_path: Path) -> None:
    found = events(exchange().trace(), tmp_path)
    (start,) = (e for e in found if e["ph"] == "s")
    (finish,) = (e for e in found if e["ph"] == "f")
    send = next(e for e in found if e["name"] == "send" and e["args"]["slot"] == 7)
    (wait,) = (e for e in found if e["name"] == "wait")
    assert (start["id"], start["cat"]) == (finish["id"], finish["cat"])
    assert (start["pid"], start["tid"], start["ts"]) == (send["pid"], send["tid"], send["ts"])
    assert (finish["pid"], finish["tid"], finish["bp"]) == (wait["pid"], wait["tid"], "e")
    assert wait["ts"] <= finish["ts"] < wait["ts"] + wait["dur"]
    assert finish["ts"] > start["ts"]


def test_overlapping_spans_are_on_threads_of_their_own(tmp_path: Path) -> None:
    build = TraceBuilder(REGIONS, num_ranks=1)
    build.span(0, "send", 0, 50, peer=0, slot=1)
    build.span(0, "send", 20, 50, peer=0, slot=2)
    build.span(0, "send", 30, 10, peer=0, slot=3)
    found = events(build.trace(), tmp_path)
    tid = {e["args"]["slot"]: e["tid"] for e in found if e["name"] == "send" and e["ph"] == "X"}
    names = {e["tid"]: e["args"]["name"] for e in found if e["name"] == "thread_name"}
    assert names[tid[1]] == "block 0"
    assert names[tid[2]] == "block 0 (lane 1)"
    assert tid[3] == tid[1]


def test_marks_values_and_open_spans(tmp_path: Path) -> None:
    build = TraceBuilder(REGIONS, num_ranks=1)
    build.span(0, "mark", 10, block=3, peer=1)
    build.span(0, "left", 20, block=3)
    build.span(0, "wait", 30, block=4, peer=1, flags=EVENT_OPEN)
    build.span(0, "send", 0, 100, block=5, peer=0, slot=1)
    found = events(build.trace(), tmp_path)
    (mark,) = (e for e in found if e["ph"] == "i")
    assert (mark["name"], mark["ts"], mark["args"]) == ("mark", 1.01, {"peer": 1})
    (value,) = (e for e in found if e["ph"] == "C" and "left" in e["name"])
    assert (value["name"], value["args"]) == ("block 3 left", {"value": 0})
    (wait,) = (e for e in found if e["name"] == "wait")
    assert wait["args"]["open (never ended)"] is True
    assert round(wait["dur"] * 1000) == 70


def test_any_text_is_a_name(tmp_path: Path, processor: Processor) -> None:
    build = TraceBuilder(REGIONS, num_ranks=1)
    name = build.regions.names[2]
    build.span(0, name, 0, 5)
    loaded = processor(write(build.trace(), tmp_path / "run.json").path)
    assert loaded.column("SELECT name FROM slice WHERE category = 'compute'") == [name]


def test_the_trace_processor_reads_the_same_slices_and_flows(
    tmp_path: Path, processor: Processor
) -> None:
    trace = exchange().trace()
    loaded = processor(write(trace, tmp_path / "run.json.gz").path)
    assert loaded.import_errors() == []
    first_ns = trace.window_ns()[0] - 1000
    assert loaded.rows(
        "SELECT name, ts, dur FROM slice WHERE category IN ('send', 'wait') AND name <> "
        "'released' ORDER BY ts"
    ) == [
        tuple(row)
        for row in trace.frame(
            f"SELECT region, start_ns - {first_ns}, duration_ns FROM events ORDER BY start_ns"
        )
        .to_numpy()
        .tolist()
    ]
    assert loaded.value("SELECT count(*) FROM flow") == 1
